// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// MIGDevice is a handle to a partition as NVML presents it to programs: a compute instance that looks like a GPU.
type MIGDevice struct {
	compute *ComputeInstance
}

// MIGDeviceOf is the MIG device handle of a compute instance.
func MIGDeviceOf(c *ComputeInstance) *MIGDevice { return &MIGDevice{compute: c} }

// Compute is the compute instance behind it.
func (m *MIGDevice) Compute() *ComputeInstance { return m.compute }

// device is its GPU.
func (m *MIGDevice) device() MIG { return m.compute.parent.device }

// uuid is derived from the partition's place, so that a partition recreated there has the same one.
func (m *MIGDevice) uuid() string {
	c := m.compute
	return "MIG-" + uuidOf(fmt.Sprintf("%s/%d/%d", m.device().spec.UUID, c.parent.id, c.id))
}

// migDevices lists the partitions of a GPU, by GPU instance and compute instance.
func (d MIG) migDevices(st *gpuState) []*MIGDevice {
	var found []*MIGDevice
	for _, gi := range st.Instances {
		for _, ci := range gi.Compute {
			found = append(found, MIGDeviceOf(&ComputeInstance{parent: d.GPUInstanceHandle(gi.ID, gi.Serial), id: ci.ID, serial: ci.Serial}))
		}
	}
	return found
}

// MaxMIGDevices is the maximum number of partitions, 0 outside MIG mode (nvmlDeviceGetMaxMigDeviceCount).
func (d MIG) MaxMIGDevices() (int, error) {
	st, err := d.load("nvmlDeviceGetMaxMigDeviceCount")
	if err != nil || !st.MIG || d.board.MIG == nil {
		return 0, err
	}
	most := 0
	for i := range d.board.MIG.Profiles {
		most = max(most, d.board.MIG.Profiles[i].ComputeSlices)
	}
	return most, nil
}

// MIGDeviceByIndex returns a partition by its index among the existing ones (nvmlDeviceGetMigDeviceHandleByIndex); ErrNotFound past
// the last.
func (d MIG) MIGDeviceByIndex(index int) (*MIGDevice, error) {
	const call = "nvmlDeviceGetMigDeviceHandleByIndex"
	st, err := d.loadMIG(call)
	if err != nil {
		return nil, err
	}
	devices := d.migDevices(st)
	if index < 0 || index >= len(devices) {
		return nil, fail(call, CodeNotFound, "GPU %d has %d partitions", d.index, len(devices))
	}
	return devices[index], nil
}

// load starts a call on the partition and returns it with the profile of its GPU instance.
func (m *MIGDevice) load(call string) (*gpuState, *ComputeProfile, *Profile, error) {
	d := m.device()
	st, err := d.load(call)
	if err != nil {
		return nil, nil, nil, err
	}
	ci, gi, err := m.compute.find(call, st)
	if err != nil {
		return nil, nil, nil, err
	}
	p := d.board.profileByID(gi.Profile)
	return st, p.computeByID(ci.Profile), p, nil
}

// Parent is the GPU of the partition (nvmlDeviceGetDeviceHandleFromMigDeviceHandle).
func (m *MIGDevice) Parent() (*Device, error) {
	if _, _, _, err := m.load("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"); err != nil {
		return nil, err
	}
	return m.compute.parent.Device(), nil
}

// GPUInstanceID is nvmlDeviceGetGpuInstanceId.
func (m *MIGDevice) GPUInstanceID() (int, error) {
	_, _, _, err := m.load("nvmlDeviceGetGpuInstanceId")
	return m.compute.parent.id, err
}

// ComputeInstanceID is nvmlDeviceGetComputeInstanceId.
func (m *MIGDevice) ComputeInstanceID() (int, error) {
	_, _, _, err := m.load("nvmlDeviceGetComputeInstanceId")
	return m.compute.id, err
}

// Index is the index of the partition among those of its GPU (nvmlDeviceGetIndex): MIGDeviceByIndex takes it.
func (m *MIGDevice) Index() (int, error) {
	st, _, _, err := m.load("nvmlDeviceGetIndex")
	if err != nil {
		return 0, err
	}
	return slices.IndexFunc(m.device().migDevices(st), func(o *MIGDevice) bool {
		return o.compute.parent.id == m.compute.parent.id && o.compute.id == m.compute.id
	}), nil
}

// BAR1Total is the size of the partition's part of BAR1 in bytes, proportional to its placement units
// (nvmlDeviceGetBAR1MemoryInfo).
func (m *MIGDevice) BAR1Total() (uint64, error) {
	_, _, p, err := m.load("nvmlDeviceGetBAR1MemoryInfo")
	if err != nil {
		return 0, err
	}
	b := m.device().board
	return b.BAR1MiB << 20 / uint64(b.MIG.Slices) * uint64(p.Size), nil
}

// UUID is "MIG-…" (nvmlDeviceGetUUID).
func (m *MIGDevice) UUID() (string, error) {
	_, _, _, err := m.load("nvmlDeviceGetUUID")
	return m.uuid(), err
}

// Name is the product and the profile, such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb" (nvmlDeviceGetName).
func (m *MIGDevice) Name() (string, error) {
	_, c, p, err := m.load("nvmlDeviceGetName")
	if err != nil {
		return "", err
	}
	return m.device().board.Product + " MIG " + c.name(p), nil
}

// name is a partition's name: the GPU instance's, prefixed with the compute slices if these are fewer.
func (c *ComputeProfile) name(p *Profile) string {
	if c.Slices == p.ComputeSlices {
		return p.Name
	}
	return fmt.Sprintf("%dc.%s", c.Slices, p.Name)
}

// MemoryV1 and MemoryV2 are the memory of the GPU instance, in bytes (nvmlDeviceGetMemoryInfo and its v2).
func (m *MIGDevice) MemoryV1() (Memory, error) { return m.memory("nvmlDeviceGetMemoryInfo") }

// MemoryV2 is nvmlDeviceGetMemoryInfo_v2.
func (m *MIGDevice) MemoryV2() (Memory, error) { return m.memory("nvmlDeviceGetMemoryInfo_v2") }

func (m *MIGDevice) memory(call string) (Memory, error) {
	st, _, p, err := m.load(call)
	if err != nil {
		return Memory{}, err
	}
	mem := Memory{Total: p.MemoryMiB << 20}
	for i := range st.Clients {
		if st.Clients[i].GPUInstance == m.compute.parent.id {
			mem.Used += st.Clients[i].Memory
		}
	}
	mem.Used = min(mem.Used, mem.Total)
	mem.Free = mem.Total - mem.Used
	return mem, nil
}

// Processes lists the processes in the partition, by PID (nvmlDeviceGetComputeRunningProcesses_v3).
func (m *MIGDevice) Processes() ([]Client, error) {
	st, _, _, err := m.load("nvmlDeviceGetComputeRunningProcesses_v3")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(st.Clients), func(c Client) bool {
		return c.GPUInstance != m.compute.parent.id || c.ComputeInstance != m.compute.id
	}), nil
}

// Attributes are the resources of a partition (nvmlDeviceAttributes_t). Engines are shared within the GPU instance.
type Attributes struct {
	// Instance is the profile of the GPU instance: engines, memory, compute slices.
	Instance gpu.Profile
	// Multiprocessors and Slices are those of the compute instance.
	Multiprocessors, Slices int
}

// Attributes returns the resources of the partition (nvmlDeviceGetAttributes_v2).
func (m *MIGDevice) Attributes() (Attributes, error) {
	_, c, p, err := m.load("nvmlDeviceGetAttributes_v2")
	if err != nil {
		return Attributes{}, err
	}
	return Attributes{Instance: p.Info(), Multiprocessors: c.multiprocessors(p), Slices: c.Slices}, nil
}

// IsMIG starts a call of nvmlDeviceIsMigDeviceHandle on the GPU of a handle.
func (d *Device) IsMIG() error { return d.node.enter("nvmlDeviceIsMigDeviceHandle", d.index) }
