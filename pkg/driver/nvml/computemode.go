// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Compute modes (NVML_COMPUTEMODE_*).
const (
	// ComputeModeDefault lets any number of processes use the GPU.
	ComputeModeDefault = int(nvml.COMPUTEMODE_DEFAULT)
	// ComputeModeProhibited lets no process use the GPU.
	ComputeModeProhibited = int(nvml.COMPUTEMODE_PROHIBITED)
	// ComputeModeExclusive lets one process use the GPU, such as an MPS server.
	ComputeModeExclusive = int(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
)

func (d realDevice) ComputeMode() (int, error) {
	return number(d.dev.GetComputeMode())("nvmlDeviceGetComputeMode")
}

func (d realDevice) SetComputeMode(mode int) error {
	return check("nvmlDeviceSetComputeMode", d.dev.SetComputeMode(nvml.ComputeMode(mode)))
}

// ComputeMode reads the compute mode of the GPU at an address; gpu.ErrNotSupported in MIG mode.
func (s *Session) ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error) {
	mode, err := ask(ctx, s.calls, pci, "nvmlDeviceGetComputeMode", computeMode)
	if err != nil {
		return 0, fmt.Errorf("read the compute mode of the GPU at %s: %w", pci, err)
	}
	return mode, nil
}

// computeMode reads the compute mode of a GPU; gpu.ErrNotSupported in MIG mode. There the driver may still answer with the mode from
// before, which comes back with the end of MIG mode and cannot be changed until then (open-gpu-kernel-modules 595.45.04,
// subdevice_ctrl_gpu_kernel.c: subdeviceCtrlCmdGpuQueryComputeModeRules does not look at MIG mode, the call that sets them does).
func computeMode(dev Device) (int, error) {
	mode, err := dev.ComputeMode()
	if err != nil || mode == ComputeModeDefault {
		return mode, err
	}
	switch enabled, _, err := dev.MIG().MIGMode(); {
	case errors.Is(err, gpu.ErrNotSupported):
	case err != nil:
		return 0, err
	case enabled:
		return 0, gpu.ErrInMIGMode
	}
	return mode, nil
}

// directComputeMode is computeMode, but returns gpu.ErrInMIGMode for GPUs in MIG mode, to distinguish those without compute modes.
func directComputeMode(dev Device) (int, error) {
	mode, err := computeMode(dev)
	if errors.Is(err, gpu.ErrNotSupported) {
		if enabled, _, migErr := dev.MIG().MIGMode(); migErr == nil && enabled {
			return 0, gpu.ErrInMIGMode
		}
	}
	return mode, err
}
