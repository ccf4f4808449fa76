// SPDX-License-Identifier: Apache-2.0

package gpu

import "strconv"

// ComputeMode is how many processes may use a GPU for computing (nvml.h, NVML_COMPUTEMODE_*).
type ComputeMode int

// The compute modes. Drivers have dropped that of one thread (1).
const (
	// ComputeDefault lets any number of processes use the GPU.
	ComputeDefault ComputeMode = 0
	// ComputeProhibited lets none.
	ComputeProhibited ComputeMode = 2
	// ComputeExclusive lets one process use it, such as an MPS server.
	ComputeExclusive ComputeMode = 3
)

// String is nvidia-smi's name of the mode.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "DEFAULT"
	case ComputeProhibited:
		return "PROHIBITED"
	case ComputeExclusive:
		return "EXCLUSIVE_PROCESS"
	default:
		return strconv.Itoa(int(m))
	}
}
