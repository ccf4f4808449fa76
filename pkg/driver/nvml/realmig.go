// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// maxInstances bounds the instances of one profile: no board has more placement units.
const maxInstances = 64

// realMIG is the MIG mode of an nvmlDevice_t and its partitions.
type realMIG struct {
	dev nvml.Device
}

func (m realMIG) MIGMode() (current, pending bool, err error) {
	c, p, ret := m.dev.GetMigMode()
	return c == nvml.DEVICE_MIG_ENABLE, p == nvml.DEVICE_MIG_ENABLE, check("nvmlDeviceGetMigMode", ret)
}

func (m realMIG) GPUInstanceProfileInfo(enum int) (gpu.Profile, error) {
	info, ret := m.dev.GetGpuInstanceProfileInfo(enum)
	if err := check(fmt.Sprintf("nvmlDeviceGetGpuInstanceProfileInfo(%d)", enum), ret); err != nil {
		return gpu.Profile{}, err
	}
	return gpu.Profile{
		ID: int(info.Id), Enum: enum, MaxInstances: int(info.InstanceCount), ComputeSlices: int(info.SliceCount),
		Memory: info.MemorySizeMB << 20, Multiprocessors: int(info.MultiprocessorCount),
		CopyEngines: int(info.CopyEngineCount), Decoders: int(info.DecoderCount), Encoders: int(info.EncoderCount),
		JPEGEngines: int(info.JpegCount), OFAEngines: int(info.OfaCount),
	}, nil
}

func (m realMIG) GPUInstancePossiblePlacements(profileID int) ([]gpu.Placement, error) {
	// NVML reads only the ID: https://docs.nvidia.com/deploy/nvml-api, nvmlDeviceGetGpuInstancePossiblePlacements.
	found, ret := m.dev.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: uint32(profileID)})
	if err := check(fmt.Sprintf("nvmlDeviceGetGpuInstancePossiblePlacements(%d)", profileID), ret); err != nil {
		return nil, err
	}
	return convert(found, func(p nvml.GpuInstancePlacement) gpu.Placement {
		return gpu.Placement{Start: int(p.Start), Size: int(p.Size)}
	}), nil
}

func (m realMIG) SetMIGMode(enable bool) (activation, err error) {
	mode := nvml.DEVICE_MIG_DISABLE
	if enable {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	// The first of the two is the activation status, the second the outcome of the call (nvml.h, nvmlDeviceSetMigMode).
	activated, ret := m.dev.SetMigMode(mode)
	call := fmt.Sprintf("nvmlDeviceSetMigMode(%d)", mode)
	return check(call, activated), check(call, ret)
}

func (m realMIG) CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (GPUInstance, error) {
	gi, ret := m.dev.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: uint32(profileID)},
		&nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
	if err := check(fmt.Sprintf("nvmlDeviceCreateGpuInstanceWithPlacement(%d, %d:%d)", profileID, at.Start, at.Size), ret); err != nil {
		return nil, err
	}
	return realGPUInstance{m.dev, gi}, nil
}

func (m realMIG) GPUInstances(profileID int) ([]GPUInstance, error) {
	found, ret := m.dev.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: uint32(profileID), InstanceCount: maxInstances})
	if err := check(fmt.Sprintf("nvmlDeviceGetGpuInstances(%d)", profileID), ret); err != nil {
		return nil, err
	}
	return convert(found, func(gi nvml.GpuInstance) GPUInstance { return realGPUInstance{m.dev, gi} }), nil
}

func (m realMIG) GPUInstanceByID(id int) (GPUInstance, error) {
	gi, ret := m.dev.GetGpuInstanceById(id)
	if err := check(fmt.Sprintf("nvmlDeviceGetGpuInstanceById(%d)", id), ret); err != nil {
		return nil, err
	}
	return realGPUInstance{m.dev, gi}, nil
}

// convert maps a slice.
func convert[From, To any](all []From, f func(From) To) []To {
	converted := make([]To, 0, len(all))
	for _, v := range all {
		converted = append(converted, f(v))
	}
	return converted
}

// realGPUInstance is an nvmlGpuInstance_t.
type realGPUInstance struct {
	parent nvml.Device
	gi     nvml.GpuInstance
}

func (g realGPUInstance) Info() (GPUInstanceInfo, error) {
	info, ret := g.gi.GetInfo()
	return GPUInstanceInfo{
		ID: int(info.Id), ProfileID: int(info.ProfileId),
		Placement: gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)},
	}, check("nvmlGpuInstanceGetInfo", ret)
}

func (g realGPUInstance) ComputeInstanceProfileID(enum int) (int, error) {
	info, ret := g.gi.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	return int(info.Id), check(fmt.Sprintf("nvmlGpuInstanceGetComputeInstanceProfileInfo(%d)", enum), ret)
}

func (g realGPUInstance) CreateComputeInstance(profileID int) (ComputeInstance, error) {
	ci, ret := g.gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: uint32(profileID)})
	if err := check(fmt.Sprintf("nvmlGpuInstanceCreateComputeInstance(%d)", profileID), ret); err != nil {
		return nil, err
	}
	return realComputeInstance{g.parent, ci}, nil
}

func (g realGPUInstance) ComputeInstances(profileID int) ([]ComputeInstance, error) {
	found, ret := g.gi.GetComputeInstances(&nvml.ComputeInstanceProfileInfo{Id: uint32(profileID), InstanceCount: maxInstances})
	if err := check(fmt.Sprintf("nvmlGpuInstanceGetComputeInstances(%d)", profileID), ret); err != nil {
		return nil, err
	}
	return convert(found, func(ci nvml.ComputeInstance) ComputeInstance { return realComputeInstance{g.parent, ci} }), nil
}

func (g realGPUInstance) ComputeInstanceByID(id int) (ComputeInstance, error) {
	ci, ret := g.gi.GetComputeInstanceById(id)
	if err := check(fmt.Sprintf("nvmlGpuInstanceGetComputeInstanceById(%d)", id), ret); err != nil {
		return nil, err
	}
	return realComputeInstance{g.parent, ci}, nil
}

func (g realGPUInstance) Destroy() error { return check("nvmlGpuInstanceDestroy", g.gi.Destroy()) }

// realComputeInstance is an nvmlComputeInstance_t.
type realComputeInstance struct {
	parent nvml.Device
	ci     nvml.ComputeInstance
}

func (c realComputeInstance) Info() (ComputeInstanceInfo, error) {
	info, ret := c.ci.GetInfo()
	if err := check("nvmlComputeInstanceGetInfo", ret); err != nil {
		return ComputeInstanceInfo{}, err
	}
	uuid, ret := info.Device.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil {
		return ComputeInstanceInfo{}, err
	}
	if strings.HasPrefix(uuid, "MIG-") {
		return ComputeInstanceInfo{ID: int(info.Id), UUID: uuid}, nil
	}
	// Drivers return the MIG device here; nvml.h documents the parent. If a driver follows the header, search.
	gi, ret := info.GpuInstance.GetInfo()
	if err := check("nvmlGpuInstanceGetInfo", ret); err != nil {
		return ComputeInstanceInfo{}, err
	}
	uuid, err := findMIGDevice(c.parent, int(gi.Id), int(info.Id))
	return ComputeInstanceInfo{ID: int(info.Id), UUID: uuid}, err
}

func (c realComputeInstance) Destroy() error {
	return check("nvmlComputeInstanceDestroy", c.ci.Destroy())
}

// findMIGDevice returns the UUID of a compute instance's MIG device.
func findMIGDevice(parent nvml.Device, giID, ciID int) (string, error) {
	for i := range maxInstances {
		dev, ret := parent.GetMigDeviceHandleByIndex(i)
		if err := check(fmt.Sprintf("nvmlDeviceGetMigDeviceHandleByIndex(%d)", i), ret); err != nil {
			if errors.Is(err, gpu.ErrNotFound) {
				continue // indexes may have holes
			}
			return "", fmt.Errorf("find the MIG device of GPU instance %d, compute instance %d: %w", giID, ciID, err)
		}
		gi, ret := dev.GetGpuInstanceId()
		ci, ret2 := dev.GetComputeInstanceId()
		if ret == nvml.SUCCESS && ret2 == nvml.SUCCESS && gi == giID && ci == ciID {
			uuid, ret := dev.GetUUID()
			return uuid, check("nvmlDeviceGetUUID", ret)
		}
	}
	return "", fmt.Errorf("find the MIG device of GPU instance %d, compute instance %d: %w", giID, ciID, gpu.ErrNotFound)
}
