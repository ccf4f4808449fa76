// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A released GPU can be reset by others, nothing of the session opens it, and it comes back with what it is then.
func TestSession_Release(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	if err := r.node.Hardware().Reset(0); !errors.Is(err, gpu.ErrInUse) {
		t.Fatalf("Reset of an open GPU = %v", err)
	}
	must(t, r.Release(ctx, r.gpu(0).PCI))
	must(t, r.Release(ctx, r.gpu(0).PCI)) // again
	was := r.gpu(0)
	mustFail(t, r.VerifyGPU(ctx, was), gpu.ErrReleased)
	mustFail(t, r.Usable(was), gpu.ErrReleased)
	for i := 1; i < 8; i++ {
		must(t, r.VerifyGPU(ctx, r.gpu(i)))
	}
	if _, err := r.rediscover(); err != nil || len(r.Node().GPUs) != 8 {
		t.Errorf("Rediscover = %v, %d GPUs", err, len(r.Node().GPUs))
	}
	r.RereadLinks(ctx)
	setMIGMode(t, r.node, 0)
	must(t, r.node.Shutdown())
	must(t, r.node.Hardware().Reset(0))
	if r.gpu(0).MIG.Enabled {
		t.Error("the mode is known before the GPU was read")
	}
	must(t, r.Retake(ctx, r.gpu(0).PCI))
	must(t, r.VerifyGPU(ctx, r.gpu(0)))
	if !r.gpu(0).MIG.Enabled || len(r.gpu(0).PartitionShapes()) == 0 {
		t.Errorf("MIG = %+v", r.gpu(0).MIG.Enabled)
	}
	mustFail(t, r.Usable(was), gpu.ErrModeChanged)
}

// Calls about other GPUs go on while one is released and taken back.
func TestSession_ReleaseConcurrently(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	others := []*gpu.GPU{r.gpu(1), r.gpu(2), r.gpu(3)}
	pci := r.gpu(0).PCI
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, g := range others {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := r.VerifyGPU(ctx, g); err != nil {
					t.Errorf("VerifyGPU of another GPU = %v", err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := r.rediscover(); err != nil {
				t.Errorf("Rediscover = %v", err)
				return
			}
		}
	})
	for range 20 {
		must(t, r.Release(ctx, pci))
		must(t, r.node.Hardware().Reset(0))
		must(t, r.Retake(ctx, pci))
	}
	close(done)
	wg.Wait()
}

// Partitions of other GPUs stay, though NVML is shut down in between, and events of the GPU are heard again.
func TestSession_ReleaseKeepsOthers(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	must(t, r.Release(ctx, r.gpu(1).PCI))
	setMIGMode(t, r.node, 1)
	must(t, r.node.Shutdown())
	must(t, r.Retake(ctx, r.gpu(1).PCI))
	part, err := r.CreatePartition(ctx, r.gpu(1).PartitionShapes()[0])
	must(t, err)
	events, err := r.Events(ctx)
	must(t, err)
	must(t, r.Release(ctx, r.gpu(0).PCI))
	if _, _, err := events.Next(time.Millisecond); err == nil {
		t.Error("the subscription goes on without the GPU")
	}
	must(t, events.Close())
	events, err = r.Events(ctx)
	must(t, err)
	must(t, r.Retake(ctx, r.gpu(0).PCI))
	if _, _, err := events.Next(time.Millisecond); err == nil {
		t.Error("the subscription goes on without the GPU that is back")
	}
	must(t, events.Close())
	found, err := r.PartitionAt(ctx, r.gpu(1).PCI, part)
	if err != nil || found == nil || found.UUID != part.UUID {
		t.Errorf("PartitionAt = %v, %v, want %v", found, err, part)
	}
}

// A GPU that has left changes the indexes of others, and one that cannot be opened again is opened by a later look.
func TestSession_ReleaseLosesOther(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	r.allocated[r.gpu(2).PCI] = true
	must(t, r.node.Hardware().SetAbsent(2, true))
	must(t, r.node.Hardware().Lose(6))
	must(t, r.Release(ctx, r.gpu(4).PCI))
	must(t, r.VerifyGPU(ctx, r.gpu(5)))
	if err := r.VerifyGPU(ctx, r.gpu(6)); err == nil {
		t.Error("a GPU that is lost answers")
	}
	must(t, r.node.Faults().Clear(6))
	_, err := r.rediscover()
	must(t, err)
	must(t, r.node.Hardware().Reset(4)) // the look has not opened it
	must(t, r.Retake(ctx, r.gpu(4).PCI))
	_, err = r.rediscover()
	must(t, err)
	for i := 3; i < 8; i++ {
		must(t, r.VerifyGPU(ctx, r.gpu(i)))
		equal(t, "index", i-1, r.gpu(i).Index)
	}
}

// A GPU that does not answer after its reset is looked for again.
func TestSession_RetakeFails(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	must(t, r.Release(ctx, r.gpu(0).PCI))
	must(t, r.node.Hardware().Lose(0))
	mustFail(t, r.Retake(ctx, r.gpu(0).PCI), gpu.ErrLost)
	if err := r.VerifyGPU(ctx, r.gpu(0)); err == nil {
		t.Error("a GPU without a handle answers")
	}
	must(t, r.node.Faults().Clear(0))
	must(t, r.node.Faults().FailNth("nvmlDeviceGetCount_v2", 1, sim.CodeUnknown))
	if _, err := r.rediscover(); err == nil {
		t.Error("the first look did not fail")
	}
	_, err := r.rediscover()
	must(t, err)
	must(t, r.VerifyGPU(ctx, r.gpu(0)))
}

// NVML that cannot be initialised again to close a GPU is initialised by a later look: until then no GPU answers.
func TestSession_ReleaseFails(t *testing.T) {
	r := newSharedBed(t, "dgx-a100")
	ctx := t.Context()
	must(t, r.node.Faults().FailNth("nvmlInit_v2", 1, sim.CodeUnknown))
	if err := r.Release(ctx, r.gpu(0).PCI); err == nil {
		t.Error("Release succeeded")
	}
	if err := r.VerifyGPU(ctx, r.gpu(1)); err == nil {
		t.Error("a GPU answers without NVML")
	}
	_, err := r.rediscover()
	must(t, err)
	for i := range 8 {
		must(t, r.VerifyGPU(ctx, r.gpu(i)))
	}
}
