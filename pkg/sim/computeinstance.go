// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// ComputeInstance is a handle to a compute instance (nvmlComputeInstance_t).
type ComputeInstance struct {
	parent *GPUInstance
	id     int
	serial uint64
}

// ComputeInstanceInfo describes a compute instance (nvmlComputeInstanceInfo_t).
type ComputeInstanceInfo struct {
	ID        int
	ProfileID int
	// Placement in compute slices of the GPU instance.
	Placement gpu.Placement
	// GPUInstance contains it.
	GPUInstance *GPUInstance
}

// ComputeInstanceHandle returns the handle of a compute instance by its identity, whether it exists or not. The GPU instance needs
// only its ID: the serial number of the compute instance implies the rest.
func (d MIG) ComputeInstanceHandle(gi, id int, serial uint64) *ComputeInstance {
	return &ComputeInstance{parent: &GPUInstance{device: d, id: gi}, id: id, serial: serial}
}

// Parent is the GPU instance that contains it.
func (c *ComputeInstance) Parent() *GPUInstance { return c.parent }

// ID is the compute instance ID within its GPU instance.
func (c *ComputeInstance) ID() int { return c.id }

// Serial distinguishes the instance from others of the same ID.
func (c *ComputeInstance) Serial() uint64 { return c.serial }

// find returns the compute instance in the state of its GPU, with its GPU instance.
func (c *ComputeInstance) find(call string, st *gpuState) (*computeInstance, *gpuInstance, error) {
	d := c.parent.device
	if err := d.needMIG(call, st); err != nil {
		return nil, nil, err
	}
	if gi := st.findInstance(c.parent.id); gi != nil {
		if ci := gi.findCompute(c.id); ci != nil && sameSerial(ci.Serial, c.serial) {
			return ci, gi, nil
		}
	}
	return nil, nil, fail(call, CodeInvalidArgument, "compute instance %d of GPU instance %d of GPU %d is gone", c.id, c.parent.id, d.index)
}

// computeProfile finds a compute instance profile of the GPU instance by its ID.
func computeProfile(call string, p *Profile, id int) (*ComputeProfile, error) {
	c := p.computeByID(id)
	if c == nil {
		return nil, fail(call, CodeNotSupported, "%s has no compute instance profile %d", p.Name, id)
	}
	return c, nil
}

// ComputeProfileInfo is a compute instance profile and its part of its GPU instance (nvmlComputeInstanceProfileInfo_t). Engines are
// those of the GPU instance, shared.
type ComputeProfileInfo struct {
	ComputeProfile
	Name            string
	MaxInstances    int
	Multiprocessors int
	Shared          gpu.Profile
}

// profileEnumsCompute is NVML_COMPUTE_INSTANCE_PROFILE_COUNT.
const profileEnumsCompute = 9

// ComputeInstanceProfileInfo describes the compute instance profile of an NVML enum, and of the engine profile 0
// (nvmlGpuInstanceGetComputeInstanceProfileInfo).
func (g *GPUInstance) ComputeInstanceProfileInfo(enum, engines int) (ComputeProfileInfo, error) {
	const call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
	_, p, err := g.load(call)
	if err != nil {
		return ComputeProfileInfo{}, err
	}
	if enum < 0 || enum >= profileEnumsCompute || engines != 0 {
		return ComputeProfileInfo{}, fail(call, CodeInvalidArgument, "compute profile enum %d, engine profile %d", enum, engines)
	}
	c := p.computeByEnum(enum)
	if c == nil {
		return ComputeProfileInfo{}, fail(call, CodeNotSupported, "%s has no compute instance profile of enum %d", p.Name, enum)
	}
	return ComputeProfileInfo{
		ComputeProfile:  *c,
		Name:            c.name(p),
		MaxInstances:    len(c.Starts),
		Multiprocessors: c.multiprocessors(p),
		Shared:          p.Info(),
	}, nil
}

// ComputeInstancePossiblePlacements lists the possible placements of compute instances of a profile ID
// (nvmlGpuInstanceGetComputeInstancePossiblePlacements).
func (g *GPUInstance) ComputeInstancePossiblePlacements(profileID int) ([]gpu.Placement, error) {
	const call = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
	_, p, err := g.load(call)
	if err != nil {
		return nil, err
	}
	c, err := computeProfile(call, p, profileID)
	if err != nil {
		return nil, err
	}
	var placements []gpu.Placement
	for _, start := range c.Starts {
		placements = append(placements, gpu.Placement{Start: start, Size: c.Slices})
	}
	return placements, nil
}

// ComputeInstanceRemainingCapacity is the number of instances of a profile ID that still fit
// (nvmlGpuInstanceGetComputeInstanceRemainingCapacity).
func (g *GPUInstance) ComputeInstanceRemainingCapacity(profileID int) (int, error) {
	const call = "nvmlGpuInstanceGetComputeInstanceRemainingCapacity"
	gi, p, err := g.load(call)
	if err != nil {
		return 0, err
	}
	c, err := computeProfile(call, p, profileID)
	if err != nil {
		return 0, err
	}
	trial, count := gpuInstance{Compute: slices.Clone(gi.Compute)}, 0
	for _, start := range c.Starts {
		if trial.admit(p, c, start) == nil {
			trial.Compute = append(trial.Compute, computeInstance{Profile: c.ID, Start: start})
			count++
		}
	}
	return count, nil
}

// CreateComputeInstance creates a compute instance of a profile ID at the first free place (nvmlGpuInstanceCreateComputeInstance).
func (g *GPUInstance) CreateComputeInstance(profileID int) (*ComputeInstance, error) {
	return g.createComputeInstance("nvmlGpuInstanceCreateComputeInstance", profileID, nil)
}

// CreateComputeInstanceWithPlacement creates it at a placement (nvmlGpuInstanceCreateComputeInstanceWithPlacement).
func (g *GPUInstance) CreateComputeInstanceWithPlacement(profileID int, at gpu.Placement) (*ComputeInstance, error) {
	return g.createComputeInstance("nvmlGpuInstanceCreateComputeInstanceWithPlacement", profileID, &at)
}

func (g *GPUInstance) createComputeInstance(call string, profileID int, at *gpu.Placement) (*ComputeInstance, error) {
	made := &ComputeInstance{parent: g}
	err := g.device.update(call, func(st *gpuState) error {
		gi, p, err := g.find(call, st)
		if err != nil {
			return err
		}
		c, err := computeProfile(call, p, profileID)
		if err != nil {
			return err
		}
		start, err := gi.place(call, p, c, at)
		if err != nil {
			return err
		}
		for gi.findCompute(made.id) != nil { // the driver assigns the lowest free number
			made.id++
		}
		st.LastSerial++
		made.serial = st.LastSerial
		gi.Compute = append(gi.Compute, computeInstance{ID: made.id, Profile: c.ID, Start: start, Serial: made.serial})
		slices.SortFunc(gi.Compute, func(a, b computeInstance) int { return cmp.Compare(a.ID, b.ID) })
		st.addMIGEvent()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// place finds the start of a new compute instance: the requested one, or the first free one.
func (gi *gpuInstance) place(call string, p *Profile, c *ComputeProfile, at *gpu.Placement) (int, error) {
	if at != nil {
		if at.Size != c.Slices {
			return 0, fail(call, CodeInvalidArgument, "compute profile %d has size %d, not %d", c.ID, c.Slices, at.Size)
		}
		if err := gi.admit(p, c, at.Start); err != nil {
			return 0, err.in(call)
		}
		return at.Start, nil
	}
	for _, start := range c.Starts {
		if gi.admit(p, c, start) == nil {
			return start, nil
		}
	}
	return 0, fail(call, CodeInsufficientResources, "GPU instance %d has no room for compute profile %d", gi.ID, c.ID)
}

// ComputeInstances lists the compute instances of a profile ID, by ID (nvmlGpuInstanceGetComputeInstances).
func (g *GPUInstance) ComputeInstances(profileID int) ([]*ComputeInstance, error) {
	const call = "nvmlGpuInstanceGetComputeInstances"
	gi, p, err := g.load(call)
	if err != nil {
		return nil, err
	}
	if _, err := computeProfile(call, p, profileID); err != nil {
		return nil, err
	}
	var found []*ComputeInstance
	for _, ci := range gi.Compute {
		if ci.Profile == profileID {
			found = append(found, &ComputeInstance{parent: g, id: ci.ID, serial: ci.Serial})
		}
	}
	return found, nil
}

// ComputeInstanceByID returns the compute instance of an ID (nvmlGpuInstanceGetComputeInstanceById).
func (g *GPUInstance) ComputeInstanceByID(id int) (*ComputeInstance, error) {
	const call = "nvmlGpuInstanceGetComputeInstanceById"
	gi, _, err := g.load(call)
	if err != nil {
		return nil, err
	}
	ci := gi.findCompute(id)
	if ci == nil {
		return nil, fail(call, CodeNotFound, "GPU instance %d has no compute instance %d", g.id, id)
	}
	return &ComputeInstance{parent: g, id: id, serial: ci.Serial}, nil
}

// Info describes the compute instance (nvmlComputeInstanceGetInfo_v2).
func (c *ComputeInstance) Info() (ComputeInstanceInfo, error) {
	const call = "nvmlComputeInstanceGetInfo_v2"
	st, err := c.parent.device.load(call)
	if err != nil {
		return ComputeInstanceInfo{}, err
	}
	ci, gi, err := c.find(call, st)
	if err != nil {
		return ComputeInstanceInfo{}, err
	}
	size := c.parent.device.board.profileByID(gi.Profile).computeByID(ci.Profile).Slices
	return ComputeInstanceInfo{
		ID:          ci.ID,
		ProfileID:   ci.Profile,
		Placement:   gpu.Placement{Start: ci.Start, Size: size},
		GPUInstance: c.parent.device.GPUInstanceHandle(gi.ID, gi.Serial),
	}, nil
}

// Destroy destroys the compute instance (nvmlComputeInstanceDestroy); ErrInUse while a process is in it.
func (c *ComputeInstance) Destroy() error {
	const call = "nvmlComputeInstanceDestroy"
	return c.parent.device.update(call, func(st *gpuState) error {
		_, gi, err := c.find(call, st)
		if err != nil {
			return err
		}
		who := st.users(func(k Client) bool { return k.GPUInstance == gi.ID && k.ComputeInstance == c.id })
		if who != "" {
			return fail(call, CodeInUse, "compute instance %d of GPU instance %d of GPU %d is in use by %s", c.id, gi.ID, c.parent.device.index, who)
		}
		gi.Compute = slices.DeleteFunc(gi.Compute, func(o computeInstance) bool { return o.ID == c.id })
		st.addMIGEvent()
		return nil
	})
}
