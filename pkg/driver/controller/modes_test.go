// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

const (
	trainingRules  = "metadata: {name: training}\nrules: [{tiers: [exclusive], mig: {modeChange: whenIdle}}]"
	inferenceRules = "metadata: {name: inference}\nrules: [{match: {indexes: [0, 1]}, mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}}, {tiers: [exclusive]}]"
)

// newModeBed is a DGX A100 whose GPUs are whole.
func newModeBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t, "dgx-a100")
	b.write("training.yaml", trainingRules)
	b.write("inference.yaml", inferenceRules)
	b.Cluster.Node.Policy, b.Arrived = "training", true
	b.step(Inventory | Policies | Cluster)
	b.heard()
	return b
}

// choose labels the node with another policy.
func (b *bed) choose(name string) {
	b.t.Helper()
	b.Cluster.Node.Policy = name
	b.step(Cluster)
	b.step(Publication)
}

// changed is a GPU whose mode has changed.
func (b *bed) changed(i int, enabled bool) {
	b.t.Helper()
	inventory := *b.Inventory
	inventory.GPUs = slices.Clone(inventory.GPUs)
	inventory.GPUs[i].MIG.Enabled, inventory.GPUs[i].MIG.Pending = enabled, enabled
	b.Inventory, b.ModeRunning = &inventory, ModeOrder{}
	b.step(Inventory)
	b.step(Publication)
}

// after makes a plan some time later.
func (b *bed) after(d time.Duration) {
	b.t.Helper()
	b.Now = b.Now.Add(d)
	b.step(0)
}

// order is the order of the last plan: "0 on", or empty.
func (b *bed) order() string {
	if b.plan.Mode == nil {
		return ""
	}
	i := slices.IndexFunc([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(i int) bool { return b.device(i) == b.plan.Mode.GPU })
	if b.plan.Mode.Reset != "" {
		return string(rune('0'+i)) + " reset"
	}
	return strings.TrimSpace(string(rune('0'+i)) + map[bool]string{true: " on", false: " off"}[b.plan.Mode.Enable])
}

func (b *bed) wantOrder(when, want string) {
	b.t.Helper()
	if got := b.order(); got != want {
		b.t.Errorf("%s: got order %q, want %q", when, got, want)
	}
}

// One GPU after the other is changed once its devices were published as withdrawn for a while; then it offers what the policy
// wants, and the same on the way back.
func TestDesired_Mode(t *testing.T) {
	b := newModeBed(t)
	b.wantOrder("in the right mode", "")
	b.choose("inference")
	b.wantOrder("just withdrawn", "")
	if got, want := b.offered(), "0:gpu! 1:gpu! 2:gpu 3:gpu 4:gpu 5:gpu 6:gpu 7:gpu"; got != want {
		t.Errorf("offered while the mode is to be changed: %s, want %s", got, want)
	}
	if look := b.plan.LookAgain.Sub(b.Now); look != modeSettle {
		t.Errorf("looks again after %s, want %s", look, modeSettle)
	}
	b.after(modeSettle)
	b.wantOrder("settled", "0 on")
	b.ModeRunning = ModeOrder{GPU: b.device(0), Enable: true}
	b.after(time.Second)
	b.wantOrder("while another is changed", "")
	b.changed(0, true)
	b.wantOrder("after the first", "1 on")
	b.ModeRunning = ModeOrder{GPU: b.device(1), Enable: true}
	b.changed(1, true)
	b.wantOrder("after the second", "")
	if got, want := b.offered(), "0:mig 1:mig 2:gpu 3:gpu 4:gpu 5:gpu 6:gpu 7:gpu"; got != want {
		t.Errorf("offered in MIG mode: %s, want %s", got, want)
	}
	if diff := cmp.Diff([]string{"Normal PolicyApplied", "Normal MIGModeChanged", "Normal MIGModeChanged"}, reasons(b.heard())); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	b.choose("training")
	b.after(modeSettle)
	b.wantOrder("on the way back", "0 off")
	b.changed(0, false)
	b.changed(1, false)
	if got, want := b.offered(), "0:gpu 1:gpu 2:gpu 3:gpu 4:gpu 5:gpu 6:gpu 7:gpu"; got != want {
		t.Errorf("offered out of MIG mode: %s, want %s", got, want)
	}
}

// A GPU waits for its claims, and no other GPU waits for it.
func TestDesired_ModeClaims(t *testing.T) {
	b := newModeBed(t)
	b.allocates(records.Device{GPU: b.device(0)})
	b.choose("inference")
	b.after(modeSettle)
	b.wantOrder("with a claim on GPU 0", "1 on")
	b.after(time.Hour)
	if events := b.heard(); len(events) != 2 || !strings.Contains(events[1], "MIGModePending") || !strings.Contains(events[1], "once these claims have ended: ns/c0") {
		t.Errorf("Events = %q, want one about the claim", events)
	}
	b.changed(1, true)
	b.wantOrder("still with the claim", "")
	b.heard()
	b.allocate(records.Device{GPU: b.device(0)}, records.Device{GPU: b.device(0), AdminAccess: true}, records.Device{GPU: b.device(0)})
	b.Allocations[2].State = records.Releasing
	b.step(Allocations)
	b.after(time.Hour)
	if events := b.heard(); len(events) != 1 || !strings.HasSuffix(events[0], "once these claims have ended: ns/c0 (); "+
		"and once these claims with admin access have ended: ns/c1 (); "+
		"and once these claims, which have ended, have released their devices: ns/c2 ()") {
		t.Errorf("Events = %q, want one about all three", events)
	}
	b.Allocations = b.Allocations[2:]
	b.step(Allocations)
	b.wantOrder("with a claim that is being released", "")
	if events := b.heard(); len(events) != 1 || strings.Contains(events[0], "ns/c0") || !strings.Contains(events[0], "released their devices: ns/c2") {
		t.Errorf("Events = %q, want one about what is being released", events)
	}
	b.allocates()
	b.wantOrder("once the claim has ended", "0 on")
	for name, d := range map[string]records.Device{
		"released": {Released: true}, "admin access": {AdminAccess: true}, "a partition in use by others": {Partition: &gpu.Partition{}},
	} {
		d.GPU, d.Device = b.device(0), b.device(0)
		b.Allocations = []*records.Record{{State: records.Releasing, Devices: []records.Device{d, {GPU: b.device(3), Device: b.device(3)}}}}
		b.step(Allocations)
		b.wantOrder("with a claim that has ended and waits for another GPU, "+name, "0 on")
	}
}

// A change that fails is tried again after a pause that grows, reported once for each reason, and not at all once the policy
// wants it no more.
func TestDesired_ModeFails(t *testing.T) {
	b := newModeBed(t)
	b.choose("inference")
	b.after(modeSettle)
	b.listed()
	b.heard()
	fail := func(why string) {
		b.ModeFailures = map[string]ModeFailure{
			b.device(0): {Enable: true, Err: errors.New(why), At: b.Now}, b.device(1): {Enable: true, Err: errors.New("x"), At: b.Now}}
		b.step(0)
	}
	for _, pause := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		fail("in use: open in nv-hostengine (process 71)")
		b.wantOrder("failed just now", "")
		if look := b.plan.LookAgain.Sub(b.Now); look != pause {
			t.Errorf("looks again after %s, want %s", look, pause)
		}
		b.after(pause - time.Millisecond)
		b.wantOrder("before the pause has ended", "")
		b.after(time.Millisecond)
		b.wantOrder("after the pause", "0 on")
	}
	for range 20 {
		fail("in use: open in nv-hostengine (process 71)")
		b.after(modeRetryAtMost)
		b.wantOrder("after the longest pause", "0 on")
	}
	events := b.heard()
	if len(events) != 2 || !strings.Contains(events[0], "Warning MIGModeNotChanged") ||
		!strings.Contains(events[0], "cannot enter MIG mode yet: in use: open in nv-hostengine (process 71). Next attempt in 5s, later ones after up to 5m0s") {
		t.Errorf("Events = %q, want one for each GPU", events)
	}
	fail("in use: open in dcgm-exporter (process 9)")
	if got := b.heard(); len(got) != 1 {
		t.Errorf("Events of another reason = %q", got)
	}
	b.choose("training")
	b.after(time.Hour)
	b.wantOrder("once the policy is back", "")
}

// What was cut short is finished whatever the policy wants.
func TestDesired_ModeLeft(t *testing.T) {
	b := newModeBed(t)
	b.ModesLeft = map[string]bool{b.device(2): true}
	b.step(0)
	b.wantOrder("a change that was cut short", "2 off")
	b.write("training.yaml", strings.ReplaceAll(trainingRules, "whenIdle", "never"))
	b.step(Policies)
	b.wantOrder("though the mode is taken as found", "2 off")
	b.allocates(records.Device{GPU: b.device(2)})
	b.wantOrder("with a claim", "2 off")
	b.ModesLeft = nil
	b.step(0)
	b.wantOrder("finished", "")
}

// Withdrawn devices settle from when the API server has them as such, which takes as long as it takes.
func TestDesired_ModeNotArrived(t *testing.T) {
	b := newModeBed(t)
	b.Arrived = false
	b.choose("inference")
	b.after(time.Hour)
	b.wantOrder("while the API server lacks it", "")
	b.Arrived = true
	b.step(Publication)
	b.wantOrder("just arrived", "")
	if look := b.plan.LookAgain.Sub(b.Now); look != modeSettle {
		t.Errorf("looks again after %s, want %s", look, modeSettle)
	}
	b.Arrived = false // something else is on its way
	b.after(modeSettle)
	b.wantOrder("settled", "0 on")
}

// An API server that drops taints never has the slices as they are wanted. The mode changes once the devices are no longer published, as
// whoever is allocated one before would lose it.
func TestDesired_ModeWithoutTaints(t *testing.T) {
	b := newModeBed(t)
	b.Arrived = false
	b.choose("inference")
	b.after(arriveAtMost)
	b.after(time.Hour)
	b.wantOrder("while the devices are published", "")
	b.Listed = b.Now
	b.step(Listing)
	if got, want := b.offered(), "2:gpu 3:gpu 4:gpu 5:gpu 6:gpu 7:gpu"; got != want {
		t.Fatalf("offered once the claims are listed: %s, want %s", got, want)
	}
	b.wantLook("no longer published", arriveAtMost)
	b.Written = b.Now
	b.after(time.Second)
	b.Writing, b.Written = true, b.Now // something else
	b.after(arriveAtMost - time.Second)
	b.wantLook("not seen to arrive", modeSettle)
	b.after(modeSettle)
	b.wantOrder("settled", "0 on")
}

// What arrives with the plan that withdraws devices is what was published before.
func TestDesired_ModeArrivedBefore(t *testing.T) {
	b := newModeBed(t)
	b.Cluster.Node.Policy = "inference"
	b.step(Cluster)
	b.Arrived = false
	b.after(time.Hour)
	b.wantOrder("while the API server has what was before", "")
}

// A failure of an earlier change neither shortens the time to settle nor is reported again.
func TestDesired_ModeStaleFailure(t *testing.T) {
	b := newModeBed(t)
	b.choose("inference")
	b.after(modeSettle)
	b.ModeFailures = map[string]ModeFailure{b.device(0): {Enable: true, Err: errors.New("in use"), At: b.Now}, b.device(1): {Enable: true, Err: errors.New("in use"), At: b.Now}}
	b.step(0)
	b.choose("training")
	b.after(time.Hour)
	b.heard()
	b.choose("inference")
	b.wantOrder("just withdrawn again", "")
	b.after(modeSettle)
	b.wantOrder("settled", "0 on")
	if diff := cmp.Diff([]string{"Normal PolicyApplied"}, reasons(b.heard())); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// A failure just before the devices are withdrawn anew, as after a restart, does not end the time to settle.
func TestModeMemory_Next(t *testing.T) {
	for name, tt := range map[string]struct {
		memory ModeMemory
		want   time.Duration
	}{
		"settles":             {ModeMemory{withdrawal: withdrawal{Since: start}}, modeSettle},
		"failed":              {ModeMemory{withdrawal: withdrawal{Since: start}, Failures: 1, FailedAt: start.Add(time.Minute)}, time.Minute + modeRetry},
		"settles last":        {ModeMemory{withdrawal: withdrawal{Since: start}, Failures: 1, FailedAt: start.Add(-modeRetry)}, modeSettle},
		"failed, not settled": {ModeMemory{Failures: 2, FailedAt: start}, 2 * modeRetry},
	} {
		if got := tt.memory.next().Sub(start); got != tt.want {
			t.Errorf("%s: next after %s, want %s", name, got, tt.want)
		}
	}
}

func TestDesired_ModeNotNow(t *testing.T) {
	for name, change := range map[string]func(b *bed){
		"never": func(b *bed) {
			b.write("inference.yaml", strings.ReplaceAll(inferenceRules, ", modeChange: whenIdle", ""))
		},
		"driver released": func(b *bed) { b.Cluster.Node.ReleaseDriver = true },
		"not ready":       func(b *bed) { b.Ready = false },
		"running":         func(b *bed) { b.ModeRunning = ModeOrder{GPU: b.device(5), Enable: true} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			change(b)
			b.step(Policies)
			b.choose("inference")
			b.after(modeSettle)
			b.wantOrder(name, "")
		})
	}
}

// A GPU that is being changed is not to be had, though the policy has come to want it as it was.
func TestDesired_ModeFlipped(t *testing.T) {
	b := newModeBed(t)
	b.choose("inference")
	b.after(modeSettle)
	b.ModeRunning = ModeOrder{GPU: b.device(0), Enable: true}
	b.choose("training")
	if diff := cmp.Diff([]string{b.device(0)}, b.tainted(nodeslices.TaintOccupied)); diff != "" {
		t.Errorf("tainted while it is changed (-want +got):\n%s", diff)
	}
	b.changed(0, true)
	b.after(modeSettle)
	b.wantOrder("once it has changed", "0 off")
	b.ModeRunning = ModeOrder{GPU: b.device(0), Enable: false}
	b.changed(0, false)
	if got := b.tainted(nodeslices.TaintOccupied); len(got) > 0 || b.order() != "" {
		t.Errorf("in the end: %v tainted, order %q", got, b.order())
	}
}

// Boards that need no reset change their mode with their claims, whatever the rule says.
func TestDesired_ModeHopper(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.rules("{mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}}")
	b.after(time.Hour)
	if b.plan.Mode != nil || b.plan.Offer.Offer(&b.Inventory.GPUs[0]).PartitionMode() != policy.Layout {
		t.Errorf("order %v", b.plan.Mode)
	}
}
