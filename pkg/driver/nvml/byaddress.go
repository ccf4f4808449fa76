// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// byAddress is NVML, except that it opens a GPU by its PCI address instead of its UUID.
type byAddress struct {
	nvml.Interface
	node *gpu.Node
}

// ByAddress is NVML for NVIDIA's libraries that open the GPUs of a node by UUID; an empty path leaves the search for the library to the
// dynamic loader. NVML "may initialize additional GPUs as it searches for the target GPU" and fails "if any GPU has fallen off the bus"
// (nvml.h, nvmlDeviceGetHandleByUUID), so one GPU that is lost or hangs would make all others unusable.
// nvmlDeviceGetHandleByPciBusId_v2 opens the GPU alone.
func ByAddress(path string, node *gpu.Node) nvml.Interface {
	if path == "" {
		return byAddress{nvml.New(), node}
	}
	return byAddress{nvml.New(nvml.WithLibraryPath(path)), node}
}

func (l byAddress) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	for i := range l.node.GPUs {
		if g := &l.node.GPUs[i]; g.UUID == uuid {
			return l.DeviceGetHandleByPciBusId(g.PCI.String())
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}
