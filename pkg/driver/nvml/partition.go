// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// SetMIG enables or disables the MIG mode of a GPU and fails unless the mode takes effect at once. The error wraps gpu.ErrInUse if
// a client uses the GPU, gpu.ErrPartitioned if disabling would destroy GPU instances, and gpu.ErrResetRequired if only a reset
// changes the mode; a pending mode is reverted, and Rediscover reports that the GPU's mode needs a reset.
func (s *Session) SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error {
	activation, err := alter(ctx, s.calls, pci, "nvmlDeviceSetMigMode", func(dev Device) (activation error, err error) {
		return setMIG(ctx, dev.MIG(), pci, enable)
	})
	if errors.Is(activation, gpu.ErrResetRequired) && s.inventory.noteResetRequired(pci) {
		s.stale.Store(true)
	}
	return err
}

// setMIG is SetMIG for the GPU at an address. activation is the reason why the mode did not take effect: the activation status of
// nvmlDeviceSetMigMode. Its RESET_REQUIRED concerns the mode, whereas any call's return code may be RESET_REQUIRED for a failed
// GPU.
func setMIG(ctx context.Context, mig MIG, pci gpu.PCIAddress, enable bool) (activation, err error) {
	current, pending, err := mig.MIGMode()
	if err != nil {
		return nil, fmt.Errorf("read the MIG mode of the GPU at %s: %w", pci, err)
	}
	if current == enable && pending == enable {
		return nil, nil
	}
	if !enable {
		if err := noInstances(mig); err != nil {
			return nil, fmt.Errorf("disable the MIG mode of the GPU at %s: %w", pci, err)
		}
	}
	klog.FromContext(ctx).V(4).Info("Changing the MIG mode", "pci", pci, "enable", enable)
	activation, err = mig.SetMIGMode(enable)
	if err := errors.Join(err, activation); err != nil {
		_, undo := mig.SetMIGMode(current)
		return activation, errors.Join(fmt.Errorf("set the MIG mode of the GPU at %s to %t: %w", pci, enable, err), undo)
	}
	// A GPU mistaken for being out of MIG mode would be allocated whole.
	switch current, _, err := mig.MIGMode(); {
	case err != nil:
		return nil, fmt.Errorf("read the MIG mode of the GPU at %s, which was set to %t: %w", pci, enable, err)
	case current != enable:
		return nil, fmt.Errorf("set the MIG mode of the GPU at %s to %t: the driver reports success, but the mode has not changed", pci, enable)
	}
	return nil, nil
}

// CreatePartition creates a GPU instance at a placement and a compute instance that fills it. If a step fails, the
// earlier steps are rolled back. If a step hangs, the outcome is unknown: the error wraps gpu.ErrLeftBehind.
func (s *Session) CreatePartition(ctx context.Context, shape gpu.Shape) (gpu.Partition, error) {
	part, err := alter(ctx, s.calls, shape.GPU.PCI, "nvmlDeviceCreateGpuInstanceWithPlacement", func(dev Device) (gpu.Partition, error) {
		return s.profiles.instances(dev, shape.GPU.PCI).create(shape)
	})
	if errors.Is(err, gpu.ErrHangs) {
		err = errors.Join(err, gpu.ErrLeftBehind)
		part = gpu.Partition{ProfileID: shape.Profile.ID, Placement: shape.Placement}
	}
	return part, err
}

// instances are the GPU instances of the GPU at an address.
type instances struct {
	mig      MIG
	pci      gpu.PCIAddress
	profiles *computeProfiles
}

func (c *computeProfiles) instances(dev Device, pci gpu.PCIAddress) instances {
	return instances{mig: dev.MIG(), pci: pci, profiles: c}
}

func (in instances) create(shape gpu.Shape) (_ gpu.Partition, err error) {
	part := gpu.Partition{ProfileID: shape.Profile.ID, Placement: shape.Placement}
	gi, err := in.mig.CreateGPUInstanceWithPlacement(shape.Profile.ID, shape.Placement)
	if err != nil {
		return part, fmt.Errorf("create GPU instance %s: %w", shape.Name(), err)
	}
	defer func() {
		if err != nil {
			err = rolledBack(err, gi.Destroy())
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
	profile, err := in.profiles.filling(gi, shape.Profile)
	if err != nil {
		return part, fmt.Errorf("read the compute profiles of %s: %w", shape.Name(), err)
	}
	ci, err := gi.CreateComputeInstance(profile)
	if err != nil {
		return part, fmt.Errorf("create the compute instance of %s: %w", shape.Name(), err)
	}
	defer func() {
		if err != nil {
			err = rolledBack(err, ci.Destroy()) // must run before the GPU instance's, and does
		}
	}()
	created, err := ci.Info()
	if err != nil {
		return part, fmt.Errorf("read the compute instance of %s: %w", shape.Name(), err)
	}
	part.CI, part.UUID = &created.ID, created.UUID
	return part, nil
}

// rolledBack joins the error of a step with that of rolling back an earlier one.
func rolledBack(err, undo error) error {
	if undo == nil {
		return err
	}
	return errors.Join(err, undo, gpu.ErrLeftBehind)
}

// computeProfiles caches IDs of profiles, which cannot change while the driver is loaded.
type computeProfiles struct {
	mu  sync.RWMutex
	ids map[int]int // compute slices -> profile that fills the GPU instance
}

// filling is the ID of the compute instance profile that fills a GPU instance.
func (c *computeProfiles) filling(gi GPUInstance, p *gpu.Profile) (int, error) {
	c.mu.RLock()
	id, ok := c.ids[p.ComputeSlices]
	c.mu.RUnlock()
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[p.ComputeSlices] = id
	return id, nil
}

// DestroyPartition destroys a partition; a missing one is not an error. A GPU instance with the same ID but another
// profile or placement is unmanaged and stays. The error wraps gpu.ErrInUse while a process uses the partition.
func (s *Session) DestroyPartition(ctx context.Context, pci gpu.PCIAddress, part gpu.Partition) error {
	_, err := alter(ctx, s.calls, pci, "nvmlGpuInstanceDestroy", errorOnly(func(dev Device) error {
		return s.profiles.instances(dev, pci).destroy(ctx, part)
	}))
	return err
}

func (in instances) destroy(ctx context.Context, part gpu.Partition) error {
	pci := in.pci
	gi, err := in.mig.GPUInstanceByID(part.GI)
	if errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) {
		return nil // it does not exist, or MIG mode is off
	}
	if err != nil {
		return fmt.Errorf("find GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
	}
	info, err := gi.Info()
	if err != nil {
		return fmt.Errorf("read GPU instance %d of the GPU at %s: %w", part.GI, pci, err)
	}
	if info.ProfileID != part.ProfileID || info.Placement != part.Placement {
		klog.FromContext(ctx).Info("Leaving an unmanaged GPU instance that replaced a partition", "pci", pci, "gi", part.GI)
		return nil
	}
	cis, err := computeInstances(gi, part)
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

// computeInstances returns the compute instances to destroy with a partition: the recorded one, or all of them after an
// interrupted creation.
func computeInstances(gi GPUInstance, part gpu.Partition) ([]ComputeInstance, error) {
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

// Partitions lists the GPU instances of a GPU by ID, including those without a compute instance, which a walk over MIG
// devices would miss.
func (s *Session) Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error) {
	return ask(ctx, s.calls, g.PCI, "nvmlDeviceGetGpuInstances", func(dev Device) ([]gpu.Partition, error) {
		var found []gpu.Partition
		for i := range g.MIG.Profiles {
			parts, err := s.profiles.instances(dev, g.PCI).ofProfile(g.MIG.Profiles[i].ID, nil)
			if err != nil {
				return nil, err
			}
			found = append(found, parts...)
		}
		slices.SortFunc(found, func(a, b gpu.Partition) int { return cmp.Compare(a.GI, b.GI) })
		return found, ctx.Err()
	})
}

// PartitionAt returns the partition of a GPU that has the profile and placement of another, or nil. It queries only the
// instances of that profile, which on an idle GPU is one call.
func (s *Session) PartitionAt(ctx context.Context, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error) {
	return ask(ctx, s.calls, pci, "nvmlDeviceGetGpuInstances", func(dev Device) (*gpu.Partition, error) {
		found, err := s.profiles.instances(dev, pci).ofProfile(like.ProfileID, &like.Placement)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		return &found[0], nil
	})
}

// ofProfile lists the GPU instances of a profile: all of them, or those at a placement.
func (in instances) ofProfile(profileID int, at *gpu.Placement) ([]gpu.Partition, error) {
	all, err := in.mig.GPUInstances(profileID)
	if errors.Is(err, gpu.ErrNotSupported) {
		return nil, nil // MIG mode is off
	}
	if err != nil {
		return nil, fmt.Errorf("list GPU instances of profile %d of the GPU at %s: %w", profileID, in.pci, err)
	}
	var found []gpu.Partition
	for _, gi := range all {
		info, infoErr := gi.Info()
		err := infoErr
		part := gpu.Partition{ProfileID: info.ProfileID, Placement: info.Placement, GI: info.ID}
		if err == nil {
			if at != nil && info.Placement != *at {
				continue
			}
			err = readComputeInstance(gi, &part)
		}
		// Skip an instance that was destroyed meanwhile. At a placement this is certain only if the GPU instance itself cannot be
		// read: treating one with an unreadable compute instance as absent would leave it behind, or destroy unmanaged instances.
		if gone := errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotFound); gone && (at == nil || infoErr != nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read a GPU instance of the GPU at %s: %w", in.pci, err)
		}
		found = append(found, part)
	}
	return found, nil
}

// readComputeInstance completes a partition with its compute instance, unless it has none or several.
func readComputeInstance(gi GPUInstance, part *gpu.Partition) error {
	cis, err := computeInstances(gi, *part)
	if err != nil || len(cis) != 1 {
		return err
	}
	ci, err := cis[0].Info()
	if err != nil {
		return err
	}
	part.CI, part.UUID = &ci.ID, ci.UUID
	return nil
}
