// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
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
	b.keep()
	laid := sortedText(instancesOf(t, b.other))
	must(t, b.reset(0, "second"))
	equal(t, "instances after the reset", []string{}, instancesOf(t, b.other))
	b.wantMode(0, gpuState{Current: true, Pending: true, Published: true, Persistence: true})
	b.kept()
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

// A GPU fails, and the driver destroys no partition of it and lists no process before its reset. The partitions of Cleave end with the
// reset, whether they are of the layout or of a claim whose pod has ended. What is created in their places afterwards is someone else's.
func TestModes_ResetEndsPartitions(t *testing.T) {
	for _, what := range []string{"layout", "claim"} {
		t.Run(what, func(t *testing.T) {
			b := newModeBed(t)
			b.wants[0] = true
			must(t, b.change(0))
			if what == "layout" {
				b.keep()
			} else {
				b.prepare("c", b.name(0, 5, 0), b.name(1))
			}
			for _, call := range list("nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy", "nvmlDeviceGetComputeRunningProcesses") {
				_, err := b.other.Faults().Inject(sim.Fault{GPU: 0, Call: call, Code: sim.CodeResetRequired})
				must(t, err)
			}
			if what == "claim" {
				b.unprepare("c")
			}
			count := b.resets()
			if err := b.reset(0, "first"); err != nil || *count != 1 {
				t.Fatalf("%d resets, %v; want one: nothing else makes the GPU usable again", *count, err)
			}
			must(t, b.other.Faults().Clear(0))
			b.createUnmanaged(5, 0, 4)
			b.wants[0] = false
			b.Recover(t.Context())
			b.keep()
			if r := b.Ledger.Record("c"); r != nil {
				t.Errorf("the claim stays on record: %v", r.State)
			}
			equal(t, "instances of others", 1, len(instancesOf(t, b.other)))
		})
	}
}

// failedTool is nvidia-smi for a GPU that fails once its persistence mode is off: it cannot be opened any more, until it is reset. refuses
// counts the resets before that which are refused.
type failedTool struct {
	simTool
	node    *sim.Node
	refuses int
	late    bool // the first query waits for another nvidia-smi
}

func (f *failedTool) Query(ctx context.Context, pci gpu.PCIAddress) (smi.State, error) {
	if f.late {
		f.late = false
		return smi.State{}, fmt.Errorf("wait for nvidia-smi: %w", context.DeadlineExceeded)
	}
	return f.simTool.Query(ctx, pci)
}

func (f *failedTool) fail() error {
	_, err := f.node.Faults().Inject(sim.Fault{GPU: 0, Call: "nvmlDeviceGetHandleByPciBusId", Code: sim.CodeResetRequired})
	return err
}

func (f *failedTool) SetPersistence(ctx context.Context, pci gpu.PCIAddress, on bool) error {
	err := f.simTool.SetPersistence(ctx, pci, on)
	if !on && err == nil {
		err = f.fail()
	}
	return err
}

func (f *failedTool) Reset(ctx context.Context, pci gpu.PCIAddress) error {
	if f.refuses--; f.refuses >= 0 {
		return errors.New("in use by another client")
	}
	return errors.Join(f.node.Faults().Clear(0), f.simTool.Reset(ctx, pci))
}

// A GPU has failed, and neither NVML nor nvidia-smi says anything of it before its reset. It is reset if no process has it open, and only if
// that can be seen.
func TestModes_ResetOfFailedGPU(t *testing.T) {
	ok := []string{""}
	for name, tt := range map[string]struct {
		use         func(b *modeBed, tool *failedTool)
		errs        []string // of one attempt after the other
		persistence bool
	}{
		"lists nothing": {func(*modeBed, *failedTool) {}, ok, false},
		"is not to be queried": {func(b *modeBed, tool *failedTool) {
			must(b.t, tool.fail())
		}, ok, false},
		"does not open again after a reset that was refused": {func(b *modeBed, tool *failedTool) {
			tool.refuses = 2
			must(b.t, tool.simTool.SetPersistence(b.t.Context(), b.session.Node().GPUs[0].PCI, true))
		}, []string{"in use by another client", "in use by another client", ""}, true},
		"is not asked in time": {func(b *modeBed, tool *failedTool) {
			must(b.t, tool.simTool.SetPersistence(b.t.Context(), b.session.Node().GPUs[0].PCI, true))
			tool.late = true
		}, []string{"wait for nvidia-smi", ""}, true},
		"is open": {func(b *modeBed, _ *failedTool) {
			b.holders = []Holder{{1, "nvidia-persiste", ""}, {71, "python", ""}}
		}, []string{"in use: open in python (process 71)"}, false},
		"may be open": {func(b *modeBed, _ *failedTool) {
			b.gate.holders = func(context.Context, *gpu.GPU, *gpu.Partition) ([]Holder, error) { return nil, errors.New("hidden") }
		}, []string{"which processes have it open cannot be determined: hidden"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			tool := &failedTool{simTool: simTool{root: b.root}, node: b.other}
			b.Modes.Tool = tool
			tt.use(b, tool)
			for _, call := range list("nvmlDeviceGetGpuInstances", "nvmlDeviceGetComputeRunningProcesses") {
				_, err := b.other.Faults().Inject(sim.Fault{GPU: 0, Call: call, Code: sim.CodeResetRequired})
				must(t, err)
			}
			count, want := b.resets(), 0
			for _, says := range tt.errs {
				err := b.reset(0, "first")
				if says == "" {
					must(t, err)
					want = 1
					continue
				}
				wantError(t, err, says)
			}
			if *count != want {
				t.Errorf("%d resets, want %d", *count, want)
			}
			must(t, b.other.Faults().Clear(0))
			b.wantMode(0, gpuState{Persistence: tt.persistence})
		})
	}
}

// Of a claim whose pod has ended, the driver takes back neither the interval of a GPU that has failed nor the compute mode that MPS needs.
// Both wait for the reset. Nor does that of the claim's other GPU wait for them.
func TestModes_ResetEndsShares(t *testing.T) {
	for share, call := range map[string]string{"-timeslice!Long": "SetTimeSlice", "-mps": "StopMPS"} {
		t.Run(call, func(t *testing.T) {
			b := newModeBed(t)
			b.offers[0] = sharedNode().Offers[0]
			b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
			b.prepare("c", b.name(0)+share, b.name(1))
			b.sharing.err = failing("before "+call, gpu.ErrResetRequired)
			b.unprepare("c")
			count := b.resets()
			must(t, b.reset(1, "other"))
			must(t, b.reset(0, "first"))
			if r := b.Ledger.Record("c"); *count != 2 || r == nil {
				t.Fatalf("%d resets, want two; the record of the claim is %v, want it for what is left", *count, r)
			}
			b.sharing.err = nil
			b.Recover(t.Context())
			if r := b.Ledger.Record("c"); r != nil || b.sharing.interval(b.name(0)) != "" || len(b.sharing.served(b.name(0))) > 0 {
				t.Errorf("left: record %v, interval %q, claims of MPS %v", r, b.sharing.interval(b.name(0)), b.sharing.served(b.name(0)))
			}
		})
	}
}
