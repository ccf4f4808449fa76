// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Compute modes (NVML_COMPUTEMODE_*).
const (
	ModeDefault          = 0
	ModeProhibited       = 2
	ModeExclusiveProcess = 3
)

// ComputeModeName is nvidia-smi's name of a compute mode.
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

// checkComputeMode rejects unknown modes, and the one that drivers have dropped.
func checkComputeMode(mode int) error {
	if !slices.Contains([]int{ModeDefault, ModeProhibited, ModeExclusiveProcess}, mode) {
		return fail(callSetComputeMode, CodeInvalidArgument, "compute mode %d", mode)
	}
	return nil
}

// Modes are the settings and the virtualization of a GPU.
type Modes struct{ *access }

func (d Modes) noComputeMode(call string) error {
	return fail(call, CodeNotSupported, "GPU %d is in MIG mode: its partitions have compute modes", d.index)
}

// ComputeMode is one of NVML_COMPUTEMODE_* (nvmlDeviceGetComputeMode); ErrNotSupported in MIG mode, unless QuirkModeInMIG.
func (d Modes) ComputeMode() (int, error) {
	st, err := d.load(callGetComputeMode)
	if err != nil {
		return 0, err
	}
	if st.MIG && !d.node.has(QuirkModeInMIG) {
		return 0, d.noComputeMode(callGetComputeMode)
	}
	return st.ComputeMode, nil
}

// SetComputeMode sets one of NVML_COMPUTEMODE_* (nvmlDeviceSetComputeMode). It is lost with the driver, but survives MIG mode and
// resets.
func (d Modes) SetComputeMode(mode int) error {
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

// SetComputeMode sets that of the partition (nvmlDeviceSetComputeMode). It is lost with the partition.
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

// AddressingMode is one of NVML_DEVICE_ADDRESSING_MODE_* (nvmlDeviceGetAddressingMode).
func (d Modes) AddressingMode() (int, error) {
	return d.board.AddressingMode, d.node.enter("nvmlDeviceGetAddressingMode", d.index)
}

// passedThrough reports whether the GPU is passed through to a guest.
func (d *access) passedThrough(st *gpuState) bool {
	return st.Virtualization == VirtualizationPassThrough || st.Virtualization == 0 && d.node.spec.PassThrough
}

// VirtualizationMode is one of NVML_GPU_VIRTUALIZATION_MODE_*: 0, bare metal, or 1, passed through to a guest
// (nvmlDeviceGetVirtualizationMode).
func (d Modes) VirtualizationMode() (int, error) {
	st, err := d.load("nvmlDeviceGetVirtualizationMode")
	switch {
	case err != nil:
		return 0, err
	case d.passedThrough(st):
		return VirtualizationPassThrough, nil
	default:
		return st.Virtualization, nil
	}
}

// TimeSlice is the setting of "nvidia-smi compute-policy": 0 default, 1 short, 2 medium, 3 long. No NVML function reads it.
func (d Modes) TimeSlice() (int, error) {
	st, err := d.node.gpus[d.index].load()
	if err != nil {
		return 0, err
	}
	return st.TimeSlice, nil
}

// SetTimeSlice simulates "nvidia-smi compute-policy --set-timeslice". No NVML function does this.
func (d Modes) SetTimeSlice(slice int) error {
	if slice < 0 || slice > 3 {
		return fmt.Errorf("set time slice of %s: %d is not one of 0 (default), 1 (short), 2 (medium), 3 (long)", d, slice)
	}
	return d.node.gpus[d.index].update(func(st *gpuState) error {
		st.TimeSlice = slice
		return nil
	})
}

// PersistenceMode reports whether the driver keeps the GPU initialised (nvmlDeviceGetPersistenceMode).
func (d Modes) PersistenceMode() (bool, error) {
	st, err := d.load("nvmlDeviceGetPersistenceMode")
	if err != nil {
		return false, err
	}
	return st.Persistence, nil
}

// SetPersistenceMode switches it (nvmlDeviceSetPersistenceMode).
func (d Modes) SetPersistenceMode(on bool) error {
	return d.update("nvmlDeviceSetPersistenceMode", func(st *gpuState) error {
		st.Persistence = on
		return nil
	})
}
