// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Compute modes (NVML_COMPUTEMODE_*): who may compute on a GPU.
const (
	ModeDefault          = 0
	ModeProhibited       = 2
	ModeExclusiveProcess = 3
)

// ComputeModeName is the name of a compute mode, as nvidia-smi has it.
func ComputeModeName(mode int) string {
	switch mode {
	case ModeDefault:
		return "DEFAULT"
	case 1:
		return "EXCLUSIVE_THREAD"
	case ModeProhibited:
		return "PROHIBITED"
	case ModeExclusiveProcess:
		return "EXCLUSIVE_PROCESS"
	default:
		return fmt.Sprint(mode)
	}
}

const (
	callGetComputeMode = "nvmlDeviceGetComputeMode"
	callSetComputeMode = "nvmlDeviceSetComputeMode"
)

// checkComputeMode refuses numbers of no mode, and of the one that drivers no longer have.
func checkComputeMode(mode int) error {
	if !slices.Contains([]int{ModeDefault, ModeProhibited, ModeExclusiveProcess}, mode) {
		return fail(callSetComputeMode, CodeInvalidArgument, "compute mode %d", mode)
	}
	return nil
}

// noComputeMode is the answer of GPUs in MIG mode.
func (d *Device) noComputeMode(call string) error {
	return fail(call, CodeNotSupported, "GPU %d is in MIG mode: its partitions have compute modes", d.index)
}

// ComputeMode is one of NVML_COMPUTEMODE_* (nvmlDeviceGetComputeMode); ErrNotSupported in MIG mode.
func (d *Device) ComputeMode() (int, error) {
	st, err := d.load(callGetComputeMode)
	if err != nil {
		return 0, err
	}
	if st.MIG {
		return 0, d.noComputeMode(callGetComputeMode)
	}
	return st.ComputeMode, nil
}

// SetComputeMode sets one of NVML_COMPUTEMODE_* (nvmlDeviceSetComputeMode). Lost at reboot, as on real boards.
func (d *Device) SetComputeMode(mode int) error {
	return d.update(callSetComputeMode, func(st *gpuState) error {
		if err := checkComputeMode(mode); err != nil {
			return err
		}
		if st.MIG {
			return d.noComputeMode(callSetComputeMode)
		}
		st.ComputeMode = mode
		return nil
	})
}

// ComputeMode is that of the partition (nvmlDeviceGetComputeMode).
func (m *MIGDevice) ComputeMode() (int, error) {
	st, err := m.device().load(callGetComputeMode)
	if err != nil {
		return 0, err
	}
	ci, _, err := m.compute.find(callGetComputeMode, st)
	if err != nil {
		return 0, err
	}
	return ci.ComputeMode, nil
}

// SetComputeMode sets that of the partition (nvmlDeviceSetComputeMode). It goes with the partition.
func (m *MIGDevice) SetComputeMode(mode int) error {
	return m.device().update(callSetComputeMode, func(st *gpuState) error {
		if err := checkComputeMode(mode); err != nil {
			return err
		}
		ci, _, err := m.compute.find(callSetComputeMode, st)
		if err != nil {
			return err
		}
		ci.ComputeMode = mode
		return nil
	})
}
