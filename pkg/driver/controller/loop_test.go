// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// fakeNode is all that a loop observes and changes. What is done is noted in calls.
type fakeNode struct {
	mu        sync.Mutex
	calls     []string
	inventory *gpu.Node
	missing   error
	mps       error
	state     cluster.State
	occupied  []string
	records   []*records.Record
	endErr    error
	closeErr  error
	modeErr   error
	limitErr  error
	locked    chan struct{} // closed when the lock of a GPU is free; nil while it is
	hangs     chan struct{} // closed when driver and disk answer; nil while they do
	slices    [][]string
	status    Status
	resetDone string
	laidOut   []bool // whether the offers for which layouts were applied have a layout
	driver    error
	events    []string
	closed    bool

	unfinished bool
	// recoverTakes and layoutsTake are how long these take.
	recoverTakes, layoutsTake time.Duration
}

func (f *fakeNode) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

// took returns what was done since the last call.
func (f *fakeNode) took() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := strings.Join(f.calls, " ")
	f.calls = nil
	return calls
}

// set changes what is observed.
func (f *fakeNode) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func read[T any](f *fakeNode, value *T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *value
}

// await waits until a channel is closed, if there is one.
func (f *fakeNode) await(closed *chan struct{}) {
	if c := read(f, closed); c != nil {
		<-c
	}
}

// take takes time, until ctx ends.
func (f *fakeNode) take(ctx context.Context, time *time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, read(f, time))
	defer cancel()
	<-ctx.Done()
}

type fakeHardware struct{ *fakeNode }

func (f fakeHardware) Inventory() *gpu.Node { return read(f.fakeNode, &f.inventory) }
func (f fakeHardware) MemoryLimits(_ context.Context, node *gpu.Node) (map[gpu.PCIAddress]bool, error) {
	f.await(&f.hangs)
	all, err := map[gpu.PCIAddress]bool{}, read(f.fakeNode, &f.limitErr)
	if err != nil {
		f.note("limits")
	}
	for i := range node.GPUs {
		if !errors.Is(err, gpu.ErrHangs) {
			all[node.GPUs[i].PCI] = err == nil
		}
	}
	return all, err
}
func (f fakeHardware) Missing() error     { return read(f.fakeNode, &f.missing) }
func (f fakeHardware) Offer(*policy.Node) {}
func (f fakeHardware) SyncInventory(context.Context, *gpu.Node) {
	f.note("syncInventory")
	f.await(&f.hangs)
}
func (f fakeHardware) RereadLinks() { f.note("links") }
func (f fakeHardware) Close(context.Context) error {
	f.note("close")
	f.set(func() { f.closed = f.closeErr == nil })
	return read(f.fakeNode, &f.closeErr)
}

type fakeClaims struct{ *fakeNode }

func (f fakeClaims) Allocations() []*records.Record     { return read(f.fakeNode, &f.records) }
func (f fakeClaims) Records() []*records.Record         { return read(f.fakeNode, &f.records) }
func (f fakeClaims) Layout(*gpu.GPU) []gpu.Place        { return nil }
func (f fakeClaims) Listing() (began, failed time.Time) { return time.Now(), time.Time{} }
func (f fakeClaims) List(time.Time)                     { f.note("list") }
func (f fakeClaims) Unfinished() bool                   { return read(f.fakeNode, &f.unfinished) }
func (f fakeClaims) Unclaimed(*gpu.GPU) []gpu.Place     { return nil }
func (f fakeClaims) Occupied() []string                 { return read(f.fakeNode, &f.occupied) }
func (f fakeClaims) Existing() []Existing               { return nil }
func (f fakeClaims) Scan(ctx context.Context) {
	f.note("scan")
	f.await(&f.locked)
}
func (f fakeClaims) Recover(ctx context.Context) {
	f.note("recover")
	f.take(ctx, &f.recoverTakes)
}
func (f fakeClaims) LeaveMIGMode(context.Context) {
	f.note("leaveMIG")
	f.await(&f.locked)
}
func (f fakeClaims) ApplyLayouts(ctx context.Context, offered *policy.Node) []LayoutProblem {
	f.note("layouts")
	isLayout := offered.Offer(&offered.GPUs[0]).PartitionMode() == policy.Layout
	f.set(func() { f.laidOut = append(f.laidOut, isLayout) })
	f.take(ctx, &f.layoutsTake)
	return nil
}

func (f fakeClaims) ModesLeft() map[string]bool { return nil }
func (f fakeClaims) ResetDone() string          { return read(f.fakeNode, &f.resetDone) }
func (f fakeClaims) ForgetReset(context.Context) {
	f.note("forgetReset")
	f.set(func() { f.resetDone = "" })
}
func (f fakeClaims) ChangeMode(order ModeOrder) func(context.Context) error {
	f.note(fmt.Sprintf("mode %s %t", order.GPU, order.Enable))
	return func(context.Context) error { return read(f.fakeNode, &f.modeErr) }
}

// Reconcile waits for an API server that does not answer.
func (f fakeClaims) Reconcile(ctx context.Context) {
	f.note("reconcile")
	<-ctx.Done()
}
func (f fakeClaims) SetWaiting(why error) { f.note("waiting") }
func (f fakeClaims) Quiesce()             { f.note("quiesce") }
func (f fakeClaims) EndSession(context.Context) error {
	f.note("end")
	return read(f.fakeNode, &f.endErr)
}

func (f *fakeNode) Want(wanted []nodeslices.Slice) {
	f.note("publish")
	f.set(func() { f.slices = devicesOf(wanted) })
}

func (f *fakeNode) Arrived() bool { return true }

func (f *fakeNode) Handed() (all bool, last time.Time) { return true, time.Time{} }

func (f *fakeNode) Warn(reason, _ string) { f.set(func() { f.events = append(f.events, reason) }) }
func (f *fakeNode) Note(reason, _ string) { f.set(func() { f.events = append(f.events, reason) }) }
func (f *fakeNode) Report(s Status)       { f.set(func() { f.status = s }) }
func (f *fakeNode) Driver(err error)      { f.set(func() { f.driver = err }) }

// newFakeLoop is a loop on a node of a model that reconciles every minute.
func newFakeLoop(t *testing.T, model string) (*Loop, *fakeNode) {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeNode{inventory: session.Node()}
	l := New()
	l.Options = Options{
		Hardware: fakeHardware{f}, Claims: fakeClaims{f}, Publisher: f, Events: f, Reporter: f,
		Sources: Sources{
			Cluster: func() cluster.State { return read(f, &f.state) }, Names: func() []DriverName { return nil },
			Conditions: func() map[gpu.PCIAddress][]health.Condition { return nil }, Incomplete: func() map[string]error { return nil },
			Lists: func() bool { return false }, Counted: func() counting.Counted { return counting.Counted{} }, Policies: func() (*policy.Set, error) { return policy.Load("", policy.Format{}) },
			MPS:         func(context.Context) error { return read(f, &f.mps) },
			WriteFailed: func() time.Time { return time.Time{} },
		},
		KeepPolicy: func(*Policy) error { f.note("keep"); return nil }, Removed: func(gpu.PCIAddress) { f.note("removed") },
		Released: func(_ context.Context, released bool) {
			f.note(map[bool]string{true: "released", false: "inUse"}[released])
		},
		ReconcileEvery: time.Minute, DriverRetry: time.Hour,
	}
	return l, f
}

func TestLoop_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "hgx-h100")
		ctx, cancel := context.WithCancel(t.Context())
		l.Begin(ctx)
		if got := f.took(); got != "keep" {
			t.Errorf("before claims can be prepared: %q, want the policy to be kept alone", got)
		}
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		if got, want := f.took(), "publish recover leaveMIG layouts reconcile"; got != want {
			t.Errorf("at the start: got %q, want %q", got, want)
		}
		device := read(f, &f.inventory).GPUs[0].PCI.DeviceName()
		for _, step := range []struct {
			name   string
			change func()
			mark   Aspect
			after  time.Duration
			want   string
		}{
			{"nothing", func() {}, 0, 10 * time.Second, ""},
			{"marked, unchanged", func() {}, Health | Specs | Cluster, 0, ""},
			{"partitions, not settled", func() { f.occupied = []string{device} }, Partitions, partitionsSettle / 2, ""},
			{"partitions, settled", func() {}, 0, partitionsSettle, "links scan layouts publish"},
			{"allocations, not settled", func() { f.records = []*records.Record{{Devices: []records.Device{{GPU: device}}}} }, Allocations, allocationsSettle / 2, ""},
			{"allocations, settled", func() {}, 0, allocationsSettle, "leaveMIG"},
			{"supervisor away", func() { f.mps = errors.New("away") }, 0, pollEvery, "recover leaveMIG layouts publish"},
			{"supervisor back", func() { f.mps = nil }, 0, pollEvery, "recover leaveMIG layouts publish"},
			{"GPU removed", func() {
				n := *f.inventory
				n.GPUs = n.GPUs[:7]
				f.inventory = &n
			}, Inventory, 0, "syncInventory removed recover leaveMIG layouts publish"},
			{"the label that requested a reset is gone", func() { f.resetDone = device }, Cluster, 0, "forgetReset"},
			// Reconcile waits for the API server all the time, which keeps nobody waiting.
			{"GPU added, disk full", func() { f.limitErr = errors.New("no space left") }, Inventory, 0, "limits"},
			{"periodic, disk full", func() {}, 0, time.Minute - 15*time.Second, "limits links recover leaveMIG layouts"},
			{"periodic", func() { f.limitErr = nil }, 0, time.Minute, "links recover leaveMIG layouts"},
		} {
			f.set(step.change)
			if step.mark != 0 {
				l.Mark(step.mark)
			}
			<-time.After(step.after)
			synctest.Wait()
			if got := f.took(); got != step.want {
				t.Errorf("%s: got %q, want %q", step.name, got, step.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("got %v, want an ordinary end", err)
		}
	})
}

// A call of the kubelet that waits for an agent has a GPU's lock for half a minute. Health, policies and slices of all GPUs do not
// wait for that; what waits is done once, and what depends on it after it.
func TestLoop_GPULocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "hgx-h100")
		f.occupied = []string{read(f, &f.inventory).GPUs[0].PCI.DeviceName()}
		l.Begin(t.Context())
		go func() { _ = l.Run(t.Context()) }()
		synctest.Wait()
		f.took()
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := f.took(); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		locked := make(chan struct{})
		f.set(func() { f.locked = locked })
		l.Mark(Partitions)
		<-time.After(partitionsSettle + time.Second)
		check("locked", "links scan")
		f.set(func() { f.occupied = nil })
		l.Mark(Health)
		check("the state of the node changes", "publish")
		for range 10 {
			l.Mark(Partitions)
			<-time.After(2 * time.Second)
		}
		check("partitions change ten times", strings.TrimSuffix(strings.Repeat("links ", 10), " "))
		f.set(func() { f.locked = nil })
		close(locked)
		check("unlocked", "scan layouts")
	})
}
