// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// modeUses are uses of a GPU that keep it from being reset, on request or to change its mode, and what says so. resetOnly: of a change
// TestModes_Change and TestModes_UnmanagedPartition tell it.
var modeUses = map[string]struct {
	use       func(b *modeBed)
	want      string
	resetOnly bool
}{
	"claim":              {func(b *modeBed) { mustPrepare(b.t, b.Preparer, deviceClaim("c", b.name(0))) }, "allocated to claims", true},
	"claim not prepared": {func(b *modeBed) { b.api = []*resourceapi.ResourceClaim{deviceClaim("c", b.name(0))} }, "which is not prepared yet", false},
	"agent":              {func(b *modeBed) { b.holders = []Holder{{4711, "nv-hostengine", ""}} }, "in use: open in nv-hostengine (process 4711)", false},
	"process": {func(b *modeBed) {
		_ = b.other.Clients().Add(0, sim.Client{PID: 71, Name: "python", GPUInstance: -1, ComputeInstance: -1})
	}, "processes [71]", false},
	"session that /proc does not show": {func(b *modeBed) {
		n, err := sim.Open(b.root)
		if err == nil {
			err = n.Init()
		}
		if err == nil {
			_, err = n.Device(0).Name()
		}
		must(b.t, err)
		// The session is open while its files are; the garbage collector closes those of a node nobody has.
		b.t.Cleanup(func() { _ = n.Shutdown() })
	}, "GPU 0 is open in", false},
	"kernel client": {func(b *modeBed) {
		_ = b.other.Driver().SetQuirk(sim.QuirkDRMHolds, true)
		b.Modes.HasDRM = func(*gpu.GPU) bool { return true }
		b.holders = []Holder{{2, "nv-fabricmanage", ""}}
	}, "nvidia_drm has", false},
	"process of a pod by the name of one that yields": {func(b *modeBed) {
		_ = b.other.Driver().SetQuirk(sim.QuirkDRMHolds, true)
		b.Modes.HasDRM = func(*gpu.GPU) bool { return true }
		b.holders = []Holder{{2, "nv-fabricmanage", ""}, {4711, "nvidia-persiste", "pod-uid"}}
	}, "open in nvidia-persiste (process 4711, pod pod-uid)", false},
	"others must be reset with it": {func(b *modeBed) {
		_ = b.other.Driver().SetQuirk(sim.QuirkResetTogether, true)
	}, "can be reset only together with GPUs [1 2 3 4 5 6 7]", false},
	"reset fails": {func(b *modeBed) {
		_, _ = b.other.Faults().Inject(sim.Fault{GPU: 0, Call: sim.CallReset, Code: sim.CodeUnknown})
	}, "gpuReset", false},
	"unmanaged partition": {func(b *modeBed) {
		b.wants[0] = true
		must(b.t, b.change(0))
		b.createUnmanaged(19, 0, 1)
	}, "a partition that Cleave did not create", true},
}

// createUnmanaged creates a GPU instance on the first GPU as another tool does.
func (b *modeBed) createUnmanaged(profile, start, size int) *sim.GPUInstance {
	b.t.Helper()
	must(b.t, b.other.Init())
	gi, err := b.other.Device(0).MIG().CreateGPUInstanceWithPlacement(profile, gpu.Placement{Start: start, Size: size})
	must(b.t, err)
	return gi
}

// Whatever has the GPU is named, and the GPU stays as it is, in its mode and without a reset.
func TestModes_InUse(t *testing.T) {
	for name, tt := range modeUses {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			count := b.resets()
			tt.use(b)
			wantError(t, b.reset(0, "first"), tt.want)
			if *count != 0 || b.Modes.Resets.Done() != "" || b.Modes.Left()[b.name(0)] {
				t.Errorf("%d resets, done %q, left %v; want none", *count, b.Modes.Resets.Done(), b.Modes.Left())
			}
			if usable := b.session.Usable(&b.session.Node().GPUs[0]); errors.Is(usable, gpu.ErrReleased) {
				t.Error("the GPU stays closed")
			}
			if tt.resetOnly {
				return
			}
			b.wants[0] = true
			wantError(t, b.change(0), tt.want)
			b.wantMode(0, outOfMIG)
			b.wants[0] = false
			mustPrepare(t, b.Preparer, deviceClaim("whole", b.name(0)))
		})
	}
}

// Only what is open in pods alone, which compute nothing, is for labels of clients to close.
func TestModes_HeldByPods(t *testing.T) {
	python := sim.Client{PID: 71, Name: "python", GPUInstance: -1, ComputeInstance: -1}
	for name, tt := range map[string]struct {
		use  func(b *modeBed)
		held bool
	}{
		"pods":                    {func(*modeBed) {}, true},
		"pods, and persistence":   {func(b *modeBed) { b.holders = append(b.holders, Holder{1, "nvidia-persiste", ""}) }, true},
		"a process of the host":   {func(b *modeBed) { b.holders = append(b.holders, Holder{73, "nv-hostengine", ""}) }, false},
		"a process that computes": {func(b *modeBed) { _ = b.other.Clients().Add(0, python) }, false},
		"a claim":                 {func(b *modeBed) { b.api = []*resourceapi.ResourceClaim{deviceClaim("c", b.name(0))} }, false},
		"pods cannot be told":     {func(b *modeBed) { b.Modes.InPods = nil }, false},
		"not all can be seen": {func(b *modeBed) {
			b.gate.holders = func(context.Context, *gpu.GPU, *gpu.Partition) ([]Holder, error) {
				return b.holders, errors.New("hidden")
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			b.holders = []Holder{{71, "nv-hostengine", ""}, {72, "dcgm-exporter", ""}}
			b.Modes.InPods = func(_ context.Context, pids []int) bool { return slices.Equal(pids, []int{71, 72}) }
			tt.use(b)
			b.wants[0] = true
			err := b.change(0)
			if !errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrHeldByPods) != tt.held {
				t.Errorf("held by pods alone: %t, want %t (%v)", errors.Is(err, gpu.ErrHeldByPods), tt.held, err)
			}
			if tt.held && !strings.HasPrefix(err.Error(), "in use: open in nv-hostengine (process 71), dcgm-exporter (process 72)") {
				t.Errorf("got %q, want who has it open", err)
			}
		})
	}
}

// DCGM keeps a partition open that has to go: one of the layout, or of a claim that has ended. It is for labels of clients to close if all
// that have the GPU open, or one of its partitions, run in pods.
func TestModes_PartitionsHeldByPods(t *testing.T) {
	for name, tt := range map[string]struct {
		of   string // a claim, or empty for the layout
		with func(part *gpu.Partition) []Holder
		held bool
	}{
		"layout":               {"", func(*gpu.Partition) []Holder { return nil }, true},
		"claim":                {"c", func(*gpu.Partition) []Holder { return nil }, true},
		"layout, and the host": {"", hostHolds, false},
		"claim, and the host":  {"c", hostHolds, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			b.wants[0] = true
			must(t, b.change(0))
			if tt.of == "" {
				b.keep()
			} else {
				b.prepare("c", b.name(0, 5, 0))
			}
			for _, call := range list("nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy") {
				_, err := b.other.Faults().Inject(sim.Fault{GPU: 0, Call: call, Code: sim.CodeInUse})
				must(t, err)
			}
			b.gate.holders = func(_ context.Context, _ *gpu.GPU, part *gpu.Partition) ([]Holder, error) {
				return append([]Holder{{71, "nv-hostengine", ""}}, tt.with(part)...), nil
			}
			b.Modes.InPods = func(_ context.Context, pids []int) bool { return !slices.Contains(pids, 73) }
			b.wants[0] = false
			b.SetHardware(b.backend.Load().hardware, b.specs)
			if tt.of != "" {
				_ = b.Unprepare(t.Context(), refOf(deviceClaim("c")))
			}
			for what, err := range map[string]error{"change": b.change(0), "reset": b.reset(0, "first")} {
				if !errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrHeldByPods) != tt.held {
					t.Errorf("%s: held by pods alone: %t, want %t (%v)", what, errors.Is(err, gpu.ErrHeldByPods), tt.held, err)
				}
			}
			must(t, b.other.Faults().Clear(0))
			b.gate.holders = noHolders
			if tt.of != "" { // its device would be gone
				b.api = []*resourceapi.ResourceClaim{deviceClaim("c", b.name(0, 5, 0))}
				wantError(t, b.change(0), "which has ended and is not deallocated yet")
				b.api = nil
			}
			must(t, b.change(0))
			b.wantMode(0, outOfMIG)
		})
	}
}

// hostHolds has a DCGM of the host keep partitions open.
func hostHolds(part *gpu.Partition) []Holder {
	if part == nil {
		return nil
	}
	return []Holder{{73, "nv-hostengine", ""}}
}

// What Cleave did not create is never destroyed.
func TestModes_UnmanagedPartition(t *testing.T) {
	b := newModeBed(t)
	b.wants[0] = true
	must(t, b.change(0))
	gi := b.createUnmanaged(19, 0, 1)
	b.wants[0] = false
	if err := b.change(0); !errors.Is(err, gpu.ErrPartitioned) || !strings.Contains(err.Error(), "a partition that Cleave did not create") {
		t.Errorf("got %v", err)
	}
	if _, err := gi.Info(); err != nil {
		t.Errorf("the partition is gone: %v", err)
	}
	b.wantMode(0, inMIG)
}
