// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// GPUInstance is a handle to a GPU instance (nvmlGpuInstance_t). It becomes stale with the instance: a later instance with the same
// ID has another handle.
type GPUInstance struct {
	device MIG
	id     int
	serial uint64
}

// GPUInstanceInfo describes a GPU instance (nvmlGpuInstanceInfo_t).
type GPUInstanceInfo struct {
	ID        int
	ProfileID int
	Placement gpu.Placement
}

// GPUInstanceHandle returns the handle of an instance by its identity, whether it exists or not.
func (d MIG) GPUInstanceHandle(id int, serial uint64) *GPUInstance {
	return &GPUInstance{device: d, id: id, serial: serial}
}

// Device is the GPU of the instance, ID its number there, and Serial distinguishes it from others with that number.
func (g *GPUInstance) Device() *Device { return g.device.node.devices[g.device.index] }

// ID is the GPU instance ID.
func (g *GPUInstance) ID() int { return g.id }

// Serial distinguishes the instance from others of the same ID.
func (g *GPUInstance) Serial() uint64 { return g.serial }

// serialMask is the part of a serial number that handles of the shared library have room for.
const serialMask = 1<<12 - 1

// sameSerial compares serial numbers as far as handles hold them.
func sameSerial(a, b uint64) bool { return a&serialMask == b&serialMask }

// find returns the instance in the state of its GPU, and its profile.
func (g *GPUInstance) find(call string, st *gpuState) (*gpuInstance, *Profile, error) {
	if err := g.device.needMIG(call, st); err != nil {
		return nil, nil, err
	}
	gi := st.findInstance(g.id)
	if gi == nil || !sameSerial(gi.Serial, g.serial) {
		return nil, nil, fail(call, CodeInvalidArgument, "GPU instance %d of GPU %d is gone", g.id, g.device.index)
	}
	return gi, g.device.board.profileByID(gi.Profile), nil
}

// load begins a call on the instance and returns it.
func (g *GPUInstance) load(call string) (*gpuInstance, *Profile, error) {
	st, err := g.device.load(call)
	if err != nil {
		return nil, nil, err
	}
	return g.find(call, st)
}

// CreateGPUInstance creates an instance of a profile ID where the driver chooses: at the lowest free start
// (nvmlDeviceCreateGpuInstance).
func (d MIG) CreateGPUInstance(profileID int) (*GPUInstance, error) {
	return d.createGPUInstance("nvmlDeviceCreateGpuInstance", profileID, nil)
}

// CreateGPUInstanceWithPlacement creates an instance of a profile ID at a placement (nvmlDeviceCreateGpuInstanceWithPlacement);
// ErrInsufficientResources if that is occupied.
func (d MIG) CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (*GPUInstance, error) {
	return d.createGPUInstance("nvmlDeviceCreateGpuInstanceWithPlacement", profileID, &at)
}

func (d MIG) createGPUInstance(call string, profileID int, at *gpu.Placement) (*GPUInstance, error) {
	made := &GPUInstance{device: d}
	err := d.update(call, func(st *gpuState) error {
		if err := d.needMIG(call, st); err != nil {
			return err
		}
		if st.Virtualization == VirtualizationVGPU {
			return fail(call, CodeNotSupported, "GPU %d is a vGPU: its host has the GPU instances", d.index)
		}
		p, err := d.profileByID(call, profileID)
		if err != nil {
			return err
		}
		if err := d.firstInUse(call, st); err != nil {
			return err
		}
		start, err := d.place(call, st, p, at)
		if err != nil {
			return err
		}
		if d.node.has(QuirkFewerInstances) && len(st.Instances) >= fewInstances {
			return fail(call, CodeInsufficientResources, "GPU %d takes no more than %d GPU instances", d.index, fewInstances)
		}
		st.LastSerial++
		made.id, made.serial = instanceID(d.board.MIG.Slices, start, p.Size), st.LastSerial
		st.Instances = append(st.Instances, gpuInstance{ID: made.id, Profile: p.ID, Start: start, Serial: made.serial})
		slices.SortFunc(st.Instances, func(a, b gpuInstance) int { return cmp.Compare(a.ID, b.ID) })
		st.addMIGEvent()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// fewInstances is the maximum number of GPU instances with QuirkFewerInstances.
const fewInstances = 3

// place finds the start of a new instance: the requested one, or the first free one.
func (d MIG) place(call string, st *gpuState, p *Profile, at *gpu.Placement) (int, error) {
	if at != nil {
		if at.Size != p.Size {
			return 0, fail(call, CodeInvalidArgument, "%s has size %d, not %d", p.Name, p.Size, at.Size)
		}
		if err := st.admit(d.board, p, at.Start); err != nil {
			return 0, err.in(call)
		}
		return at.Start, nil
	}
	for _, start := range p.Starts {
		if st.admit(d.board, p, start) == nil {
			return start, nil
		}
	}
	return 0, fail(call, CodeInsufficientResources, "no placement of %s is free", p.Name)
}

// GPUInstances lists the instances of a profile ID, by ID (nvmlDeviceGetGpuInstances).
func (d MIG) GPUInstances(profileID int) ([]*GPUInstance, error) {
	const call = "nvmlDeviceGetGpuInstances"
	st, err := d.load(call)
	if err != nil {
		return nil, err
	}
	// Outside MIG mode there are none, which is no error (captured with driver 580.159.04 on H100 and H200).
	if d.board.MIG == nil {
		return nil, d.noMIG(call)
	}
	if _, err := d.profileByID(call, profileID); err != nil {
		return nil, fail(call, CodeInvalidArgument, "%v", err)
	}
	var found []*GPUInstance
	for _, gi := range st.Instances {
		if gi.Profile == profileID {
			found = append(found, d.GPUInstanceHandle(gi.ID, gi.Serial))
		}
	}
	return found, nil
}

// GPUInstanceByID returns the instance of an ID (nvmlDeviceGetGpuInstanceById).
func (d MIG) GPUInstanceByID(id int) (*GPUInstance, error) {
	const call = "nvmlDeviceGetGpuInstanceById"
	st, err := d.loadMIG(call)
	if err != nil {
		return nil, err
	}
	gi := st.findInstance(id)
	if gi == nil {
		return nil, fail(call, CodeNotFound, "GPU %d has no GPU instance %d", d.index, id)
	}
	return d.GPUInstanceHandle(gi.ID, gi.Serial), nil
}

// GPUInstanceRemainingCapacity is the number of instances of a profile ID that still fit, or would in MIG mode
// (nvmlDeviceGetGpuInstanceRemainingCapacity; captured with driver 580.159.04 on H100 and H200).
func (d MIG) GPUInstanceRemainingCapacity(profileID int) (int, error) {
	const call = "nvmlDeviceGetGpuInstanceRemainingCapacity"
	st, err := d.load(call)
	if err != nil {
		return 0, err
	}
	if d.board.MIG == nil {
		return 0, d.noMIG(call)
	}
	p, err := d.profileByID(call, profileID)
	if err != nil {
		return 0, err
	}
	trial, count := st.clone(), 0
	for _, start := range p.Starts {
		if trial.admit(d.board, p, start) == nil {
			trial.Instances = append(trial.Instances, gpuInstance{Profile: p.ID, Start: start})
			count++
		}
	}
	return count, nil
}

// Info describes the instance (nvmlGpuInstanceGetInfo).
func (g *GPUInstance) Info() (GPUInstanceInfo, error) {
	gi, p, err := g.load("nvmlGpuInstanceGetInfo")
	if err != nil {
		return GPUInstanceInfo{}, err
	}
	return GPUInstanceInfo{ID: gi.ID, ProfileID: gi.Profile, Placement: gpu.Placement{Start: gi.Start, Size: p.Size}}, nil
}

// Destroy destroys the instance (nvmlGpuInstanceDestroy); ErrInUse while it has compute instances, or a process has it open.
func (g *GPUInstance) Destroy() error {
	const call = "nvmlGpuInstanceDestroy"
	return g.device.update(call, func(st *gpuState) error {
		gi, _, err := g.find(call, st)
		if err != nil {
			return err
		}
		if len(gi.Compute) > 0 {
			return fail(call, CodeInUse, "GPU instance %d of GPU %d has compute instances", g.id, g.device.index)
		}
		if who := st.users(func(c Client) bool { return c.Leaked && c.GPUInstance == g.id }); who != "" {
			return fail(call, CodeInUse, "GPU instance %d of GPU %d is open in %s", g.id, g.device.index, who)
		}
		st.Instances = slices.DeleteFunc(st.Instances, func(o gpuInstance) bool { return o.ID == g.id })
		st.addMIGEvent()
		return nil
	})
}
