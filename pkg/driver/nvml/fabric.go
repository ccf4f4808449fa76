// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Preparing a whole GPU waits fabricTimeout for its fabric and polls every fabricRetry. The kubelet times out after
// 45 s, part of which a MIG mode change may have used.
const (
	fabricTimeout = 20 * time.Second
	fabricRetry   = 250 * time.Millisecond
)

// Fabric reads the state of a GPU's registration with its NVLink fabric. In MIG mode a GPU needs none: partitions have
// no NVLinks, and the driver suspends the registration while GPU instances exist (open-gpu-kernel-modules 595.45.04,
// kernel_mig_manager.c, gpuFabricProbeSuspend).
func (s *Session) Fabric(ctx context.Context, g *gpu.GPU) (gpu.FabricState, error) {
	if g.FabricState == gpu.FabricUnsupported {
		return s.calls.unregistered(ctx, g, &s.manager)
	}
	return ask(ctx, s.calls, g.PCI, "nvmlDeviceGetGpuFabricInfoV", func(dev Device) (gpu.FabricState, error) {
		if enabled, _, err := dev.MIG().MIGMode(); err == nil && enabled {
			return gpu.FabricUnsupported, nil
		}
		info, err := dev.Links().FabricInfo()
		if lacking(err) {
			return gpu.FabricUnsupported, nil
		}
		if err != nil {
			return gpu.FabricUnsupported, fmt.Errorf("read the fabric state of the GPU at %s: %w", g.PCI, err)
		}
		return info.registration(), nil
	})
}

// registration is the state of a registration. The driver also reports it as completed if Fabric Manager has failed or the GPU is
// degraded, with an unsuccessful status (nvml.h: "must be checked only if Probe state returns complete"; open-gpu-kernel-modules
// 595.45.04, subdevice_ctrl_gpu_kernel.c, GPU_GET_NVLINK_FABRIC probe).
func (i FabricInfo) registration() gpu.FabricState {
	state := gpu.FabricState(i.State)
	if state == gpu.FabricCompleted && (i.Status != nil || i.isUnhealthy()) {
		return gpu.FabricFailed
	}
	return state
}

// isUnhealthy reports whether, according to the health mask, the GPU cannot reach others (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*).
// Lower bandwidth and a recovery in progress leave it working.
func (i FabricInfo) isUnhealthy() bool {
	of := func(shift, width uint32) uint32 { return i.Health >> shift & width }
	return of(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY) ==
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE ||
		of(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION) >
			nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE ||
		of(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_PARTITION_ASSIGNED, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_PARTITION_ASSIGNED) ==
			nvml.GPU_FABRIC_HEALTH_MASK_PARTITION_ASSIGNED_FALSE
}

// RefusesWork reports whether the GPUs are in confidential computing mode and do not accept work: until an administrator or
// an attestation agent has set them ready, CUDA fails in every container.
func (s *Session) RefusesWork(ctx context.Context) (refuses bool, err error) {
	if !s.Node().ConfidentialComputing {
		return false, nil
	}
	accepts := false
	err = s.calls.library(ctx, "nvmlSystemGetConfComputeGpusReadyState", func() (err error) {
		if accepts, err = s.calls.lib.AcceptsWork(); lacking(err) {
			accepts, err = true, nil
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read whether the GPUs accept work: %w", err)
	}
	return !accepts, nil
}

// AwaitFabric waits until a whole GPU is registered with its NVLink fabric. Until then CUDA returns
// cudaErrorSystemNotReady, whether the registration is not started or in progress (open-gpu-kernel-modules 595.45.04,
// nv_gpu_ops.c, _convertGpuFabricProbeStateToErrorCode).
func (s *Session) AwaitFabric(ctx context.Context, g *gpu.GPU) error {
	over := time.NewTimer(fabricTimeout)
	defer over.Stop()
	tick := time.NewTicker(fabricRetry)
	defer tick.Stop()
	for {
		state, err := s.Fabric(ctx, g)
		if err != nil {
			return err
		}
		if !state.Pending() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return fmt.Errorf("%w: GPU %s: its registration is %s: check whether Fabric Manager is running", gpu.ErrFabricPending, g.UUID, state)
		case <-tick.C:
		}
	}
}

// RereadLinks rereads the NVLinks and fabrics of all GPUs and reports whether any changed: links may be trained, and
// GPUs registered, after the plugin has started. In MIG mode a GPU has neither, so the last known values stay.
func (s *Session) RereadLinks(ctx context.Context) (changed bool) {
	node := s.Node()
	fresh := make([]gpu.GPU, len(node.GPUs))
	for i := range node.GPUs {
		fresh[i] = s.calls.linksOf(ctx, node.GPUs[i])
	}
	return s.inventory.updateLinks(fresh)
}

// linksOf returns a GPU with its current links and fabric. Values that cannot be read stay.
func (c *calls) linksOf(ctx context.Context, g gpu.GPU) gpu.GPU {
	now, err := ask(ctx, c, g.PCI, "nvmlDeviceGetNvLinkState", func(dev Device) (gpu.GPU, error) {
		now := gpu.GPU{PCI: g.PCI, UUID: g.UUID}
		if enabled, _, err := dev.MIG().MIGMode(); err == nil && enabled {
			return g, nil
		}
		var firm errs
		readLinks(dev, &now, &firm)
		readFabric(dev.Links(), &now, &firm)
		return now, firm.first
	})
	if err != nil {
		return g
	}
	return now
}
