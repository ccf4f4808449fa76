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
	// ComputeModeExclusive lets one process use the GPU, such as an MPS server.
	ComputeModeExclusive = int(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
)

func (d realDevice) ComputeMode() (int, error) {
	mode, ret := d.dev.GetComputeMode()
	return int(mode), check("nvmlDeviceGetComputeMode", ret)
}

func (d realDevice) SetComputeMode(mode int) error {
	return check("nvmlDeviceSetComputeMode", d.dev.SetComputeMode(nvml.ComputeMode(mode)))
}

// ComputeMode reads how many processes may use the GPU at an address.
func (s *Session) ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error) {
	return ask(ctx, s, pci, "nvmlDeviceGetComputeMode", func(dev Device) (int, error) {
		mode, err := dev.ComputeMode()
		if err != nil {
			return 0, fmt.Errorf("read the compute mode of the GPU at %s: %w", pci, err)
		}
		return mode, nil
	})
}

// SetComputeMode says how many processes may use the GPU at an address. The mode lasts until the GPU is reset or the
// driver unloaded.
func (s *Session) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, mode int) error {
	_, err := alter(ctx, s, pci, "nvmlDeviceSetComputeMode", func(dev Device) (struct{}, error) {
		if err := dev.SetComputeMode(mode); err != nil {
			return struct{}{}, fmt.Errorf("set the compute mode of the GPU at %s to %d: %w", pci, mode, err)
		}
		return struct{}{}, nil
	})
	return err
}
