// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestMonitor_FirstLook(t *testing.T) {
	f := newFakeHardware()
	f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReset}})
	f.answer(2, Reading{Err: gpu.ErrLost})
	d := &diary{start: time.Now()}
	NewMonitor(f, d).Start(t.Context())
	check(t, "after the start", "0s: GPU 0 +[] -[] =[]\n0s: GPU 1 +[needs-reset] -[] =[needs-reset]\n0s: GPU 2 +[gpu-lost] -[] =[gpu-lost]",
		d.read())
	if f.askedBlind {
		t.Error("GPUs were asked before events were watched: what happens between would be missed")
	}
}

func TestMonitor_Event(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(d *diary) {
		pass(5 * time.Second)
		d.read()
		f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReset}})
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

func TestMonitor_ConditionLasts(t *testing.T) {
	f := newFakeHardware()
	f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReset}})
	watch(t, f, func(d *diary) {
		pass(20 * time.Minute)
		d.read()
		f.answer(2, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReset}})
		pass(9 * time.Minute)
		d.read()
		pass(2 * time.Minute)
		check(t, "half an hour later", "30m0s: GPU 1 +[needs-reset] -[] =[needs-reset]", d.read())
		f.answer(1, Reading{})
		f.answer(2, Reading{})
		pass(10 * time.Second)
		d.read()
		pass(time.Hour)
		check(t, "once they are over", "", d.read())
	})
}

func TestMonitor_CountedXID(t *testing.T) {
	f := newFakeHardware()
	f.ignored = map[int][]int{2: {79}}
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

func TestMonitor_PartitionXID(t *testing.T) {
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

func TestMonitor_PollInterval(t *testing.T) {
	f := newFakeHardware()
	f.answer(0, Reading{Err: gpu.ErrLost})
	f.answer(1, Reading{Err: errNVML}) // no condition yet, but not healthy
	watch(t, f, func(*diary) {
		pass(25 * time.Second)
		for i, want := range []int{3, 3, 1} {
			if got := f.timesAsked(i); got != want {
				t.Errorf("GPU %d was asked %d times in 25 s, want %d", i, got, want)
			}
		}
		pass(36 * time.Second)
		if got := f.timesAsked(2); got != 2 {
			t.Errorf("the healthy GPU was polled %d times in a minute, want 2", got)
		}
	})
}

func TestMonitor_EventFlood(t *testing.T) {
	f := newFakeHardware()
	watch(t, f, func(*diary) {
		pass(2 * time.Second)
		before, pci := f.timesAsked(0), f.pci(0)
		for range 1000 {
			f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 31}
		}
		pass(3 * time.Second)
		if got := f.timesAsked(0) - before; got > 4 {
			t.Errorf("a thousand events caused %d polls in 3 s", got)
		}
		if len(f.reports) > 0 {
			t.Errorf("%d events were not taken in", len(f.reports))
		}
	})
}

// An error of a wait names no GPU, and may come back at once for as long as the GPU is lost.
func TestMonitor_WaitFails(t *testing.T) {
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
			t.Errorf("%d MIG changes were reported, want 1", got)
		}
		if got := d.read(); !strings.Contains(got, "GPU 0 +[xid-79]") {
			t.Errorf("once the GPU is back, an event gives %q", got)
		}
	})
}

func TestMonitor_EventsRecovered(t *testing.T) {
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

func TestMonitor_GPUReturns(t *testing.T) {
	f := newFakeHardware()
	f.answer(2, Reading{Err: gpu.ErrLost})
	watch(t, f, func(d *diary) {
		pass(5 * time.Second)
		before, _ := f.counts()
		mig := d.changesOfMIG()
		f.answer(2, Reading{})
		pass(10 * time.Second)
		if opened, _ := f.counts(); opened != before+1 || d.changesOfMIG() != mig+1 {
			t.Errorf("%d subscriptions and %d MIG changes, want one of each: events may have been missed",
				opened-before, d.changesOfMIG()-mig)
		}
	})
}

func TestMonitor_NoEvents(t *testing.T) {
	f := newFakeHardware()
	f.openErr = gpu.ErrNotSupported
	watch(t, f, func(d *diary) {
		pass(time.Second)
		d.read()
		f.answer(0, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReboot}})
		pass(time.Minute)
		if got := d.read(); !strings.Contains(got, "GPU 0 +[needs-reboot]") {
			t.Errorf("within a minute: got %q, want needs-reboot", got)
		}
		if opened, _ := f.counts(); opened > 9 {
			t.Errorf("events were asked for %d times in a minute", opened)
		}
	})
}

func TestMonitor_Alive(t *testing.T) {
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

func TestMonitor_EventWithoutGPU(t *testing.T) {
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

func TestMonitor_HangingGPU(t *testing.T) {
	f := newFakeHardware()
	f.hang = make(chan struct{})
	watch(t, f, func(d *diary) {
		pass(firstPollWait)
		d.read()
		f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryReset}})
		pci := f.pci(1)
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 119}
		pass(time.Second)
		if got := d.read(); !strings.Contains(got, "GPU 1 +[needs-reset, xid-119]") {
			t.Errorf("while GPU 0 hangs: got %q, want the condition of GPU 1", got)
		}
		pass(2 * time.Minute)
		if got := f.timesAsked(2); got < 3 {
			t.Errorf("GPU 2 was asked %d times in two minutes while GPU 0 hung, want at least 3", got)
		}
		close(f.hang)
		pass(2 * time.Second)
		if got := f.timesAsked(0); got != 1 {
			t.Errorf("GPU 0 was asked %d times while it hung, want once", got)
		}
	})
}

// A GPU that is closed for a reset is not asked, and what is known of it stays, until it is known to have been reset.
func TestMonitor_ClosedGPU(t *testing.T) {
	f := newFakeHardware()
	f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryUnknown}})
	watchWith(t, f, func(m *Monitor, d *diary) {
		pci := f.pci(1)
		f.reports <- gpu.Event{Kind: gpu.XIDReported, PCI: &pci, XID: 95}
		pass(5 * time.Second)
		if got := d.read(); !strings.Contains(got, "GPU 1 +[xid-95]") {
			t.Fatalf("got %q, want xid-95", got)
		}
		for _, window := range []time.Duration{time.Second / 2, 2 * time.Minute} {
			f.release(1, true)
			before := f.timesAsked(1)
			pass(window)
			if asked := f.timesAsked(1); asked != before {
				t.Errorf("the GPU was asked %d times while it was closed for %s", asked-before, window)
			}
			f.release(1, false)
			pass(2 * time.Minute)
			check(t, "after a reset that failed", "", d.read())
		}
		f.release(1, true)
		f.answer(1, Reading{Err: gpu.ErrReleased}) // a poll may come too late
		pass(time.Minute)
		f.answer(1, Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryUnknown}})
		f.release(1, false)
		m.Forget(pci)
		pass(2 * time.Second)
		if got := d.read(); !strings.Contains(got, "GPU 1 +[] -[xid-95] =[]") {
			t.Errorf("after a reset: got %q, want the end of xid-95", got)
		}
	})
}
