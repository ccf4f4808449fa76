// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// SetMIG puts a GPU into MIG mode or out of it, if it is not so already, and fails unless the mode is in force after.
// It wraps gpu.ErrInUse while a client holds the GPU, gpu.ErrPartitioned where leaving the mode would destroy GPU instances,
// and gpu.ErrResetRequired where only a reset changes the mode; a mode that is merely pending is taken back.
func (s *Session) SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error {
	_, err := alter(ctx, s, pci, "nvmlDeviceSetMigMode", func(dev Device) (struct{}, error) { return struct{}{}, setMIG(ctx, dev, pci, enable) })
	return err
}

func setMIG(ctx context.Context, dev Device, pci gpu.PCIAddress, enable bool) error {
	current, pending, err := dev.MIGMode()
	if err != nil {
		return fmt.Errorf("read the MIG mode of the GPU at %s: %w", pci, err)
	}
	if current == enable && pending == enable {
		return nil
	}
	if !enable {
		if err := noInstances(dev); err != nil {
			return fmt.Errorf("leave the MIG mode of the GPU at %s: %w", pci, err)
		}
	}
	klog.FromContext(ctx).V(4).Info("Changing the MIG mode", "pci", pci, "enable", enable)
	activation, err := dev.SetMIGMode(enable)
	if err := errors.Join(err, activation); err != nil {
		_, undo := dev.SetMIGMode(current)
		return errors.Join(fmt.Errorf("set the MIG mode of the GPU at %s to %t: %w", pci, enable, err), undo)
	}
	return nil
}

// CreatePartition makes a GPU instance at a placement and a compute instance that fills it. Should a step fail, the
// steps before it are undone. Should one hang, nobody knows what will be there: the error wraps gpu.ErrLeftBehind.
func (s *Session) CreatePartition(ctx context.Context, shape gpu.Shape) (gpu.Partition, error) {
	part, err := alter(ctx, s, shape.GPU.PCI, "nvmlDeviceCreateGpuInstanceWithPlacement", func(dev Device) (gpu.Partition, error) {
		return s.createPartition(dev, shape)
	})
	if errors.Is(err, gpu.ErrHangs) {
		err = errors.Join(err, gpu.ErrLeftBehind)
		part = gpu.Partition{ProfileID: shape.Profile.ID, Placement: shape.Placement}
	}
	return part, err
}

func (s *Session) createPartition(dev Device, shape gpu.Shape) (_ gpu.Partition, err error) {
	part := gpu.Partition{ProfileID: shape.Profile.ID, Placement: shape.Placement}
	gi, err := dev.CreateGPUInstanceWithPlacement(shape.Profile.ID, shape.Placement)
	if err != nil {
		return part, fmt.Errorf("create GPU instance %s: %w", shape.Name(), err)
	}
	defer func() {
		if err != nil {
			err = unmade(err, gi.Destroy())
		}
	}()
	info, err := gi.Info()
	if err != nil {
		return part, fmt.Errorf("read GPU instance %s: %w", shape.Name(), err)
	}
	if info.Placement != shape.Placement {
		return part, fmt.Errorf("create GPU instance %s: the driver placed it at %d:%d", shape.Name(), info.Placement.Start, info.Placement.Size)
	}
	part.GI = info.ID
	profile, err := s.fillingProfile(gi, shape.Profile)
	if err != nil {
		return part, fmt.Errorf("read the compute profiles of %s: %w", shape.Name(), err)
	}
	ci, err := gi.CreateComputeInstance(profile)
	if err != nil {
		return part, fmt.Errorf("create the compute instance of %s: %w", shape.Name(), err)
	}
	defer func() {
		if err != nil {
			err = unmade(err, ci.Destroy()) // runs before the GPU instance's, which it must
		}
	}()
	made, err := ci.Info()
	if err != nil {
		return part, fmt.Errorf("read the compute instance of %s: %w", shape.Name(), err)
	}
	part.CI, part.UUID = &made.ID, made.UUID
	return part, nil
}

// unmade adds to the error of a step what came of undoing the steps before it.
func unmade(err, undo error) error {
	if undo == nil {
		return err
	}
	return errors.Join(err, undo, gpu.ErrLeftBehind)
}

// fillingProfile is the ID of the compute instance profile that fills a GPU instance. The driver says it once a
// profile; it cannot change while the driver is loaded.
func (s *Session) fillingProfile(gi GPUInstance, p *gpu.Profile) (int, error) {
	s.mu.RLock()
	id, ok := s.filling[p.ComputeSlices]
	s.mu.RUnlock()
	if ok {
		return id, nil
	}
	enum, ok := wholeInstance[p.ComputeSlices]
	if !ok {
		return 0, fmt.Errorf("%d compute slices: %w", p.ComputeSlices, gpu.ErrNotSupported)
	}
	id, err := gi.ComputeInstanceProfileID(enum)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filling[p.ComputeSlices] = id
	return id, nil
}

// DestroyPartition unmakes a partition. One that is gone is no error. A GPU instance that has the ID but another
// profile or placement is somebody else's and is left alone. It wraps gpu.ErrInUse while a process is in it.
func (s *Session) DestroyPartition(ctx context.Context, pci gpu.PCIAddress, part gpu.Partition) error {
	_, err := alter(ctx, s, pci, "nvmlGpuInstanceDestroy", func(dev Device) (struct{}, error) {
		return struct{}{}, s.destroyPartition(ctx, dev, pci, part)
	})
	return err
}

func (s *Session) destroyPartition(ctx context.Context, dev Device, pci gpu.PCIAddress, part gpu.Partition) error {
	gi, err := dev.GPUInstanceByID(part.GI)
	if errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) {
		return nil // not there, or the GPU is out of MIG mode and has none
	}
	if err != nil {
		return fmt.Errorf("find GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
	}
	info, err := gi.Info()
	if err != nil {
		return fmt.Errorf("read GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
	}
	if info.ProfileID != part.ProfileID || info.Placement != part.Placement {
		klog.FromContext(ctx).Info("A GPU instance was replaced by somebody else; leaving it", "pci", pci, "gi", part.GI)
		return nil
	}
	cis, err := s.computeInstances(gi, part)
	if err != nil {
		return err
	}
	for _, ci := range cis {
		if err := ci.Destroy(); err != nil {
			return fmt.Errorf("destroy the compute instance of GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
		}
	}
	if err := gi.Destroy(); err != nil {
		return fmt.Errorf("destroy GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
	}
	return nil
}

// computeInstances are those to destroy with a partition: the known one, or what a creation cut short has left.
func (s *Session) computeInstances(gi GPUInstance, part gpu.Partition) ([]ComputeInstance, error) {
	if part.CI != nil {
		ci, err := gi.ComputeInstanceByID(*part.CI)
		if errors.Is(err, gpu.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("find compute instance %d of GPU instance %d: %w", *part.CI, part.GI, err)
		}
		return []ComputeInstance{ci}, nil
	}
	var all []ComputeInstance
	for _, enum := range computeEnums {
		id, err := gi.ComputeInstanceProfileID(enum)
		if errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) {
			continue // the GPU instance has no such profile
		}
		if err != nil {
			return nil, fmt.Errorf("read compute profile %d of GPU instance %d: %w", enum, part.GI, err)
		}
		some, err := gi.ComputeInstances(id)
		if err != nil {
			return nil, fmt.Errorf("list the compute instances of GPU instance %d: %w", part.GI, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// Partitions lists the GPU instances of a GPU by ID, those without a compute instance too: walking MIG devices would
// miss them.
func (s *Session) Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error) {
	return ask(ctx, s, g.PCI, "nvmlDeviceGetGpuInstances", func(dev Device) ([]gpu.Partition, error) { return s.partitions(ctx, dev, g) })
}

func (s *Session) partitions(ctx context.Context, dev Device, g *gpu.GPU) ([]gpu.Partition, error) {
	var found []gpu.Partition
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		instances, err := dev.GPUInstances(p.ID)
		if errors.Is(err, gpu.ErrNotSupported) {
			return nil, nil // out of MIG mode
		}
		if err != nil {
			return nil, fmt.Errorf("list GPU instances of profile %d of the GPU at %s: %w", p.ID, g.PCI, err)
		}
		for _, gi := range instances {
			part, err := s.describe(gi)
			if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotFound) {
				continue // destroyed meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("read a GPU instance of the GPU at %s: %w", g.PCI, err)
			}
			found = append(found, part)
		}
	}
	slices.SortFunc(found, func(a, b gpu.Partition) int { return cmp.Compare(a.GI, b.GI) })
	return found, ctx.Err()
}

// PartitionAt returns the partition of a GPU that has the profile and placement of another, or nil. It asks for the
// instances of that profile alone, which on an idle GPU is one call.
func (s *Session) PartitionAt(ctx context.Context, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error) {
	return ask(ctx, s, pci, "nvmlDeviceGetGpuInstances", func(dev Device) (*gpu.Partition, error) { return s.partitionAt(dev, pci, like) })
}

func (s *Session) partitionAt(dev Device, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error) {
	instances, err := dev.GPUInstances(like.ProfileID)
	if errors.Is(err, gpu.ErrNotSupported) {
		return nil, nil //nolint:nilnil // out of MIG mode there are none
	}
	if err != nil {
		return nil, fmt.Errorf("list GPU instances of profile %d of the GPU at %s: %w", like.ProfileID, pci, err)
	}
	for _, gi := range instances {
		info, err := gi.Info()
		if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotFound) {
			continue // destroyed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read a GPU instance of the GPU at %s: %w", pci, err)
		}
		if info.Placement != like.Placement {
			continue
		}
		part, err := s.describe(gi)
		return &part, err
	}
	return nil, nil //nolint:nilnil // absence is an ordinary answer
}

// describe reads a GPU instance and, if it has just one compute instance, that.
func (s *Session) describe(gi GPUInstance) (gpu.Partition, error) {
	info, err := gi.Info()
	if err != nil {
		return gpu.Partition{}, err
	}
	part := gpu.Partition{ProfileID: info.ProfileID, Placement: info.Placement, GI: info.ID}
	cis, err := s.computeInstances(gi, part)
	if err != nil || len(cis) != 1 {
		return part, err
	}
	ci, err := cis[0].Info()
	if err != nil {
		return part, err
	}
	part.CI, part.UUID = &ci.ID, ci.UUID
	return part, nil
}
