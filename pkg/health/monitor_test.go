package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
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
	partitions []gpu.Partition
	// answers by GPU; well where nothing is said.
	answers map[gpu.PCIAddress]Reading
	// openErr is of Events, nextErr of each wait.
	openErr, nextErr error
	// reports come next.
	reports chan gpu.Event
	opened  int
	closed  int
	waits   int
	asked   map[gpu.PCIAddress]int
	// askedBlind tells that a GPU was asked before events were watched.
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

func (f *fakeHardware) VerifyGPU(_ context.Context, g *gpu.GPU) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[g.PCI]++
	f.askedBlind = f.askedBlind || f.opened == 0
	return f.answers[g.PCI].Err
}

func (f *fakeHardware) RecoveryAction(_ context.Context, pci gpu.PCIAddress) (gpu.RecoveryAction, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers[pci].Action, nil
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

// diary is an Observer that writes down what it is told.
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
	synctest.Test(t, func(t *testing.T) {
		f.reports = make(chan gpu.Event, 1000) // of the bubble, or time would stand still
		ctx, cancel := context.WithCancel(t.Context())
		d := &diary{start: time.Now()}
		m := NewMonitor(f, d)
		m.Start(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx)
		}()
		steps(d)
		cancel()
		<-done
		if f.opened != f.closed && f.openErr == nil {
			t.Errorf("%d sets of events were made and %d ended", f.opened, f.closed)
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

func TestWhatTheDriverKnowsIsKnownBeforeTheFirstEvent(t *testing.T) {
	f := newFakeHardware()
	f.answer(1, Reading{Action: gpu.RecoveryReset})
	f.answer(2, Reading{Err: gpu.ErrLost})
	d := &diary{start: time.Now()}
	NewMonitor(f, d).Start(t.Context())
	check(t, "after the start", "0s: GPU 0 +[] -[] =[]\n0s: GPU 1 +[needs-reset] -[] =[needs-reset]\n0s: GPU 2 +[gpu-lost] -[] =[gpu-lost]", d.read())
	if f.askedBlind {
		t.Error("GPUs were asked before events were watched: what happens between would be missed")
	}
}

func TestAnEventIsToldAtOnceWithWhatTheDriverWantsDoneAboutIt(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(5 * time.Second)
		d.read()
		f.answer(1, Reading{Action: gpu.RecoveryReset})
		pci := f.pci(1)
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 119}
		pass(0)
		check(t, "after the event", "5s: GPU 1 XID 119\n5s: GPU 1 +[needs-reset xid-119] -[] =[needs-reset xid-119]",
			strings.ReplaceAll(d.read(), ", ", " "))
		f.answer(1, Reading{})
		pass(10 * time.Second)
		check(t, "after the reset", "15s: GPU 1 +[] -[needs-reset xid-119] =[]", strings.ReplaceAll(d.read(), ", ", " "))
	})
}

func TestCountedXIDsAreToldAndChangeNothing(t *testing.T) {
	f := newFakeHardware()
	f.node.GPUs[2].Offer = &gpu.Offer{Health: gpu.Health{IgnoreXIDs: []int{79}}}
	watch(t, f, func(d *diary) {
		pass(time.Second)
		d.read()
		zero, two := f.pci(0), f.pci(2)
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &zero, XID: 31}
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &two, XID: 79}
		pass(time.Second)
		check(t, "after the events", "1s: GPU 0 XID 31\n1s: GPU 2 XID 79", d.read())
	})
}

func TestAnErrorInAPartitionIsThatOfItsPlace(t *testing.T) {
	f := newFakeHardware()
	f.partitions = []gpu.Partition{{GI: 1, Placement: *lower}, {GI: 2, Placement: *upper}}
	watch(t, f, func(d *diary) {
		pass(time.Second)
		d.read()
		pci, second, gone := f.pci(0), 2, 7
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 94, GI: &second}
		pass(0)
		check(t, "in a partition", "1s: GPU 0 XID 94\n1s: GPU 0 +[xid-94 at 4:4] -[] =[xid-94 at 4:4]", d.read())
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 94, GI: &gone}
		pass(time.Second)
		check(t, "in one that is gone", "1s: GPU 0 XID 94\n1s: GPU 0 +[xid-94] -[] =[xid-94 at 4:4, xid-94]", d.read())
	})
}

func TestAGPUThatIsUnwellIsAskedMoreOften(t *testing.T) {
	f := newFakeHardware()
	f.answer(0, Reading{Err: gpu.ErrLost})
	f.answer(1, Reading{Err: errNVML}) // not a condition yet, but not well
	watch(t, f, func(*diary) {
		pass(25 * time.Second)
		for i, want := range []int{3, 3, 1} {
			if got := f.timesAsked(i); got != want {
				t.Errorf("GPU %d was asked %d times in 25 s, want %d", i, got, want)
			}
		}
		pass(36 * time.Second)
		if got := f.timesAsked(2); got != 2 {
			t.Errorf("the GPU that is well was asked %d times in a minute, want 2", got)
		}
	})
}

func TestAFloodOfEventsDoesNotBecomeAFloodOfPolls(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(*diary) {
		pass(2 * time.Second)
		before, pci := f.timesAsked(0), f.pci(0)
		for range 1000 {
			f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 31}
		}
		pass(3 * time.Second)
		if got := f.timesAsked(0) - before; got > 4 {
			t.Errorf("a thousand events made the GPU be asked %d times in 3 s", got)
		}
		if len(f.reports) > 0 {
			t.Errorf("%d events were not taken in", len(f.reports))
		}
	})
}

// An error of a wait names no GPU, and may come back at once for as long as the GPU is lost.
func TestAWaitThatFailsMakesAllGPUsBeAskedAndIsNotRepeatedInHaste(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(2 * time.Second)
		d.read()
		f.failWaits(gpu.ErrLost)
		f.answer(1, Reading{Err: gpu.ErrLost})
		_, before := f.counts()
		pass(2 * time.Second)
		check(t, "after the error", "3s: GPU 1 +[gpu-lost] -[] =[gpu-lost]", d.read())
		pass(10 * time.Minute)
		if _, waits := f.counts(); waits-before > 20 {
			t.Errorf("%d waits failed in ten minutes, want a pause that grows to a minute", waits-before)
		}
		f.failWaits(nil)
		f.answer(1, Reading{})
		pass(time.Minute)
		d.read()
		mig, pci := d.changesOfMIG(), f.pci(0)
		f.reports <- gpu.Event{Kind: gpu.MIGChanged, PCI: &pci}
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 79}
		pass(time.Second)
		if got := d.changesOfMIG() - mig; got != 1 {
			t.Errorf("%d changes of MIG were told, want 1", got)
		}
		if got := d.read(); !strings.Contains(got, "GPU 0 +[xid-79]") {
			t.Errorf("once the GPU is back, an event gives %q", got)
		}
	})
}

func TestWhatHappenedWhileNobodyWatchedIsAskedForWhenSomebodyDoesAgain(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(2 * time.Second)
		f.failWaits(gpu.ErrLost)
		f.answer(1, Reading{Err: gpu.ErrLost})
		pass(10 * time.Second) // in the midst of a pause
		d.read()
		f.failWaits(nil)
		f.answer(2, Reading{Err: gpu.ErrLost})
		before, _ := f.counts()
		for opened := before; opened == before; opened, _ = f.counts() {
			pass(time.Second)
		}
		pass(2 * time.Second)
		if got := d.read(); !strings.Contains(got, "GPU 2 +[gpu-lost]") {
			t.Errorf("soon after events are watched again: got %q, want that the second lost GPU is known", got)
		}
	})
}

func TestEventsOfAGPUThatIsBackAreWatchedAgain(t *testing.T) {
	f := newFakeHardware()
	f.answer(2, Reading{Err: gpu.ErrLost})
	watch(t, f, func(d *diary) {
		pass(5 * time.Second)
		before, _ := f.counts()
		mig := d.changesOfMIG()
		f.answer(2, Reading{})
		pass(10 * time.Second)
		if opened, _ := f.counts(); opened != before+1 || d.changesOfMIG() != mig+1 {
			t.Errorf("%d sets of events were made and %d changes of MIG told, want one of each: nobody knows what was missed",
				opened-before, d.changesOfMIG()-mig)
		}
	})
}

func TestADriverWithoutEventsIsPolled(t *testing.T) {
	f := newFakeHardware()
	f.openErr = gpu.ErrNotSupported
	watch(t, f, func(d *diary) {
		pass(time.Second)
		d.read()
		f.answer(0, Reading{Action: gpu.RecoveryReboot})
		pass(time.Minute)
		if got := d.read(); !strings.Contains(got, "GPU 0 +[needs-reboot]") {
			t.Errorf("within a minute: got %q, want needs-reboot", got)
		}
		if opened, _ := f.counts(); opened > 9 {
			t.Errorf("events were asked for %d times in a minute", opened)
		}
	})
}

func TestTheMonitorSaysThatItIsAliveAndWhenItChangedSomething(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(15 * time.Second)
		pci := f.pci(0)
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 79}
		pass(time.Second)
		want := []time.Duration{0, 10 * time.Second, 15 * time.Second}
		if diff := cmp.Diff(want, d.alive); diff != "" {
			t.Errorf("alive (-want +got):\n%s", diff)
		}
	})
}

func TestAnEventOfNobodyKnowsWhomMakesAllBeAsked(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(2 * time.Second)
		d.read()
		f.answer(2, Reading{Err: errors.Join(gpu.ErrLost)})
		f.reports <- gpu.Event{Kind: gpu.GPUUnavailable}
		pass(0)
		check(t, "after the event", "2s: GPU 2 +[gpu-lost] -[] =[gpu-lost]", d.read())
	})
}

func TestTheTableOfXIDsIsInOrder(t *testing.T) {
	for i, x := range table {
		if x.First > x.Last || i > 0 && table[i-1].Last >= x.First || x.Class < Counted || x.Class > Lasting || x.What == "" {
			t.Errorf("entry %d: %+v", i, x)
		}
	}
	for class, list := range map[Class][]int{
		Counted: {13, 31, 43, 45, 68, 109, 63, 154},
		Passing: {92, 94, 1000, 999, 0},
		Lasting: {46, 48, 64, 74, 79, 95, 119, 120, 140, 143, 144, 150, 171, 172},
	} {
		for _, n := range list {
			if got := find(n).Class; got != class {
				t.Errorf("XID %d is %s, want %s", n, got, class)
			}
		}
	}
}

func TestTheDocumentationHasTheTable(t *testing.T) {
	data, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "| XID | what happened | class |\n| --- | --- | --- |\n")
	got, _, _ := strings.Cut(rest, "\n\n")
	var want []string
	for _, x := range table {
		numbers := fmt.Sprint(x.First)
		if x.Last > x.First {
			numbers = fmt.Sprintf("%d to %d", x.First, x.Last)
		}
		want = append(want, fmt.Sprintf("| %s | %s | %s |", numbers, x.What, x.Class))
	}
	check(t, "table of XIDs", strings.Join(want, "\n"), got)
	for _, reason := range []string{
		ReasonLost, ReasonReplaced, ReasonUnreachable, ReasonUnavailable, ReasonDoubleBitECC, ReasonNeedsReboot, ReasonNeedsBusReset,
		ReasonDrainAndReset, ReasonNeedsReset, ReasonDrainP2P, ReasonNeedsIMEX, ReasonNeedsSomething,
	} {
		if !strings.Contains(string(data), "\n| `"+reason+"` |") {
			t.Errorf("the documentation does not say what to do about %s", reason)
		}
	}
}
