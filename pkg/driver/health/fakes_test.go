// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// TestMain keeps the log out of the results: what it says is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}

// fakeHardware is a node of three GPUs that are as a test says.
type fakeHardware struct {
	mu         sync.Mutex // of all but reports
	node       gpu.Node
	ignored    map[int][]int // XIDs by index
	partitions []gpu.Partition
	// answers by GPU; healthy by default.
	answers map[gpu.PCIAddress]Reading
	// openErr is of Events, nextErr of each wait.
	openErr, nextErr error
	// reports come next.
	reports chan gpu.Event
	opened  int
	closed  int
	// released are the GPUs that are closed for a reset.
	released map[gpu.PCIAddress]bool
	waits    int
	asked    map[gpu.PCIAddress]int
	// hang, where it is set, keeps those who ask GPU 0 until it is closed.
	hang chan struct{}
	// askedBlind is set if a GPU was polled before the subscription.
	askedBlind bool
}

func newFakeHardware() *fakeHardware {
	f := &fakeHardware{answers: map[gpu.PCIAddress]Reading{}, asked: map[gpu.PCIAddress]int{}}
	for i := range 3 {
		f.node.GPUs = append(f.node.GPUs, gpu.GPU{PCI: gpu.PCIAddress{Bus: uint8(i)}, UUID: fmt.Sprintf("GPU-%d", i), Index: i})
	}
	return f
}

func (f *fakeHardware) pci(i int) gpu.PCIAddress { return f.node.GPUs[i].PCI }
func (f *fakeHardware) Node() *gpu.Node          { return &f.node }

func (f *fakeHardware) IgnoredXIDs(g *gpu.GPU) []int { return f.ignored[g.Index] }

func (f *fakeHardware) Events(context.Context) (Events, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	return f, f.openErr
}

func (f *fakeHardware) Next(timeout time.Duration) (gpu.Event, bool, error) {
	f.mu.Lock()
	f.waits++
	err := f.nextErr
	f.mu.Unlock()
	if err != nil {
		return gpu.Event{}, false, err
	}
	if timeout == 0 {
		select {
		case e := <-f.reports:
			return e, true, nil
		default:
			return gpu.Event{}, false, nil
		}
	}
	select {
	case e := <-f.reports:
		return e, true, nil
	case <-time.After(timeout):
		return gpu.Event{}, false, nil
	}
}

func (f *fakeHardware) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *fakeHardware) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	if f.hang != nil && g.PCI == f.pci(0) {
		select {
		case <-f.hang:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[g.PCI]++
	f.askedBlind = f.askedBlind || f.opened == 0
	return f.answers[g.PCI].Err
}

func (f *fakeHardware) Recovery(_ context.Context, pci gpu.PCIAddress) (gpu.Recovery, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers[pci].Recovery, nil
}

func (f *fakeHardware) Fabric(_ context.Context, g *gpu.GPU) (gpu.FabricState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers[g.PCI].Fabric, nil
}

func (f *fakeHardware) Closed(g *gpu.GPU) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.released[g.PCI]
}

// release closes or opens a GPU.
func (f *fakeHardware) release(i int, closed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = map[gpu.PCIAddress]bool{f.pci(i): closed}
}

func (f *fakeHardware) RefusesWork(context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers[f.pci(0)].Refuses, nil
}

func (f *fakeHardware) Partitions(context.Context, *gpu.GPU) ([]gpu.Partition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.partitions, nil
}

// answer changes what a GPU answers.
func (f *fakeHardware) answer(i int, r Reading) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[f.pci(i)] = r
}

// timesAsked is how often a GPU was asked.
func (f *fakeHardware) timesAsked(i int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[f.pci(i)]
}

// counts are how often events were asked for and waited for.
func (f *fakeHardware) counts() (opened, waits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened, f.waits
}

// failWaits changes what waits for events come to.
func (f *fakeHardware) failWaits(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextErr = err
}

// diary is an Observer that records its calls.
type diary struct {
	mu    sync.Mutex
	start time.Time
	lines []string
	alive []time.Duration
	mig   int
}

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := time.Since(d.start).Truncate(time.Second)
	d.lines = append(d.lines, fmt.Sprintf("%s: ", at)+fmt.Sprintf(format, args...))
}

func (d *diary) XID(g *gpu.GPU, e gpu.Event) { d.write("GPU %d XID %d", g.Index, e.XID) }

func (d *diary) MIGChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mig++
}

func (d *diary) Alive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alive = append(d.alive, time.Since(d.start).Truncate(time.Second))
}

// changesOfMIG is how often MIGChanged was called.
func (d *diary) changesOfMIG() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mig
}

func (d *diary) Changed(c Change) {
	d.write("GPU %d +[%s] -[%s] =[%s]", c.GPU.Index, names(c.Began), names(c.Ended), names(c.Now))
}

// read takes what was written since it was read last.
func (d *diary) read() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := strings.Join(d.lines, "\n")
	d.lines = nil
	return all
}

// watch runs a monitor for as long as a test's steps take. Time is the test's own.
func watch(t *testing.T, f *fakeHardware, steps func(d *diary)) {
	t.Helper()
	watchWith(t, f, func(_ *Monitor, d *diary) { steps(d) })
}

func watchWith(t *testing.T, f *fakeHardware, steps func(m *Monitor, d *diary)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.reports = make(chan gpu.Event, 1000) // of the bubble, or time would stand still
		if f.hang != nil {
			f.hang = make(chan struct{})
		}
		ctx, cancel := context.WithCancel(t.Context())
		d := &diary{start: time.Now()}
		m := NewMonitor(f, d)
		m.Start(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx)
		}()
		steps(m, d)
		cancel()
		<-done
		if f.opened != f.closed && f.openErr == nil {
			t.Errorf("%d subscriptions were opened and %d closed", f.opened, f.closed)
		}
	})
}

// pass lets time pass, and whatever has to happen within it.
func pass(d time.Duration) {
	<-time.After(d + time.Millisecond)
	synctest.Wait()
}

func check(t *testing.T, what, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
