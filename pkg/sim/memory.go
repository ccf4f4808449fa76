// SPDX-License-Identifier: Apache-2.0

package sim

import "slices"

// DeviceMemory is the memory of a GPU, and the processes that use it.
type DeviceMemory struct{ *access }

// Memory is the size and use of a GPU's memory, in bytes. Total = Reserved + Used + Free.
type Memory struct {
	Total, Reserved, Used, Free uint64
}

// MemoryTotal is the total in bytes (nvmlDeviceGetMemoryInfo).
func (d DeviceMemory) MemoryTotal() (uint64, error) {
	m, err := d.memory("nvmlDeviceGetMemoryInfo")
	return m.Total, err
}

// MemoryTotalReserved is the total and the driver's part of it, in bytes (nvmlDeviceGetMemoryInfo_v2).
func (d DeviceMemory) MemoryTotalReserved() (total, reserved uint64, err error) {
	m, err := d.memory("nvmlDeviceGetMemoryInfo_v2")
	return m.Total, m.Reserved, err
}

// MemoryV1 is the full answer of nvmlDeviceGetMemoryInfo.
func (d DeviceMemory) MemoryV1() (Memory, error) { return d.memory("nvmlDeviceGetMemoryInfo") }

// MemoryV2 is the full answer of nvmlDeviceGetMemoryInfo_v2.
func (d DeviceMemory) MemoryV2() (Memory, error) { return d.memory("nvmlDeviceGetMemoryInfo_v2") }

func (d DeviceMemory) memory(call string) (Memory, error) {
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
func (d DeviceMemory) BAR1Total() (uint64, error) {
	return d.board.BAR1MiB << 20, d.node.enter("nvmlDeviceGetBAR1MemoryInfo", d.index)
}

// ECCMode reports whether ECC is on, now and after a reset (nvmlDeviceGetEccMode); ErrNotSupported on boards without.
func (d DeviceMemory) ECCMode() (current, pending bool, err error) {
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
func (d DeviceMemory) TotalECCErrors() (uint64, error) {
	const call = "nvmlDeviceGetTotalEccErrors"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if !d.board.ECC {
		return 0, fail(call, CodeNotSupported, "%s has no ECC memory", d.board.Product)
	}
	return 0, nil
}

// RemappedRows is the number of memory rows remapped, none (nvmlDeviceGetRemappedRows); ErrNotSupported in MIG mode.
func (d DeviceMemory) RemappedRows() error {
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

// Processes lists the processes that use the GPU, by PID (nvmlDeviceGetComputeRunningProcesses_v3).
func (d DeviceMemory) Processes() ([]Client, error) {
	st, err := d.load("nvmlDeviceGetComputeRunningProcesses_v3")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(st.Clients), func(c Client) bool { return c.Leaked }), nil
}
