// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Device is a physical GPU of a simulated node, as an NVML device handle.
type Device struct{ *access }

// MIG is the MIG mode of the GPU and its partitions.
func (d *Device) MIG() MIG { return MIG(*d) }

// Links are the GPU's connections.
func (d *Device) Links() Links { return Links(*d) }

// Memory is the memory of the GPU, and its users.
func (d *Device) Memory() DeviceMemory { return DeviceMemory(*d) }

// Modes are the settings of the GPU, and its virtualization.
func (d *Device) Modes() Modes { return Modes(*d) }

// Telemetry is the GPU's measurements.
func (d *Device) Telemetry() Telemetry { return Telemetry(*d) }

// access is the common part of all calls on a GPU: its node, index, board and state.
type access struct {
	node  *Node
	index int
	spec  *gpuSpec
	board *Board
}

// load begins a call on the GPU and returns the GPU's state.
func (d *access) load(call string) (*gpuState, error) {
	if err := d.node.enter(call, d.index); err != nil {
		return nil, err
	}
	st, err := d.node.gpus[d.index].load()
	if err != nil {
		return nil, fail(call, CodeUnknown, "%v", err)
	}
	return st, nil
}

// update begins a call on the GPU and changes the GPU's state.
func (d *access) update(call string, change func(*gpuState) error) error {
	if err := d.node.enter(call, d.index); err != nil {
		return err
	}
	return d.change(call, change)
}

// change changes the GPU's state within a call.
func (d *access) change(call string, change func(*gpuState) error) error {
	err := d.node.gpus[d.index].update(change)
	if err == nil || asError(err) != nil {
		return err
	}
	return fail(call, CodeUnknown, "%v", err)
}

// Board is the GPU's product.
func (d *access) Board() *Board { return d.board }

// String names the GPU for people: "GPU 3".
func (d *access) String() string { return fmt.Sprintf("GPU %d", d.index) }

// Index is the NVML index (nvmlDeviceGetIndex), in order of PCI address from 0.
func (d *Device) Index() (int, error) {
	return d.index, d.node.enter("nvmlDeviceGetIndex", d.index)
}

// UUID is "GPU-…" (nvmlDeviceGetUUID).
func (d *Device) UUID() (string, error) {
	if err := d.node.enter("nvmlDeviceGetUUID", d.index); err != nil {
		return "", err
	}
	st, err := d.node.state.load()
	if err != nil {
		return "", err
	}
	if uuid := st.UUIDs[d.index]; uuid != "" {
		return uuid, nil
	}
	return d.spec.UUID, nil
}

// Serial is the serial number of the board (nvmlDeviceGetSerial).
func (d *Device) Serial() (string, error) {
	return d.spec.Serial, d.node.enter("nvmlDeviceGetSerial", d.index)
}

// MinorNumber is N of /dev/nvidiaN (nvmlDeviceGetMinorNumber); it need not be the index.
func (d *Device) MinorNumber() (int, error) {
	st, err := d.load("nvmlDeviceGetMinorNumber")
	if err != nil {
		return 0, err
	}
	return d.spec.Minor + st.MinorShift, nil
}

// ModuleID is the position on the baseboard, from 1; 0 where there is none (nvmlDeviceGetModuleId).
func (d *Device) ModuleID() (int, error) {
	return d.spec.Module, d.node.enter("nvmlDeviceGetModuleId", d.index)
}

// PCIInfo describes a PCI function (nvmlPciInfo_t).
type PCIInfo struct {
	// BusID has the eight-digit domain of NVML: "00000000:1B:00.0".
	BusID string
	// DeviceID is the device id in the upper 16 bits and the vendor id in the lower.
	DeviceID    uint32
	SubsystemID uint32
	Address     gpu.PCIAddress
}

// PCI is the GPU's PCI function (nvmlDeviceGetPciInfo_v3).
func (d *Device) PCI() (PCIInfo, error) {
	if err := d.node.enter("nvmlDeviceGetPciInfo_v3", d.index); err != nil {
		return PCIInfo{}, err
	}
	return pciInfo(&d.spec.pciEntry, d.board), nil
}

// pciInfo describes a PCI function; board is nil for other devices than GPUs.
func pciInfo(e *pciEntry, board *Board) PCIInfo {
	a, err := e.address()
	if err != nil {
		return PCIInfo{} // addresses were checked when the node was created
	}
	info := PCIInfo{
		BusID:    fmt.Sprintf("%08X:%02X:%02X.%X", a.Domain, a.Bus, a.Device, a.Function),
		DeviceID: parseHex(e.Device)<<16 | parseHex(e.Vendor),
		Address:  a,
	}
	if board != nil {
		info.SubsystemID = parseHex(board.PCISubsystemID)
	}
	return info
}

// parseHex parses "0x2330"; 0 if invalid.
func parseHex(s string) uint32 {
	var v uint32
	for _, c := range strings.TrimPrefix(s, "0x") {
		i := strings.IndexRune("0123456789abcdef", c)
		if i < 0 {
			return 0
		}
		v = v<<4 | uint32(i)
	}
	return v
}

// PCIBusID is the PCI address with the eight-digit domain of NVML (nvmlDeviceGetPciInfo_v3: busId).
func (d *Device) PCIBusID() (string, error) {
	info, err := d.PCI()
	return info.BusID, err
}

// Name is the product name (nvmlDeviceGetName).
func (d *Device) Name() (string, error) {
	return d.board.Product, d.node.enter("nvmlDeviceGetName", d.index)
}

// Brand is one of NVML_BRAND_* (nvmlDeviceGetBrand).
func (d *Device) Brand() (int, error) {
	return d.board.Brand, d.node.enter("nvmlDeviceGetBrand", d.index)
}

// Architecture is one of NVML_DEVICE_ARCH_* (nvmlDeviceGetArchitecture).
func (d *Device) Architecture() (int, error) {
	return d.board.Architecture, d.node.enter("nvmlDeviceGetArchitecture", d.index)
}

// CUDAComputeCapability is such as 9, 0 (nvmlDeviceGetCudaComputeCapability).
func (d *Device) CUDAComputeCapability() (major, minor int, err error) {
	c := d.board.ComputeCapability
	return c[0], c[1], d.node.enter("nvmlDeviceGetCudaComputeCapability", d.index)
}

// VBIOS is the version of the board's BIOS (nvmlDeviceGetVbiosVersion).
func (d *Device) VBIOS() (string, error) {
	return d.board.VBIOS, d.node.enter("nvmlDeviceGetVbiosVersion", d.index)
}
