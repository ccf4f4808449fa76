// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// checkComputeModes fails unless any number of processes may use the GPUs of a claim. A GPU that MPS servers had may be
// EXCLUSIVE_PROCESS still, or PROHIBITED: after a crash, or where its mode could not be given back. A container's second process would
// fail there with CUDA_ERROR_DEVICE_UNAVAILABLE, long after Prepare succeeded. Claims that share a GPU by MPS
// need that very mode and are passed over; so is admin access, which takes a GPU as it is.
//
// It costs one NVML call a GPU. The caller holds the locks of the GPUs. GPUs in MIG mode have no compute mode, and that from before when
// they leave it: partitions are looked at before MIG mode is set for them, whole GPUs after.
func (s *Shares) checkComputeModes(ctx context.Context, b *backend, devices []device, partitions bool) error {
	done := map[gpu.PCIAddress]bool{}
	for i := range devices {
		d := &devices[i]
		g := d.shape.GPU
		if d.admin || done[g.PCI] || d.shape.IsPartition() != partitions || d.share != nil && d.share.Kind == gpu.MPS {
			continue
		}
		done[g.PCI] = true
		if err := s.checkComputeMode(ctx, b, g); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
	}
	return nil
}

func (s *Shares) checkComputeMode(ctx context.Context, b *backend, g *gpu.GPU) error {
	mode, err := computeMode(ctx, b, g)
	if err != nil || mode == gpu.ComputeDefault {
		return err
	}
	var restore error
	if (mode == gpu.ComputeExclusive || mode == gpu.ComputeProhibited) && s.sharing != nil {
		// If a server had the GPU that no claim needs any more, its supervisor has the mode to give back.
		klog.FromContext(ctx).Info("A GPU is in a compute mode that it may have by MPS; asking the MPS supervisor to give it back",
			"gpu", g.PCI.DeviceName())
		if restore = s.retain(ctx, g.PCI.DeviceName()); restore == nil {
			mode, err = computeMode(ctx, b, g)
		}
		if err != nil || mode == gpu.ComputeDefault {
			return err
		}
	}
	err = fmt.Errorf("GPU %s (%s) is in compute mode %s, which keeps processes of the claim from it: set it back with "+
		"nvidia-smi -i %s -c DEFAULT once nothing uses the GPU",
		g.PCI.DeviceName(), g.UUID, mode, g.UUID)
	if restore != nil {
		err = fmt.Errorf("%w; the MPS supervisor could not do it: %w", err, restore)
	}
	return err
}

// computeMode reads that of a GPU. One in MIG mode has none, and is as good as default.
func computeMode(ctx context.Context, b *backend, g *gpu.GPU) (gpu.ComputeMode, error) {
	mode, err := b.hardware.ComputeMode(ctx, g.PCI)
	if errors.Is(err, gpu.ErrNotSupported) {
		return gpu.ComputeDefault, nil
	}
	return gpu.ComputeMode(mode), err
}
