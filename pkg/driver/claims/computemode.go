// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// checkComputeModes fails unless any number of processes may use the GPUs of a claim. After a crash, or if its mode could not be
// restored, a GPU that was used by MPS servers may still be EXCLUSIVE_PROCESS or PROHIBITED. A container's second process would
// then fail with CUDA_ERROR_DEVICE_UNAVAILABLE, long after Prepare succeeded. Claims that share a GPU by MPS
// need that very mode and are skipped, as is admin access, which does not change a GPU.
//
// It costs one NVML call per GPU. The caller holds the locks of the GPUs. GPUs in MIG mode have no compute mode, and leave MIG mode
// with their earlier one: GPUs of partitions are checked before MIG mode is set for them, whole GPUs after it is cleared.
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
		// If the mode was set for an MPS server that no claim needs any more, the supervisor restores it.
		klog.FromContext(ctx).Info("A GPU is in a compute mode that MPS may have set; asking the MPS supervisor to restore it",
			"gpu", g.PCI.DeviceName())
		if restore = s.retain(ctx, g.PCI.DeviceName()); restore == nil {
			mode, err = computeMode(ctx, b, g)
		}
		if err != nil || mode == gpu.ComputeDefault {
			return err
		}
	}
	err = fmt.Errorf("GPU %s (%s) is in compute mode %s, which blocks processes of the claim: restore it with "+
		"nvidia-smi -i %s -c DEFAULT once nothing uses the GPU",
		g.PCI.DeviceName(), g.UUID, mode, g.UUID)
	if restore != nil {
		err = fmt.Errorf("%w; the MPS supervisor could not do it: %w", err, restore)
	}
	return err
}

// computeMode reads the compute mode of a GPU. A GPU in MIG mode has none, which counts as default.
func computeMode(ctx context.Context, b *backend, g *gpu.GPU) (gpu.ComputeMode, error) {
	mode, err := b.hardware.ComputeMode(ctx, g.PCI)
	if errors.Is(err, gpu.ErrNotSupported) {
		return gpu.ComputeDefault, nil
	}
	return gpu.ComputeMode(mode), err
}
