// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// reset resets a GPU on request.
func (b *modeBed) reset(i int, request string) error {
	b.t.Helper()
	return b.Modes.BeginReset(b.name(i), request)(b.t.Context())
}

// resets counts the resets of all GPUs that WasReset has heard of.
func (b *modeBed) resets() *int {
	count := 0
	b.Modes.WasReset = func(gpu.PCIAddress) { count++ }
	return &count
}

// A GPU is reset in the mode that it has, once for a request, and its layout is there again afterwards.
func TestModes_Reset(t *testing.T) {
	b := newModeBed(t)
	count := b.resets()
	must(t, (simTool{root: b.root}).SetPersistence(t.Context(), b.session.Node().GPUs[0].PCI, true))
	mustPrepare(t, b.Preparer, deviceClaim("other", b.name(3)))
	for range 2 {
		must(t, b.reset(0, "first"))
		if *count != 1 || b.Modes.Resets.Done() != "first" {
			t.Fatalf("%d resets, the last for %q; want one, for the first request", *count, b.Modes.Resets.Done())
		}
	}
	b.wantMode(0, gpuState{Persistence: true})
	b.wants[0] = true
	must(t, b.change(0))
	b.Partitions.KeepLayouts(t.Context())
	laid := sortedText(instancesOf(t, b.other))
	must(t, b.reset(0, "second"))
	equal(t, "instances after the reset", []string{}, instancesOf(t, b.other))
	b.wantMode(0, gpuState{Current: true, Pending: true, Published: true, Persistence: true})
	if problems := b.Partitions.KeepLayouts(t.Context()); len(problems) > 0 {
		t.Fatal(problems)
	}
	equal(t, "instances of the layout", laid, sortedText(instancesOf(t, b.other)))
	b.Modes.Resets.Forget(t.Context())
	must(t, b.reset(0, "second"))
	if *count != 3 {
		t.Errorf("%d resets, want one more once the request was forgotten", *count)
	}
}

// A plugin that has not read the record of the last reset does not repeat it.
func TestModes_ResetByAnother(t *testing.T) {
	b := newModeBed(t)
	must(t, b.reset(0, "first"))
	count := b.resets()
	b.Modes.Resets.set("")
	must(t, b.reset(0, "first"))
	if *count != 0 {
		t.Error("the GPU was reset again")
	}
}

// Whatever uses the GPU is named, and the GPU is not reset.
func TestModes_ResetInUse(t *testing.T) {
	tests := map[string]struct {
		use  func(b *modeBed)
		want string
	}{
		"claim":              {func(b *modeBed) { mustPrepare(b.t, b.Preparer, deviceClaim("c", b.name(0))) }, "allocated to claims"},
		"claim not prepared": {func(b *modeBed) { b.api = []*resourceapi.ResourceClaim{deviceClaim("c", b.name(0))} }, "which is not prepared yet"},
		"agent":              {func(b *modeBed) { b.holders = []Holder{{4711, "nv-hostengine"}} }, "in use: open in nv-hostengine (process 4711)"},
		"process": {func(b *modeBed) {
			_ = b.other.Clients().Add(0, sim.Client{PID: 71, Name: "python", GPUInstance: -1, ComputeInstance: -1})
		}, "processes [71]"},
		"reset fails": {func(b *modeBed) {
			_, _ = b.other.Faults().Inject(sim.Fault{GPU: 0, Call: sim.CallReset, Code: sim.CodeUnknown})
		}, "gpuReset"},
		"unmanaged partition": {func(b *modeBed) {
			b.wants[0] = true
			must(b.t, b.change(0))
			must(b.t, b.other.Init())
			_, err := b.other.Device(0).MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 0, Size: 1})
			must(b.t, err)
		}, "a partition that Cleave did not create"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			count := b.resets()
			tt.use(b)
			if err := b.reset(0, "first"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error that says %q", err, tt.want)
			}
			if *count != 0 || b.Modes.Resets.Done() != "" || b.Modes.Left()[b.name(0)] {
				t.Errorf("%d resets, done %q, left %v; want none", *count, b.Modes.Resets.Done(), b.Modes.Left())
			}
			if usable := b.session.Usable(&b.session.Node().GPUs[0]); errors.Is(usable, gpu.ErrReleased) {
				t.Error("the GPU stays closed")
			}
		})
	}
}

// A full disk does not make a reset fail, and this process does not repeat it.
func TestModes_ResetNotRecorded(t *testing.T) {
	b := newModeBed(t)
	count := b.resets()
	b.disk.fail = func(op, path string) error {
		if strings.HasSuffix(path, "reset.json") && op != "Remove" && op != "ReadFile" {
			return syscall.ENOSPC
		}
		return nil
	}
	for range 2 {
		must(t, b.reset(0, "first"))
	}
	if *count != 1 {
		t.Errorf("%d resets, want one", *count)
	}
}

// failsUntilReset has the driver refuse to change the partitions of a GPU, as it needs a reset first.
func (b *modeBed) failsUntilReset(i int, calls ...string) {
	b.t.Helper()
	for _, call := range calls {
		_, err := b.other.Faults().Inject(sim.Fault{GPU: i, Call: call, Code: sim.CodeResetRequired})
		must(b.t, err)
	}
}

// A GPU fails, and the driver destroys no partition of it and lists no process before its reset. The partitions of Cleave end with the
// reset, whether they are of the layout or of a claim whose pod has ended. What is created in their places afterwards is someone else's.
func TestModes_ResetEndsPartitions(t *testing.T) {
	for _, what := range []string{"layout", "claim"} {
		t.Run(what, func(t *testing.T) {
			b := newModeBed(t)
			b.wants[0] = true
			must(t, b.change(0))
			if what == "layout" {
				b.Partitions.KeepLayouts(t.Context())
			} else {
				b.prepare("c", b.name(0, 5, 0), b.name(1))
			}
			b.failsUntilReset(0, "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy", "nvmlDeviceGetComputeRunningProcesses")
			if what == "claim" {
				b.unprepare("c")
			}
			count := b.resets()
			if err := b.reset(0, "first"); err != nil || *count != 1 {
				t.Fatalf("%d resets, %v; want one: nothing else makes the GPU usable again", *count, err)
			}
			must(t, b.other.Faults().Clear(0))
			must(t, b.other.Init())
			_, err := b.other.Device(0).MIG().CreateGPUInstanceWithPlacement(5, gpu.Placement{Start: 0, Size: 4})
			must(t, err)
			b.wants[0] = false
			b.Recover(t.Context())
			b.Partitions.KeepLayouts(t.Context())
			if r := b.Ledger.Record("c"); r != nil {
				t.Errorf("the claim stays on record: %v", r.State)
			}
			equal(t, "instances of others", 1, len(instancesOf(t, b.other)))
		})
	}
}
