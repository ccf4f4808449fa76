// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestPrepare_HangingCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Faults().HangCall(0, "nvmlDeviceCreateGpuInstanceWithPlacement"))
		start := time.Now()
		done := prepareLater(t.Context(), b.Preparer, deviceClaim("a", b.name(0, 19, 6)))
		b.prepare("b", b.name(1, 19, 6))
		if took := time.Since(start); took > time.Second {
			t.Errorf("a claim on another GPU waited %s", took)
		}
		if err := <-done; !errors.Is(err, gpu.ErrHangs) {
			t.Fatalf("got %v, want %v", err, gpu.ErrHangs)
		}
		if took := time.Since(start); took > 45*time.Second {
			t.Errorf("it took %s, longer than the kubelet waits", took)
		}
		b.Recover(t.Context()) // what may yet be created is not forgotten
		if !b.Unfinished() {
			t.Fatal("the claim's record is gone while its partition may yet be created")
		}
		must(t, b.node.Faults().Clear(-1))
		<-time.After(time.Second)
		b.Recover(t.Context())
		b.want(list("1 19@6"), list("b"), list("b"))
	})
}

// A GPU that only a reset or a reboot brings back does not keep a pod: both need a node that was drained.
func TestUnprepare_OutOfReach(t *testing.T) {
	for name, fault := range map[string]func(f *sim.Faults) error{
		"hangs":            func(f *sim.Faults) error { return f.HangCall(0, "nvmlDeviceGetGpuInstanceById") },
		"needs a reset":    func(f *sim.Faults) error { return f.FailCall("nvmlGpuInstanceDestroy", sim.CodeResetRequired) },
		"driver went away": func(f *sim.Faults) error { return f.FailCall("nvmlGpuInstanceDestroy", sim.CodeDriverNotLoaded) },
		"fell off the bus": func(f *sim.Faults) error { return f.FailCall("nvmlGpuInstanceDestroy", sim.CodeGPUIsLost) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				b.prepare("a", b.name(0, 19, 6))
				must(t, fault(b.node.Faults()))
				start := time.Now()
				b.unprepare("a")
				if took := time.Since(start); took > 45*time.Second {
					t.Errorf("it took %s, longer than the kubelet waits", took)
				}
				if got := b.recordState("a"); got != records.Releasing || !slices.Contains(b.Partitions.Occupied(), b.name(0, 19, 6)) {
					t.Errorf("the record is %q, want %q, and the device occupied", got, records.Releasing)
				}
				must(t, b.node.Faults().Clear(-1))
				<-time.After(time.Second)
				b.Recover(t.Context())
				b.want(nil, nil, nil)
			})
		})
	}
}
