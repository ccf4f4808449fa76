// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/gpu"
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

// ComputeMode reads the compute mode of the GPU at an address.
func (s *Session) ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error) {
	mode, err := ask(ctx, s.calls, pci, "nvmlDeviceGetComputeMode", Device.ComputeMode)
	if err != nil {
		return 0, fmt.Errorf("read the compute mode of the GPU at %s: %w", pci, err)
	}
	return mode, nil
}

// SetComputeMode sets the compute mode of the GPU at an address. The mode lasts until the GPU is reset or the driver is
// unloaded.
func (s *Session) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, mode int) error {
	_, err := alter(ctx, s.calls, pci, "nvmlDeviceSetComputeMode", errorOnly(func(dev Device) error { return dev.SetComputeMode(mode) }))
	if err != nil {
		return fmt.Errorf("set the compute mode of the GPU at %s to %d: %w", pci, mode, err)
	}
	return nil
}
