// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Device is a physical GPU of a simulated node: what an NVML device handle stands for.
type Device struct {
	node  *Node
	index int
	spec  *gpuSpec
	board *Board
}

// load begins a call on the GPU and returns the GPU's state.
func (d *Device) load(call string) (*gpuState, error) {
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
func (d *Device) update(call string, change func(*gpuState) error) error {
	if err := d.node.enter(call, d.index); err != nil {
		return err
	}
	return d.change(call, change)
}

// change changes the GPU's state within a call.
func (d *Device) change(call string, change func(*gpuState) error) error {
	err := d.node.gpus[d.index].update(change)
	if err == nil || asError(err) != nil {
		return err
	}
	return fail(call, CodeUnknown, "%v", err)
}

// Board is the product this GPU is.
func (d *Device) Board() *Board { return d.board }

// String names the GPU for people: "GPU 3".
func (d *Device) String() string { return fmt.Sprintf("GPU %d", d.index) }

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

// PCIInfo is what NVML reports of a PCI function (nvmlPciInfo_t).
type PCIInfo struct {
	// BusID has the eight-digit domain of NVML: "00000000:1B:00.0".
	BusID string
	// DeviceID is the device id in the upper 16 bits and the vendor id in the lower.
	DeviceID    uint32
	SubsystemID uint32
	Address     gpu.PCIAddress
}

// PCI is where the GPU is on its bus (nvmlDeviceGetPciInfo_v3).
func (d *Device) PCI() (PCIInfo, error) {
	if err := d.node.enter("nvmlDeviceGetPciInfo_v3", d.index); err != nil {
		return PCIInfo{}, err
	}
	return pciInfo(&d.spec.pciEntry, d.board), nil
}

// pciInfo describes a PCI function; board is nil for what is no GPU.
func pciInfo(e *pciEntry, board *Board) PCIInfo {
	a, err := e.address()
	if err != nil {
		return PCIInfo{} // addresses were checked when the node was made
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

// parseHex reads "0x2330"; 0 if it is none.
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

// Memory is how much memory there is and who has it, in bytes. Total = Reserved + Used + Free.
type Memory struct {
	Total, Reserved, Used, Free uint64
}

// MemoryTotal is the total in bytes (nvmlDeviceGetMemoryInfo).
func (d *Device) MemoryTotal() (uint64, error) {
	m, err := d.memory("nvmlDeviceGetMemoryInfo")
	return m.Total, err
}

// MemoryTotalReserved is the total and what the driver keeps of it, in bytes (nvmlDeviceGetMemoryInfo_v2).
func (d *Device) MemoryTotalReserved() (total, reserved uint64, err error) {
	m, err := d.memory("nvmlDeviceGetMemoryInfo_v2")
	return m.Total, m.Reserved, err
}

// MemoryV1 and MemoryV2 are the whole answers of nvmlDeviceGetMemoryInfo and its v2.
func (d *Device) MemoryV1() (Memory, error) { return d.memory("nvmlDeviceGetMemoryInfo") }

// MemoryV2 is the whole answer of nvmlDeviceGetMemoryInfo_v2.
func (d *Device) MemoryV2() (Memory, error) { return d.memory("nvmlDeviceGetMemoryInfo_v2") }

func (d *Device) memory(call string) (Memory, error) {
	st, err := d.load(call)
	if err != nil {
		return Memory{}, err
	}
	m := Memory{Total: d.board.MemoryMiB << 20, Reserved: d.board.ReservedMiB << 20}
	for i := range st.Clients {
		m.Used += st.Clients[i].Memory
	}
	m.Used = min(m.Used, m.Total-m.Reserved)
	m.Free = m.Total - m.Reserved - m.Used
	return m, nil
}

// BAR1Total is the size of BAR1 in bytes (nvmlDeviceGetBAR1MemoryInfo).
func (d *Device) BAR1Total() (uint64, error) {
	return d.board.BAR1MiB << 20, d.node.enter("nvmlDeviceGetBAR1MemoryInfo", d.index)
}

// ECCMode reports whether ECC is on and will be after a reset (nvmlDeviceGetEccMode); ErrNotSupported on boards without.
func (d *Device) ECCMode() (current, pending bool, err error) {
	const call = "nvmlDeviceGetEccMode"
	if err := d.node.enter(call, d.index); err != nil {
		return false, false, err
	}
	if !d.board.ECC {
		return false, false, fail(call, CodeNotSupported, "%s has no ECC memory", d.board.Product)
	}
	return true, true, nil
}

// TotalECCErrors is the number of ECC errors, which is none (nvmlDeviceGetTotalEccErrors).
func (d *Device) TotalECCErrors() (uint64, error) {
	const call = "nvmlDeviceGetTotalEccErrors"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if !d.board.ECC {
		return 0, fail(call, CodeNotSupported, "%s has no ECC memory", d.board.Product)
	}
	return 0, nil
}

// AddressingMode is one of NVML_DEVICE_ADDRESSING_MODE_* (nvmlDeviceGetAddressingMode).
func (d *Device) AddressingMode() (int, error) {
	return d.board.AddressingMode, d.node.enter("nvmlDeviceGetAddressingMode", d.index)
}

// VirtualizationMode is one of NVML_GPU_VIRTUALIZATION_MODE_*: 0, bare metal, or 1, passed through to a guest
// (nvmlDeviceGetVirtualizationMode).
func (d *Device) VirtualizationMode() (int, error) {
	st, err := d.load("nvmlDeviceGetVirtualizationMode")
	switch {
	case err != nil:
		return 0, err
	case st.Virtualization == 0 && d.node.spec.PassThrough:
		return VirtualizationPassThrough, nil
	default:
		return st.Virtualization, nil
	}
}

// TimeSlice is what "nvidia-smi compute-policy" set: 0 default, 1 short, 2 medium, 3 long. No NVML function reads it.
func (d *Device) TimeSlice() (int, error) {
	st, err := d.node.gpus[d.index].load()
	if err != nil {
		return 0, err
	}
	return st.TimeSlice, nil
}

// SetTimeSlice does what "nvidia-smi compute-policy --set-timeslice" does. No NVML function does.
func (d *Device) SetTimeSlice(slice int) error {
	if slice < 0 || slice > 3 {
		return fmt.Errorf("set time slice of %s: %d is none of 0 (default), 1 (short), 2 (medium), 3 (long)", d, slice)
	}
	return d.node.gpus[d.index].update(func(st *gpuState) error {
		st.TimeSlice = slice
		return nil
	})
}

// PersistenceMode reports whether the driver keeps the GPU initialised (nvmlDeviceGetPersistenceMode).
func (d *Device) PersistenceMode() (bool, error) {
	st, err := d.load("nvmlDeviceGetPersistenceMode")
	if err != nil {
		return false, err
	}
	return st.Persistence, nil
}

// SetPersistenceMode switches it (nvmlDeviceSetPersistenceMode).
func (d *Device) SetPersistenceMode(on bool) error {
	return d.update("nvmlDeviceSetPersistenceMode", func(st *gpuState) error {
		st.Persistence = on
		return nil
	})
}

// Utilization of the GPU and of its memory in percent (nvmlDeviceGetUtilizationRates). GPUs with clients are busy;
// ErrNotSupported in MIG mode.
func (d *Device) Utilization() (gpuPercent, memoryPercent int, err error) {
	const call = "nvmlDeviceGetUtilizationRates"
	st, err := d.load(call)
	switch {
	case err != nil:
		return 0, 0, err
	case st.MIG:
		return 0, 0, fail(call, CodeNotSupported, "GPU %d is in MIG mode", d.index)
	case len(st.Clients) > 0:
		return 97, 41, nil
	default:
		return 0, 0, nil
	}
}

// Power is what the board draws and may draw, in milliwatts (nvmlDeviceGetPowerUsage).
func (d *Device) Power() (usage int, err error) {
	st, err := d.load("nvmlDeviceGetPowerUsage")
	if err != nil {
		return 0, err
	}
	usage = d.board.PowerLimitWatts * 100
	if len(st.Clients) > 0 {
		usage = d.board.PowerLimitWatts * 850
	}
	return usage, nil
}

// PowerLimit in milliwatts (nvmlDeviceGetPowerManagementLimit).
func (d *Device) PowerLimit() (int, error) {
	return d.board.PowerLimitWatts * 1000, d.node.enter("nvmlDeviceGetPowerManagementLimit", d.index)
}

// Temperature of the GPU in °C (nvmlDeviceGetTemperature).
func (d *Device) Temperature() (int, error) {
	return 31 + d.index%5, d.node.enter("nvmlDeviceGetTemperature", d.index)
}

// RemappedRows is the number of memory rows remapped, none (nvmlDeviceGetRemappedRows); ErrNotSupported in MIG mode.
func (d *Device) RemappedRows() error {
	const call = "nvmlDeviceGetRemappedRows"
	st, err := d.load(call)
	switch {
	case err != nil:
		return err
	case st.MIG || d.board.Architecture < 7:
		return fail(call, CodeNotSupported, "GPU %d is in MIG mode, or older than Ampere", d.index)
	default:
		return nil
	}
}
