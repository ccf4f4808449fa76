// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// released is a session on a node that other processes use, too.
type released struct {
	*nvml.Session
	t    *testing.T
	node *sim.Node // of others
}

func newReleased(t *testing.T, model string) *released {
	t.Helper()
	root := filepath.Join(t.TempDir(), "node")
	node, err := sim.Create(root, model, sim.WithoutDeviceNodes())
	if err != nil {
		t.Fatal(err)
	}
	own, err := sim.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	session, err := simulated.OpenNode(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	return &released{session, t, node}
}

func (r *released) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *released) gpu(i int) *gpu.GPU { return &r.Node().GPUs[i] }

// A released GPU can be reset by others, nothing of the session opens it, and it comes back with what it is then.
func TestSession_Release(t *testing.T) {
	r := newReleased(t, "dgx-a100")
	ctx := t.Context()
	if err := r.node.Hardware().Reset(0); !errors.Is(err, gpu.ErrInUse) {
		t.Fatalf("Reset of an open GPU = %v", err)
	}
	r.must(r.Release(ctx, r.gpu(0).PCI))
	r.must(r.Release(ctx, r.gpu(0).PCI)) // again
	was := r.gpu(0)
	if err := r.VerifyGPU(ctx, was); !errors.Is(err, gpu.ErrReleased) {
		t.Errorf("VerifyGPU = %v", err)
	}
	if err := r.Usable(was); !errors.Is(err, gpu.ErrReleased) {
		t.Errorf("Usable = %v", err)
	}
	for i := 1; i < 8; i++ {
		r.must(r.VerifyGPU(ctx, r.gpu(i)))
	}
	if _, err := r.Rediscover(ctx, func(gpu.PCIAddress) bool { return false }); err != nil || len(r.Node().GPUs) != 8 {
		t.Errorf("Rediscover = %v, %d GPUs", err, len(r.Node().GPUs))
	}
	r.RereadLinks(ctx)
	r.must(r.node.Init())
	if activation, err := r.node.Device(0).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Fatal(activation, err)
	}
	r.must(r.node.Shutdown())
	r.must(r.node.Hardware().Reset(0))
	if r.gpu(0).MIG.Enabled {
		t.Error("the mode is known before the GPU was read")
	}
	r.must(r.Retake(ctx, r.gpu(0).PCI))
	r.must(r.VerifyGPU(ctx, r.gpu(0)))
	if !r.gpu(0).MIG.Enabled || len(r.gpu(0).PartitionShapes()) == 0 {
		t.Errorf("MIG = %+v", r.gpu(0).MIG.Enabled)
	}
	if err := r.Usable(was); !errors.Is(err, gpu.ErrModeChanged) {
		t.Errorf("Usable of the GPU as it was = %v", err)
	}
}

// Calls about other GPUs go on while one is released and taken back.
func TestSession_ReleaseConcurrently(t *testing.T) {
	r := newReleased(t, "dgx-a100")
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
			if _, err := r.Rediscover(ctx, func(gpu.PCIAddress) bool { return false }); err != nil {
				t.Errorf("Rediscover = %v", err)
				return
			}
		}
	})
	for range 20 {
		r.must(r.Release(ctx, pci))
		r.must(r.node.Hardware().Reset(0))
		r.must(r.Retake(ctx, pci))
	}
	close(done)
	wg.Wait()
}

// Partitions of other GPUs stay, though NVML is shut down in between, and events of the GPU are heard again.
func TestSession_ReleaseKeepsOthers(t *testing.T) {
	r := newReleased(t, "dgx-a100")
	ctx := t.Context()
	r.must(r.Release(ctx, r.gpu(1).PCI))
	r.must(r.node.Init())
	if activation, err := r.node.Device(1).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Fatal(activation, err)
	}
	r.must(r.node.Shutdown())
	r.must(r.Retake(ctx, r.gpu(1).PCI))
	part, err := r.CreatePartition(ctx, r.gpu(1).PartitionShapes()[0])
	r.must(err)
	events, err := r.Events(ctx)
	r.must(err)
	r.must(r.Release(ctx, r.gpu(0).PCI))
	if _, _, err := events.Next(time.Millisecond); err == nil {
		t.Error("the subscription goes on without the GPU")
	}
	r.must(events.Close())
	if events, err = r.Events(ctx); err != nil {
		t.Fatal(err)
	}
	r.must(r.Retake(ctx, r.gpu(0).PCI))
	if _, _, err := events.Next(time.Millisecond); err == nil {
		t.Error("the subscription goes on without the GPU that is back")
	}
	r.must(events.Close())
	found, err := r.PartitionAt(ctx, r.gpu(1).PCI, part)
	if err != nil || found == nil || found.UUID != part.UUID {
		t.Errorf("PartitionAt = %v, %v, want %v", found, err, part)
	}
}

// A GPU that does not answer after its reset is looked for again.
func TestSession_RetakeFails(t *testing.T) {
	r := newReleased(t, "dgx-a100")
	ctx := t.Context()
	r.must(r.Release(ctx, r.gpu(0).PCI))
	r.must(r.node.Hardware().Lose(0))
	if err := r.Retake(ctx, r.gpu(0).PCI); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("Retake = %v", err)
	}
	if err := r.VerifyGPU(ctx, r.gpu(0)); err == nil {
		t.Error("a GPU without a handle answers")
	}
	r.must(r.node.Faults().Clear(0))
	r.must(r.node.Faults().FailNth("nvmlDeviceGetCount_v2", 1, sim.CodeUnknown))
	if err := r.look(); err == nil {
		t.Error("the first look did not fail")
	}
	r.must(r.look())
	r.must(r.VerifyGPU(ctx, r.gpu(0)))
}

// look looks for GPUs.
func (r *released) look() error {
	_, err := r.Rediscover(r.t.Context(), func(gpu.PCIAddress) bool { return false })
	return err
}

// NVML that cannot be initialised again to close a GPU is initialised by a later look: until then no GPU answers.
func TestSession_ReleaseFails(t *testing.T) {
	r := newReleased(t, "dgx-a100")
	ctx := t.Context()
	r.must(r.node.Faults().FailNth("nvmlInit_v2", 1, sim.CodeUnknown))
	if err := r.Release(ctx, r.gpu(0).PCI); err == nil {
		t.Error("Release succeeded")
	}
	if err := r.VerifyGPU(ctx, r.gpu(1)); err == nil {
		t.Error("a GPU answers without NVML")
	}
	r.must(r.look())
	for i := range 8 {
		r.must(r.VerifyGPU(ctx, r.gpu(i)))
	}
}
