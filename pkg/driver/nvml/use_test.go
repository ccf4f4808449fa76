// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func (b *bed) use(q nvml.UseQuery) gpu.Reading {
	b.t.Helper()
	r, err := b.meter.Read(b.t.Context(), b.gpu(0).PCI, q)
	must(b.t, err)
	return r
}

func (b *bed) busy(pid, gi, sm int) {
	b.t.Helper()
	c := sim.Client{PID: pid, GPUInstance: gi, ComputeInstance: min(gi, 0), Memory: 1 << 30, Load: &sim.Load{SM: sm}}
	must(b.t, b.node.Clients().SetLoad(0, c))
}

// simClock is the time of a node whose load is measured; looks at it are of the real time.
type simClock struct{ ahead time.Duration }

func (c *simClock) now() time.Time { return time.Now().Add(c.ahead) }

func is(got *float64, want float64) bool { return got != nil && math.Abs(*got-want) < .02 }

func TestUse_Whole(t *testing.T) {
	clock := &simClock{}
	b := newBed(t, "hgx-h100", sim.WithClock(clock.now))
	b.busy(7, gpu.WholeGPU, 40)
	q := nvml.UseQuery{GPM: map[int]string{gpu.WholeGPU: "a"}, Samples: true}
	if r := b.use(q); len(r.GPM) > 0 || r.Samples != nil || r.Device == nil {
		t.Errorf("the first look has %+v", r)
	}
	if r := b.use(q); len(r.GPM) > 0 {
		t.Errorf("a look at once has %+v", r) // less than 100 ms later
	}
	waitGPM()
	clock.ahead += 10 * time.Second
	r := b.use(q)
	if !is(r.GPM[gpu.WholeGPU].SM, .4) || r.Device != nil || r.Energy == nil {
		t.Errorf("got %+v", r)
	}
	if len(r.Processes) != 1 || r.Processes[0].PID != 7 || *r.Processes[0].Memory != 1<<30 || r.Processes[0].GI != gpu.WholeGPU {
		t.Errorf("got %+v", r.Processes)
	}
	if len(r.Samples) != 1 || r.Samples[0].PID != 7 || math.Abs(r.Samples[0].SM-.4) > .01 {
		t.Errorf("got %+v", r.Samples)
	}
	waitGPM()
	q.GPM[gpu.WholeGPU] = "b"
	if r := b.use(q); len(r.GPM) > 0 {
		t.Errorf("the activity of another user is %+v", r.GPM)
	}
}

// waitGPM waits until counters of GPM have changed.
func waitGPM() { <-time.After(110 * time.Millisecond) }

func TestUse_Partitions(t *testing.T) {
	clock := &simClock{}
	b := newBed(t, "hgx-h100", sim.WithClock(clock.now))
	b.enable()
	one, two := b.create(19, 0), b.create(19, 1)
	b.busy(7, one.GI, 30)
	q := nvml.UseQuery{GPM: map[int]string{one.GI: "a", two.GI: "b", 99: "gone"}, Samples: true}
	b.use(q)
	waitGPM()
	clock.ahead += 10 * time.Second
	r := b.use(q)
	if !is(r.GPM[one.GI].SM, .3) || !is(r.GPM[two.GI].SM, 0) || len(r.GPM) != 2 || r.Samples != nil || r.Device != nil {
		t.Errorf("got %+v", r)
	}
	if len(r.Processes) != 1 || r.Processes[0].GI != one.GI {
		t.Errorf("got %+v", r.Processes)
	}
}

func TestUse_BeforeHopper(t *testing.T) {
	b := newBed(t, "dgx-a100")
	b.busy(7, gpu.WholeGPU, 40)
	for range 2 {
		if r := b.use(nvml.UseQuery{GPM: map[int]string{gpu.WholeGPU: "a"}}); r.Device == nil || !is(r.Device.SM, .4) || r.GPM != nil {
			t.Errorf("got %+v", r)
		}
	}
}

// What one call cannot say, others do.
func TestUse_CallFails(t *testing.T) {
	b := newBed(t, "hgx-h100")
	if _, err := b.node.Faults().Inject(sim.Fault{GPU: 0, Call: "nvmlDeviceGetComputeRunningProcesses_v3", Code: sim.CodeUnknown}); err != nil {
		t.Fatal(err)
	}
	if r := b.use(nvml.UseQuery{}); r.Processes != nil || r.Energy == nil {
		t.Errorf("got %+v", r)
	}
	must(t, b.node.Hardware().Lose(0))
	if _, err := b.meter.Read(t.Context(), b.gpu(0).PCI, nvml.UseQuery{}); err != nil && !errors.Is(err, gpu.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// hangingLook begins a look, and returns once a call of it hangs.
func (b *bed) hangingLook(ctx context.Context) (done chan error) {
	b.t.Helper()
	const call = "nvmlDeviceGetTotalEnergyConsumption"
	must(b.t, b.node.Faults().HangCall(0, call))
	done = make(chan error, 1)
	go func() {
		_, err := b.meter.Read(ctx, b.gpu(0).PCI, nvml.UseQuery{})
		done <- err
	}()
	for b.node.Calls().Of(call) == 0 {
		<-time.After(time.Millisecond)
	}
	return done
}

// A call that hangs keeps nobody else from the GPU.
func TestUse_HangsAlone(t *testing.T) {
	b := newBed(t, "hgx-h100")
	done := b.hangingLook(t.Context())
	if _, err := b.Processes(t.Context(), b.gpu(0).PCI); err != nil {
		t.Errorf("another call: %v", err)
	}
	mustFail(t, b.Close(), gpu.ErrHangs)
	must(t, b.node.Faults().Clear(0))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A driver is released while a look is under way, whose caller has gone: the session that stays open keeps its module loaded for good.
func TestClose_LookUnderWay(t *testing.T) {
	b := newBed(t, "hgx-h100")
	ctx, cancel := context.WithCancel(t.Context())
	done := b.hangingLook(ctx)
	cancel()
	mustFail(t, <-done, context.Canceled)
	time.AfterFunc(50*time.Millisecond, func() { _ = b.node.Faults().Clear(0) })
	if err := b.Close(); err != nil {
		t.Errorf("the call ends soon: %v", err)
	}
}
