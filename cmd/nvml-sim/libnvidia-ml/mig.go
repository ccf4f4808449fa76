// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsim

package main

/*
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include "sim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// migHandle is the handle of a partition.
func migHandle(m *sim.MIGDevice) C.nvmlDevice_t {
	c := m.Compute()
	p := makeHandle(kindMIGDevice, c.Parent().Device().Number(), c.Parent().ID(), c.ID(), c.Serial())
	return C.nvmlDevice_t{handle: (*C.struct_nvmlDevice_st)(p)}
}

// gpuInstanceHandle is the handle of a GPU instance.
func gpuInstanceHandle(g *sim.GPUInstance) C.nvmlGpuInstance_t {
	p := makeHandle(kindGPUInstance, g.Device().Number(), g.ID(), 0, g.Serial())
	return C.nvmlGpuInstance_t{handle: (*C.struct_nvmlGpuInstance_st)(p)}
}

// onGPUInstance runs a call on a GPU instance.
func onGPUInstance(h C.nvmlGpuInstance_t, call func(*sim.GPUInstance) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		p, err := parseHandle(unsafe.Pointer(h.handle))
		if err != nil {
			return err
		}
		d := n.Device(p.index)
		if d == nil || p.kind != kindGPUInstance {
			return code(sim.CodeInvalidArgument)
		}
		return call(d.GPUInstanceHandle(p.gi, p.serial))
	})
}

// onMIGDevice runs a call on a partition; handles of GPUs are refused.
func onMIGDevice(h C.nvmlDevice_t, call func(*sim.MIGDevice) error) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		m, ok := t.(*sim.MIGDevice)
		if !ok {
			return code(sim.CodeInvalidArgument)
		}
		return call(m)
	})
}

//export simDeviceGetMigMode
func simDeviceGetMigMode(h C.nvmlDevice_t, now, pending *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		a, b, err := d.MIGMode()
		if err != nil {
			return err
		}
		if now == nil || pending == nil {
			return code(sim.CodeInvalidArgument)
		}
		*now, *pending = C.uint(enable(a)), C.uint(enable(b))
		return nil
	})
}

//export simDeviceSetMigMode
func simDeviceSetMigMode(h C.nvmlDevice_t, mode C.uint, activation *C.nvmlReturn_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		if activation == nil || mode > C.NVML_DEVICE_MIG_ENABLE {
			return code(sim.CodeInvalidArgument)
		}
		status, err := d.SetMIGMode(mode == C.NVML_DEVICE_MIG_ENABLE)
		*activation = returnCode(status)
		return err
	})
}

//export simDeviceGetGpuInstanceProfileInfo
func simDeviceGetGpuInstanceProfileInfo(h C.nvmlDevice_t, profile C.uint, to *C.nvmlGpuInstanceProfileInfo_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		p, err := d.ProfileByEnum(int(profile))
		return put(to, p, err, profileInfo)
	})
}

// profileInfo converts a profile.
func profileInfo(p *sim.Profile) C.nvmlGpuInstanceProfileInfo_t {
	return C.nvmlGpuInstanceProfileInfo_t{
		id:                  C.uint(p.ID),
		sliceCount:          C.uint(p.ComputeSlices),
		instanceCount:       C.uint(p.MaxInstances),
		multiprocessorCount: C.uint(p.Multiprocessors),
		copyEngineCount:     C.uint(p.CopyEngines),
		decoderCount:        C.uint(p.Decoders),
		encoderCount:        C.uint(p.Encoders),
		jpegCount:           C.uint(p.JPEGEngines),
		ofaCount:            C.uint(p.OFAEngines),
		memorySizeMB:        C.ulonglong(p.MemoryMiB),
	}
}

// simDeviceGetGpuInstanceProfileInfoV answers with the fields that all versions of the struct have, the name and the
// capabilities; nvml.c lays them out.
//
//export simDeviceGetGpuInstanceProfileInfoV
func simDeviceGetGpuInstanceProfileInfoV(h C.nvmlDevice_t, key C.uint, byID C.int, to *C.nvmlGpuInstanceProfileInfo_t, name *C.char, capabilities *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		find := d.ProfileByEnumV
		if byID != 0 {
			find = d.ProfileByIDV
		}
		p, err := find(int(key))
		if err != nil {
			return err
		}
		*to = profileInfo(p)
		*capabilities = 0
		if p.Graphics {
			*capabilities = C.NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
		}
		return putString(name, C.NVML_DEVICE_NAME_V2_BUFFER_SIZE, "MIG "+p.Name)
	})
}

func gpuPlacement(p gpu.Placement) C.nvmlGpuInstancePlacement_t {
	return C.nvmlGpuInstancePlacement_t{start: C.uint(p.Start), size: C.uint(p.Size)}
}

//export simDeviceGetGpuInstancePossiblePlacements
func simDeviceGetGpuInstancePossiblePlacements(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstancePlacement_t, count *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		placements, err := d.GPUInstancePossiblePlacements(int(id))
		return putSlice(to, count, placements, err, false, gpuPlacement)
	})
}

//export simDeviceGetGpuInstanceRemainingCapacity
func simDeviceGetGpuInstanceRemainingCapacity(h C.nvmlDevice_t, id C.uint, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.GPUInstanceRemainingCapacity(int(id))
		return putUint(to, v, err)
	})
}

//export simDeviceCreateGpuInstance
func simDeviceCreateGpuInstance(h C.nvmlDevice_t, id C.uint, at *C.nvmlGpuInstancePlacement_t, to *C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		if to == nil {
			return code(sim.CodeInvalidArgument)
		}
		if at == nil {
			g, err := d.CreateGPUInstance(int(id))
			return put(to, g, err, gpuInstanceHandle)
		}
		g, err := d.CreateGPUInstanceWithPlacement(int(id), gpu.Placement{Start: int(at.start), Size: int(at.size)})
		return put(to, g, err, gpuInstanceHandle)
	})
}

//export simDeviceGetGpuInstances
func simDeviceGetGpuInstances(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstance_t, count *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		found, err := d.GPUInstances(int(id))
		return putSlice(to, count, found, err, false, gpuInstanceHandle)
	})
}

//export simDeviceGetGpuInstanceById
func simDeviceGetGpuInstanceById(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		g, err := d.GPUInstanceByID(int(id))
		return put(to, g, err, gpuInstanceHandle)
	})
}

//export simGpuInstanceGetInfo
func simGpuInstanceGetInfo(h C.nvmlGpuInstance_t, to *C.nvmlGpuInstanceInfo_t) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		info, err := g.Info()
		return put(to, info, err, func(i sim.GPUInstanceInfo) C.nvmlGpuInstanceInfo_t {
			return C.nvmlGpuInstanceInfo_t{device: deviceHandle(g.Device()), id: C.uint(i.ID), profileId: C.uint(i.ProfileID),
				placement: gpuPlacement(i.Placement)}
		})
	})
}

//export simGpuInstanceDestroy
func simGpuInstanceDestroy(h C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return onGPUInstance(h, (*sim.GPUInstance).Destroy)
}

//export simDeviceIsMigDeviceHandle
func simDeviceIsMigDeviceHandle(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		if d, ok := t.(*sim.Device); ok {
			return putUint(to, 0, d.IsMIG())
		}
		return putUint(to, 1, t.(*sim.MIGDevice).Compute().Parent().Device().IsMIG())
	})
}

//export simDeviceGetMigDeviceHandleByIndex
func simDeviceGetMigDeviceHandleByIndex(h C.nvmlDevice_t, index C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		m, err := d.MIGDeviceByIndex(int(index))
		return put(to, m, err, migHandle)
	})
}

//export simDeviceGetDeviceHandleFromMigDeviceHandle
func simDeviceGetDeviceHandleFromMigDeviceHandle(h C.nvmlDevice_t, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onMIGDevice(h, func(m *sim.MIGDevice) error {
		d, err := m.Parent()
		return putDevice(to, d, err)
	})
}

//export simDeviceGetGpuInstanceId
func simDeviceGetGpuInstanceId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onMIGDevice(h, func(m *sim.MIGDevice) error {
		v, err := m.GPUInstanceID()
		return putUint(to, v, err)
	})
}

//export simDeviceGetComputeInstanceId
func simDeviceGetComputeInstanceId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onMIGDevice(h, func(m *sim.MIGDevice) error {
		v, err := m.ComputeInstanceID()
		return putUint(to, v, err)
	})
}

//export simDeviceGetAttributes
func simDeviceGetAttributes(h C.nvmlDevice_t, to *C.nvmlDeviceAttributes_t) C.nvmlReturn_t {
	return onMIGDevice(h, func(m *sim.MIGDevice) error {
		a, err := m.Attributes()
		return put(to, a, err, func(a sim.Attributes) C.nvmlDeviceAttributes_t {
			return C.nvmlDeviceAttributes_t{
				multiprocessorCount:       C.uint(a.Multiprocessors),
				sharedCopyEngineCount:     C.uint(a.Instance.CopyEngines),
				sharedDecoderCount:        C.uint(a.Instance.Decoders),
				sharedEncoderCount:        C.uint(a.Instance.Encoders),
				sharedJpegCount:           C.uint(a.Instance.JPEGEngines),
				sharedOfaCount:            C.uint(a.Instance.OFAEngines),
				gpuInstanceSliceCount:     C.uint(a.Instance.ComputeSlices),
				computeInstanceSliceCount: C.uint(a.Slices),
				memorySizeMB:              C.ulonglong(a.Instance.Memory >> 20),
			}
		})
	})
}
