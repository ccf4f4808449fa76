// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"strings"
	"syscall"
	"testing"

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
