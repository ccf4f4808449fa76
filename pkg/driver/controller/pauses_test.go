// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

const (
	dcgm     = "nvidia.com/gpu.deploy.dcgm"
	exporter = "nvidia.com/gpu.deploy.dcgm-exporter"

	pausingRules = "metadata: {name: inference}\nrules: [{match: {indexes: [0, 1]}, mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}, " +
		"pauseClients: [" + dcgm + ", " + exporter + "]}, {tiers: [exclusive]}]"
)

// errHeld is what an attempt says while DCGM has a GPU open.
var errHeld = fmt.Errorf("%w: open in nv-hostengine (process 71)", gpu.ErrHeldByPods)

// pauseBed is a bed whose Node has labels of clients.
type pauseBed struct{ *bed }

// newPauseBed is a node with DCGM and its exporter on which GPUs 0 and 1 are to enter MIG mode, and have not been tried yet.
func newPauseBed(t *testing.T) pauseBed {
	t.Helper()
	b := pauseBed{newModeBed(t)}
	b.write("inference.yaml", pausingRules)
	b.Cluster.Node.Clients = map[string]string{dcgm: v1alpha1.ClientsDeployed, exporter: v1alpha1.ClientsDeployed}
	b.step(Policies)
	b.choose("inference")
	b.after(modeSettle)
	b.listed()
	b.heard()
	return b
}

// fails has the attempt to change a GPU fail.
func (b pauseBed) fails(i int, err error) {
	b.t.Helper()
	b.ModeRunning = ModeOrder{}
	if b.ModeFailures == nil {
		b.ModeFailures = map[string]ModeFailure{}
	}
	b.Now = b.Now.Add(time.Millisecond)
	b.ModeFailures[b.device(i)] = ModeFailure{Enable: true, Err: err, At: b.Now}
	b.step(0)
}

// labels has the Node have other values of the labels of clients.
func (b pauseBed) labels(dcgmValue, exporterValue string) {
	b.t.Helper()
	b.Cluster.Node.Clients = map[string]string{dcgm: dcgmValue, exporter: exporterValue}
	b.step(Cluster)
}

func (b pauseBed) wantPaused(when string, want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.plan.Pause); diff != "" {
		b.t.Errorf("%s: labels that are to be paused (-want +got):\n%s", when, diff)
	}
}

func (b pauseBed) wantReasons(when string, want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, reasons(b.heard())); diff != "" {
		b.t.Errorf("%s: Events (-want +got):\n%s", when, diff)
	}
}

// Clients are stopped once they alone keep a GPU from its change, for all GPUs that are due, and may start again after the last.
func TestDesired_Pause(t *testing.T) {
	b := newPauseBed(t)
	b.wantPaused("before the first attempt")
	b.fails(0, errHeld)
	b.wantPaused("held", dcgm, exporter)
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "Normal ClientsPaused") ||
		!strings.Contains(events[0], dcgm+", "+exporter+`: set from "true" to "paused-by-cleave"`) ||
		!strings.Contains(events[0], "nv-hostengine (process 71)") {
		t.Errorf("Events = %q, want one that says what is stopped, and why", events)
	}
	b.wantOrder("GPU 1, which was not tried yet", "1 on")
	b.fails(1, errHeld)
	b.labels(v1alpha1.ClientsPaused, v1alpha1.ClientsPaused)
	for range 10 { // attempts follow each other quickly, however many
		b.after(modeRetry)
		b.wantOrder("again", "0 on")
		b.fails(0, errHeld)
		b.wantPaused("still held", dcgm, exporter)
	}
	b.after(modeRetry)
	b.ModeRunning = *b.plan.Mode
	b.after(time.Second)
	b.wantPaused("while a GPU is changed", dcgm, exporter)
	delete(b.ModeFailures, b.device(0))
	b.changed(0, true)
	b.wantPaused("for GPU 1", dcgm, exporter)
	b.wantReasons("so far", "Normal MIGModeChanged")
	delete(b.ModeFailures, b.device(1))
	b.changed(1, true)
	b.wantPaused("after the last")
	b.wantReasons("in the end", "Normal MIGModeChanged", "Normal ClientsResumed")
}

// A pause goes on for a GPU that was not tried yet, and each change gives it more time.
func TestDesired_PauseProgress(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.wantOrder("not tried yet", "1 on")
	b.ModeRunning, b.ModeFailures = *b.plan.Mode, nil
	b.after(pauseAtMost - time.Second)
	b.ModeRunning = ModeOrder{}
	b.changed(1, true)
	b.after(pauseAtMost - time.Second)
	b.wantPaused("after the other GPU has changed", dcgm, exporter)
	b.after(time.Second)
	b.wantPaused("too long after the change")

	b = newPauseBed(t)
	b.fails(0, errHeld)
	b.ModeFailures = nil
	b.changed(0, true)
	b.wantPaused("for the GPU that was not tried yet", dcgm, exporter)
}

// Only a change gives a pause more time, not a GPU that sometimes waits for clients and sometimes for something else.
func TestDesired_PauseNoProgress(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	for range 3 {
		b.fails(1, errHeld)
		b.after(pauseAtMost / 2)
		b.fails(0, errHeld)
		b.fails(1, errors.New("no reset"))
	}
	b.wantPaused("too long without a change")
}

// Claims that come and go, such as those with admin access, do not have clients stopped again and again.
func TestDesired_PauseClaims(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.allocates(records.Device{GPU: b.device(0)}, records.Device{GPU: b.device(1), AdminAccess: true})
	b.wantPaused("with claims")
	b.allocates()
	b.fails(0, errHeld)
	b.wantPaused("just after the claims")
	b.after(pauseRetry)
	b.fails(0, errHeld)
	b.wantPaused("later", dcgm, exporter)
}

// Clients are not started again into a change that runs, unless it takes too long by far.
func TestDesired_PauseWhileRunning(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.ModeRunning, b.ModeFailures = ModeOrder{GPU: b.device(0), Enable: true}, nil
	b.after(pauseAtMost)
	b.wantPaused("late, but a GPU is being changed", dcgm, exporter)
	if look := b.plan.LookAgain.Sub(b.Now); look != pauseAtMost {
		t.Errorf("looks again after %s, want %s", look, pauseAtMost)
	}
	b.after(pauseAtMost)
	b.wantPaused("far too late")

	b = newPauseBed(t)
	b.fails(0, errHeld)
	b.ModeRunning, b.ModeFailures = ModeOrder{GPU: b.device(0), Enable: true}, nil
	b.allocates(records.Device{GPU: b.device(0)}, records.Device{GPU: b.device(1)})
	b.wantPaused("although claims came", dcgm, exporter)
}

// The Event about a pause in vain says nothing of GPUs that were not tried, such as which claims they have waited for before.
func TestDesired_PauseNotTried(t *testing.T) {
	b := newPauseBed(t)
	b.allocates(records.Device{GPU: b.device(1)})
	b.fails(0, errHeld)
	b.allocates()
	b.heard()
	b.after(pauseAtMost)
	if events := b.heard(); len(events) != 1 || strings.Contains(events[0], "claims") || strings.Count(events[0], b.Inventory.GPUs[0].UUID) != 1 {
		t.Errorf("Events = %q, want one about GPU 0 alone", events)
	}
}

// A pause that has let a GPU change was not in vain, although another cannot be changed: the next one may begin at once.
func TestDesired_PausePartly(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errors.New("no reset"))
	b.fails(1, errHeld)
	b.wantPaused("for GPU 1", dcgm, exporter)
	delete(b.ModeFailures, b.device(1))
	b.heard()
	b.changed(1, true)
	b.wantPaused("after its change")
	b.wantReasons("after its change", "Normal MIGModeChanged", "Normal ClientsResumed")
	b.fails(0, errHeld)
	b.wantPaused("for GPU 0", dcgm, exporter)
}

// What is no client's fault, or that of clients which the policy does not name or the plugin may not stop, stops none.
func TestDesired_PauseNever(t *testing.T) {
	held := func(b pauseBed) { b.fails(0, errHeld) }
	for name, tt := range map[string]struct {
		change func(b pauseBed)
		event  string // of what keeps the GPU
	}{
		"a process that is in no pod, or computes": {func(b pauseBed) {
			b.fails(0, fmt.Errorf("%w: open in python (process 7)", gpu.ErrInUse))
		}, "open in python (process 7). Next"},
		"the reset itself": {func(b pauseBed) { b.fails(0, errors.New("no reset")) }, "no reset. Next"},
		"not named": {func(b pauseBed) {
			b.write("inference.yaml", inferenceRules)
			b.step(Policies)
			held(b)
		}, "open in nv-hostengine (process 71). Next"},
		"not deployed": {func(b pauseBed) { b.labels("false", "paused-for-mig-change"); held(b) },
			"none of " + dcgm + ", " + exporter + ` has the value "true"`},
		"may not be changed":  {func(b pauseBed) { b.Cluster.Node.Clients = nil; held(b) }, "may be changed by the plugin"},
		"while not ready":     {func(b pauseBed) { b.Ready = false; held(b) }, ""},
		"a claim has the GPU": {func(b pauseBed) { b.allocate(records.Device{GPU: b.device(0)}); b.step(Allocations); held(b) }, ""},
		"driver released":     {func(b pauseBed) { b.Cluster.Node.ReleaseDriver = true; held(b) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPauseBed(t)
			tt.change(b)
			b.wantPaused(name)
			b.after(modeRetryAtMost)
			b.wantPaused(name)
			events := strings.Join(b.heard(), "\n")
			if strings.Contains(events, " Clients") || !strings.Contains(events, tt.event) {
				t.Errorf("Events = %q, want %q in them and none of clients", events, tt.event)
			}
		})
	}
}

// A pause in vain ends, and the next one is further away each time. Another reason ends it, too, unless it passes, such as that the API
// server did not answer.
func TestDesired_PauseInVain(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.fails(1, errHeld)
	for _, next := range []time.Duration{pauseRetry, 2 * pauseRetry, 4 * pauseRetry} {
		b.wantPaused("held", dcgm, exporter)
		b.wantReasons("held", "Normal ClientsPaused")
		if b.plan.LookAgain.After(b.Memory.Pause.Until) {
			t.Errorf("looks again at %s, after the pause has to end at %s", b.plan.LookAgain, b.Memory.Pause.Until)
		}
		b.after(pauseAtMost)
		b.wantPaused("too long")
		if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "Warning ClientsNotGone") ||
			!strings.Contains(events[0], "open in nv-hostengine (process 71)") ||
			!strings.Contains(events[0], fmt.Sprintf("again in %s at the earliest", next)) {
			t.Errorf("Events = %q, want one with the reason and that the next pause is in %s", events, next)
		}
		b.after(next - time.Second)
		b.fails(0, errHeld)
		b.wantPaused("too early")
		b.wantReasons("too early")
		b.after(time.Second)
		b.fails(0, errHeld)
	}
	b.heard()
	for i := range 2 {
		b.fails(i, errors.New("no reset"))
		b.wantPaused("one failure for another reason", dcgm, exporter)
	}
	b.fails(0, errHeld)
	for i := range 4 {
		b.fails(i%2, errors.New("no reset"))
	}
	b.wantPaused("for another reason")
	if got := reasons(b.heard()); !slices.Contains(got, "Warning ClientsNotGone") {
		t.Errorf("Events = %v, want that the pause was in vain", got)
	}
	b.after(time.Hour)
	b.fails(0, errHeld)
	b.wantPaused("an hour after the fourth in vain")
}

// Another client's value of a label wins: the pause goes on without it, and not at all without any.
func TestDesired_PauseTakenOver(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.labels(v1alpha1.ClientsPaused, "false")
	b.wantPaused("one is another client's", dcgm)
	b.labels("paused-for-mig-change", "false")
	b.wantPaused("both are")
	b.labels(v1alpha1.ClientsDeployed, v1alpha1.ClientsDeployed)
	b.wantPaused("deployed again")
	b.fails(0, errHeld)
	b.wantPaused("and still held", dcgm, exporter)
}

// The policy that no longer wants the change, and a release of the driver, end a pause.
func TestDesired_PauseEnds(t *testing.T) {
	b := newPauseBed(t)
	b.fails(0, errHeld)
	b.heard()
	b.choose("training")
	b.wantPaused("not wanted any more")
	if got := reasons(b.heard()); !slices.Contains(got, "Normal ClientsResumed") {
		t.Errorf("Events = %v", got)
	}
	b = newPauseBed(t)
	b.fails(0, errHeld)
	b.Cluster.Node.Paused = dcgm + "=paused-for-driver-upgrade"
	b.step(Cluster)
	if b.wantPaused("while the driver is released"); b.plan.Release == nil {
		t.Error("the driver is not released")
	}
}

// A reset on request stops clients as well.
func TestDesired_PauseReset(t *testing.T) {
	b := pauseBed{newModeBed(t)}
	b.write("training.yaml", "metadata: {name: training}\nrules: [{tiers: [exclusive], pauseClients: ["+dcgm+"]}]")
	b.Cluster.Node.Clients = map[string]string{dcgm: v1alpha1.ClientsDeployed}
	b.step(Policies)
	b.request(b.device(2))
	b.after(modeSettle)
	b.wantOrder("requested", "2 reset")
	b.Now = b.Now.Add(time.Millisecond)
	b.ModeFailures = map[string]ModeFailure{b.device(2): {Reset: b.device(2), Err: errHeld, At: b.Now}}
	b.step(0)
	b.wantPaused("held", dcgm)
	b.ModeFailures, b.ResetDone = nil, b.device(2)
	b.step(Inventory)
	b.wantPaused("reset")
}

// The loop goes on while a mode is changed, looks at what has become of it, and has clients stopped. After a restart all start again,
// whatever was stopped before.
func TestLoop_Pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "dgx-a100")
		dir := newPauseBed(t).dir
		l.Sources.Policies = func() (*policy.Set, error) { return policy.Load(dir, policy.Format{}) }
		l.Pause = func(labels []string) { f.note(fmt.Sprint("pause ", labels)) }
		f.set(func() {
			f.state.Node.Policy, f.modeErr = "inference", errHeld
			f.state.Node.Clients = map[string]string{dcgm: v1alpha1.ClientsDeployed}
		})
		ctx, cancel := context.WithCancel(t.Context())
		l.Begin(ctx)
		if got := f.took(); strings.Contains(got, "pause") {
			t.Errorf("before claims can be prepared: %s", got)
		}
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		if got := f.took(); !strings.Contains(got, "pause []") || strings.Contains(got, "pause ["+dcgm) {
			t.Errorf("at first: %s", got)
		}
		<-time.After(modeSettle + 100*time.Millisecond)
		synctest.Wait()
		mode := "mode " + read(f, &f.inventory).GPUs[0].PCI.DeviceName() + " true"
		if got := f.took(); !strings.Contains(got, "pause ["+dcgm+"]") || strings.Count(got, mode) != 1 {
			t.Errorf("held: %s", got)
		}
		f.set(func() { f.state.Node.Clients[dcgm] = v1alpha1.ClientsPaused })
		<-time.After(modeRetry)
		synctest.Wait()
		if got := f.took(); strings.Count(got, mode) != 1 {
			t.Errorf("after the pause: %s", got)
		}
		<-time.After(pauseAtMost + modeRetry)
		synctest.Wait()
		if got := f.took(); !strings.HasSuffix(strings.TrimSpace(got[:strings.LastIndex(got, "pause")+8]), "pause []") {
			t.Errorf("in the end: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
