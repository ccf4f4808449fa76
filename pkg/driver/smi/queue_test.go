// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// A run that hangs in the driver does not end when it is killed. It is given up, and no other begins before it has ended.
func TestTool_Hangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		end := make(chan struct{})
		tool := smi.New([]driverroot.Root{{Here: "/nowhere"}}, func(context.Context, driverroot.Root, string, ...string) ([]byte, error) {
			begun.Add(1)
			<-end
			return []byte("Enabled, Enabled, Enabled"), nil
		})
		at := time.Now()
		err := tool.Reset(t.Context(), pci)
		if !errors.Is(err, gpu.ErrHangs) || !strings.Contains(err.Error(), "nvidia-smi -i 0000:07:00.0 --gpu-reset has not ended since 2000-01-01T00:00:00Z") {
			t.Errorf("Reset = %v", err)
		}
		if took := time.Since(at); took < time.Minute || took > 2*time.Minute {
			t.Errorf("it is given up after %s", took)
		}
		at = time.Now()
		if _, err := tool.Query(t.Context(), pci); !errors.Is(err, gpu.ErrHangs) || begun.Load() != 1 || time.Since(at) != 0 {
			t.Errorf("Query meanwhile = %v after %s, %d runs", err, time.Since(at), begun.Load())
		}
		close(end)
		synctest.Wait()
		if state, err := tool.Query(t.Context(), pci); err != nil || !state.Current || begun.Load() != 2 {
			t.Errorf("Query after its end = %v, %v, %d runs", state, err, begun.Load())
		}
	})
}

// Runs follow each other, and one that waits does so no longer than it may take.
func TestTool_OneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		tool := smi.New([]driverroot.Root{{Here: "/nowhere"}}, func(_ context.Context, _ driverroot.Root, _ string, args ...string) ([]byte, error) {
			if running.Add(1) > 1 {
				t.Errorf("%v begins alongside another run", args)
			}
			defer running.Add(-1)
			if slices.Contains(args, "--gpu-reset") {
				<-time.After(30 * time.Second)
			}
			return []byte("Enabled, Enabled, Enabled"), nil
		})
		reset := make(chan error)
		go func() { reset <- tool.Reset(t.Context(), pci) }()
		synctest.Wait()
		other := gpu.PCIAddress{Bus: 0x08}
		if _, err := tool.Query(t.Context(), other); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "--gpu-reset") {
			t.Errorf("Query meanwhile = %v", err)
		}
		if err := <-reset; err != nil {
			t.Error(err)
		}
		if _, err := tool.Query(t.Context(), other); err != nil {
			t.Error(err)
		}
	})
}

// Intervals of several GPUs are set at a time, not during a change of a MIG mode, and also after one that hangs on another GPU.
func TestTool_TimeSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		end := make(chan struct{})
		tool := smi.New([]driverroot.Root{{Here: "/nowhere"}}, func(_ context.Context, _ driverroot.Root, _ string, args ...string) ([]byte, error) {
			if slices.Contains(args, "--gpu-reset") {
				<-end
				return nil, nil
			}
			for now, before := running.Add(1), most.Load(); now > before && !most.CompareAndSwap(before, now); {
				before = most.Load()
			}
			defer running.Add(-1)
			<-time.After(time.Second)
			return nil, nil
		})
		set := func(bus uint8) error {
			return tool.SetTimeSlice(t.Context(), &gpu.GPU{PCI: gpu.PCIAddress{Bus: bus}, UUID: "GPU-1"}, "Long")
		}
		other := make(chan error)
		go func() { other <- set(0x08) }()
		if err := errors.Join(set(0x09), <-other); err != nil || most.Load() != 2 {
			t.Errorf("%v, %d runs at a time", err, most.Load())
		}
		go func() { other <- tool.Reset(t.Context(), pci) }()
		synctest.Wait()
		if err := set(0x08); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("during a reset: %v", err)
		}
		if err := <-other; !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("Reset = %v", err)
		}
		if err := set(0x08); err != nil {
			t.Errorf("after a reset that hangs: %v", err)
		}
		if err := set(pci.Bus); !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("on the GPU itself: %v", err)
		}
		close(end)
	})
}
