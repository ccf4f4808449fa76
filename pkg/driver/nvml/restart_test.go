// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// A restart gives up soon where a call runs, so that other GPUs do not wait for the slowest, and none counts as hanging.
func TestRestart_SlowCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &calls{lib: &fakeLibrary{}, inventory: newInventory(fstest.MapFS{}), dogs: newWatchdogs()}
		idle, slow := c.dogs.of(0), c.dogs.of(1)
		must(t, slow.begin(t.Context(), "a slow call", 30*time.Second))
		at := time.Now()
		err := c.restart(t.Context(), "", releaseWait, func(nodes) []*watchdog {
			t.Error("restarted under a call")
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, gpu.ErrHangs) || time.Since(at) != releaseWait {
			t.Errorf("restart = %v after %s", err, time.Since(at))
		}
		if idle.busy() || c.dogs.library.busy() || slow.hangs() != nil {
			t.Error("GPUs are blocked, or count as hanging")
		}
		slow.end(t.Context())
	})
}

// Nothing is called before a restart that is late has ended: it is in the middle of the library.
func TestRestart_Hangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		c := &calls{lib: &fakeLibrary{called: hangsIn("Init", end)}, inventory: newInventory(fstest.MapFS{}), dogs: newWatchdogs()}
		dog, begun := c.dogs.of(0), false
		if err := c.restart(t.Context(), "", releaseWait, func(nodes) []*watchdog {
			begun = true
			return nil
		}); !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("restart = %v", err)
		}
		if !dog.busy() || !c.dogs.library.busy() {
			t.Error("calls go on during the restart")
		}
		close(end)
		synctest.Wait()
		if dog.busy() || !begun {
			t.Error("calls wait after the restart")
		}
	})
}

// hangsWhenOpened is a session with three GPUs, whose second hangs when it is next opened.
func hangsWhenOpened(t *testing.T) (s *Session, lib *fakeLibrary, end chan struct{}) {
	lib, end = &fakeLibrary{devices: []*fakeDevice{h100(0), h100(1), h100(2)}}, make(chan struct{})
	s = openFake(t, lib)
	lib.devices[1].called = hangsIn("DeviceByPCI", end)
	return s, lib, end
}

// wantHanging wants calls about the second GPU to fail with an error, and those about the third to succeed.
func wantHanging(t *testing.T, s *Session, want error) {
	t.Helper()
	gpus := s.Node().GPUs
	if err := s.VerifyGPU(t.Context(), &gpus[1]); !errors.Is(err, want) {
		t.Errorf("GPU 1: got %v, want %v", err, want)
	}
	must(t, s.VerifyGPU(t.Context(), &gpus[2]))
}

// A GPU that hangs when it is opened again, for the reset of another, is the only one that hangs.
func TestRestart_ReopenHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, end := hangsWhenOpened(t)
		defer synctest.Wait()
		defer close(end)
		must(t, s.Release(t.Context(), s.Node().GPUs[0].PCI))
		wantHanging(t, s, gpu.ErrHangs)
	})
}

// So is one whose device node hangs when it is opened, and NVML stays as it is.
func TestRestart_NodeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lib, end := hangsWhenOpened(t)
		s.root, s.calls.open = "/", func(_ string, minor int) (*os.File, error) {
			if minor == 1 {
				<-end
			}
			return nil, syscall.ENXIO
		}
		if err := s.Release(t.Context(), s.Node().GPUs[0].PCI); !errors.Is(err, gpu.ErrHangs) || slices.Contains(lib.calls, "Shutdown") ||
			strings.Count(err.Error(), "keep the GPU") != 1 {
			t.Errorf("Release = %v, calls %v; want GPU 1 alone", err, lib.calls)
		}
		wantHanging(t, s, gpu.ErrHangs)
		close(end)
		synctest.Wait()
		wantHanging(t, s, nil)
	})
}

// freedSample counts how often it was freed while looks at other GPUs could go on: the driver may hang then.
type freedSample struct {
	of    *Meter
	freed *int
}

func (s freedSample) Free() error {
	if s.of.mu.TryLock() {
		s.of.mu.Unlock()
		*s.freed++
	}
	return nil
}

// While a GPU is broken, the session restarts every few minutes, for days: what a look has left for the next must not stay allocated.
func TestRestart_FreesSamples(t *testing.T) {
	c := &calls{lib: &fakeLibrary{}, inventory: newInventory(fstest.MapFS{}), dogs: newWatchdogs()}
	m, freed := NewMeter(&Session{calls: c}), 0
	m.put(gpu.PCIAddress{Bus: 1}, &look{samples: map[int]heldSample{gpu.WholeGPU: {freedSample{m, &freed}, "a"}}})
	m.put(gpu.PCIAddress{Bus: 2}, &look{samples: map[int]heldSample{7: {freedSample{m, &freed}, "b"}, 8: {freedSample{m, &freed}, "c"}}})
	for range 2 {
		must(t, c.restart(t.Context(), "", releaseWait, nil))
	}
	if freed != 3 {
		t.Errorf("%d samples were freed without the lock, want 3", freed)
	}
}

// Older drivers list the profiles of a GPU once it is in MIG mode, into which others may bring it.
func TestScan_MergeProfiles(t *testing.T) {
	was, now := gpu.GPU{UUID: "GPU-a", MIG: gpu.MIG{Capable: true, NeedsReset: true}}, gpu.GPU{UUID: "GPU-a"}
	now.MIG = gpu.MIG{Capable: true, NeedsReset: true, Enabled: true, Pending: true, Slices: 8, Profiles: []gpu.Profile{{ID: 19}}}
	none := func(gpu.PCIAddress) bool { return false }
	before := &discovery{node: gpu.Node{GPUs: []gpu.GPU{was}}}
	next := (&scan{}).merge(before, &discovery{node: gpu.Node{GPUs: []gpu.GPU{now}}}, 0, none)
	equal(t, "MIG", now.MIG, next.node.GPUs[0].MIG)
	back := (&scan{}).merge(next, before, 0, none) // and they stay known
	if len(back.node.GPUs[0].MIG.Profiles) == 0 || back.node.GPUs[0].MIG.Enabled {
		t.Errorf("out of MIG mode: %+v", back.node.GPUs[0].MIG)
	}
}
