// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// loadBed is a node whose clock the test moves.
type loadBed struct {
	*Node
	t   *testing.T
	now time.Time
}

func newLoadBed(t *testing.T, model string) *loadBed {
	b := &loadBed{t: t, now: time.Unix(1_000_000, 0)}
	b.Node = testNode(t, model, WithClock(func() time.Time { return b.now }))
	return b
}

func (b *loadBed) pass(d time.Duration) { b.now = b.now.Add(d) }

func (b *loadBed) load(pid, gi, sm, dram int) {
	b.t.Helper()
	c := Client{PID: pid, Name: "python", GPUInstance: gi, ComputeInstance: min(gi, 0), Load: &Load{SM: sm, DRAM: dram}}
	must(b.t, b.Clients().SetLoad(0, c))
}

func (b *loadBed) gpm(gi int) GPMSample {
	b.t.Helper()
	s, err := b.Device(0).Telemetry().GPMSample(gi)
	must(b.t, err)
	return s
}

// between is the activity between two samples in whole percent.
func between(first, second GPMSample) [2]int {
	sm, dram, ok := second.Since(first)
	if !ok {
		return [2]int{-1, -1}
	}
	return [2]int{int(sm + .5), int(dram + .5)}
}

func TestLoad_GPM(t *testing.T) {
	b := newLoadBed(t, "hgx-h100")
	b.load(1, -1, 40, 10)
	b.pass(time.Second)
	first := b.gpm(-1)
	if got := between(first, b.gpm(-1)); got != [2]int{-1, -1} {
		t.Errorf("two samples of one reading differ by %v", got)
	}
	b.pass(5 * time.Second)
	b.load(1, -1, 0, 0)
	b.load(2, -1, 20, 0)
	b.pass(5 * time.Second)
	if got := between(first, b.gpm(-1)); got != [2]int{30, 5} {
		t.Errorf("got %v, want half of 40 and half of 20", got)
	}
	must(t, b.Clients().Remove(0, 2))
	last := b.gpm(-1)
	b.pass(time.Second)
	if got := between(last, b.gpm(-1)); got != [2]int{0, 0} {
		t.Errorf("got %v of a GPU that nobody uses", got)
	}
}

func TestLoad_Partition(t *testing.T) {
	b := newLoadBed(t, "hgx-h100")
	mig := b.Device(0).MIG()
	if _, err := mig.SetMIGMode(true); err != nil {
		t.Fatal(err)
	}
	gi, err := mig.CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 0, Size: 1})
	must(t, err)
	if _, err := gi.CreateComputeInstance(0); err != nil {
		t.Fatal(err)
	}
	b.load(1, gi.ID(), 50, 20)
	part, whole := b.gpm(gi.ID()), b.gpm(-1)
	b.pass(10 * time.Second)
	if got := between(part, b.gpm(gi.ID())); got != [2]int{50, 20} {
		t.Errorf("the partition has %v", got)
	}
	if got := between(whole, b.gpm(-1)); got != [2]int{6, 2} { // 16 of 132 multiprocessors
		t.Errorf("the GPU has %v", got)
	}
	telemetry := b.Device(0).Telemetry()
	if _, err := telemetry.ProcessUtilization(0); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("process utilization in MIG mode: %v", err)
	}
	if _, _, err := telemetry.Utilization(); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("utilization in MIG mode: %v", err)
	}
	if _, err := telemetry.GPMSample(5); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("GPM of no GPU instance: %v", err)
	}
}

func TestLoad_BeforeHopper(t *testing.T) {
	telemetry := newLoadBed(t, "dgx-a100").Device(0).Telemetry()
	if yes, err := telemetry.GPMSupported(); yes || err != nil {
		t.Errorf("got %t, %v", yes, err)
	}
	if _, err := telemetry.GPMSample(-1); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

func TestLoad_ProcessUtilization(t *testing.T) {
	b := newLoadBed(t, "hgx-h100")
	telemetry := b.Device(0).Telemetry()
	check := func(what string, since int64, want ...ProcessSample) {
		t.Helper()
		got, err := telemetry.ProcessUtilization(since)
		if err != nil && (len(want) > 0 || !errors.Is(err, gpu.ErrNotFound)) {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("nobody", 0)
	b.load(1, -1, 60, 20)
	b.load(2, -1, 0, 0)
	begun := b.now.UnixMicro()
	b.pass(10 * time.Second)
	check("a process and an idle one", begun, ProcessSample{PID: 1, Timestamp: b.now.UnixMicro(), SM: 60, DRAM: 20})
	ended := b.now.UnixMicro()
	must(t, b.Clients().Remove(0, 1))
	b.pass(10 * time.Second)
	check("half of the time", begun, ProcessSample{PID: 1, Timestamp: ended, SM: 30, DRAM: 10})
	check("since then", ended)
	b.pass(80 * time.Second)
	check("the buffer has forgotten it", 0)
}

func TestLoad_Energy(t *testing.T) {
	b := newLoadBed(t, "hgx-h100")
	telemetry := b.Device(0).Telemetry()
	joules := func() int {
		t.Helper()
		mJ, err := telemetry.TotalEnergy()
		must(t, err)
		return int(mJ / 1000)
	}
	start := joules()
	b.pass(10 * time.Second)
	if got := joules() - start; got != 700 { // a tenth of 700 W
		t.Errorf("idle: %d J, want 700", got)
	}
	b.load(1, -1, 100, 0)
	b.pass(10 * time.Second)
	if got := joules() - start; got != 700+5950 {
		t.Errorf("busy: %d J, want 6650", got)
	}
	must(t, b.Driver().ForceUnload())
	must(t, b.Driver().Load())
	if got := joules(); got != 0 {
		t.Errorf("after the driver was loaded again: %d J", got)
	}
}
