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

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// mode is a MIG mode as NVML has it.
func mode(on bool) C.uint { return C.uint(enable(on)) }

//export nvmlDeviceGetMigMode
func nvmlDeviceGetMigMode(h C.nvmlDevice_t, now, pending *C.uint) C.nvmlReturn_t {
	return answerPair(side(h, (*sim.Device).MIG), sim.MIG.MIGMode, now, pending, mode)
}

//export nvmlDeviceSetMigMode
func nvmlDeviceSetMigMode(h C.nvmlDevice_t, mode C.uint, activation *C.nvmlReturn_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		if activation == nil || mode > C.NVML_DEVICE_MIG_ENABLE {
			return code(sim.CodeInvalidArgument)
		}
		status, err := d.MIG().SetMIGMode(mode == C.NVML_DEVICE_MIG_ENABLE)
		*activation = returnCode(status)
		return err
	})
}

//export nvmlDeviceGetMaxMigDeviceCount
func nvmlDeviceGetMaxMigDeviceCount(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).MIG), sim.MIG.MaxMIGDevices, to)
}

//export nvmlDeviceGetGpuInstanceProfileInfo
func nvmlDeviceGetGpuInstanceProfileInfo(h C.nvmlDevice_t, profile C.uint, to *C.nvmlGpuInstanceProfileInfo_t) C.nvmlReturn_t {
	return answer(device(h), func(d *sim.Device) (*sim.Profile, error) { return d.MIG().ProfileByEnum(int(profile)) }, to, profileInfo)
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

// profileInfoV stores a profile in a struct of the version that it names.
func profileInfoV(h C.nvmlDevice_t, get func(*sim.Device) (*sim.Profile, error), to *C.nvmlGpuInstanceProfileInfo_v2_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	v3 := to.version == C.nvmlGpuInstanceProfileInfo_v3
	if !v3 && to.version != C.nvmlGpuInstanceProfileInfo_v2 {
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return on(device(h), func(d *sim.Device) error {
		p, err := get(d)
		if err != nil {
			return err
		}
		if v3 {
			*(*C.nvmlGpuInstanceProfileInfo_v3_t)(unsafe.Pointer(to)) = profileInfo3(p)
		} else {
			*to = profileInfo2(p)
		}
		return nil
	})
}

func profileInfo2(p *sim.Profile) C.nvmlGpuInstanceProfileInfo_v2_t {
	c := profileInfo(p)
	to := C.nvmlGpuInstanceProfileInfo_v2_t{
		version: C.nvmlGpuInstanceProfileInfo_v2, id: c.id, isP2pSupported: c.isP2pSupported, sliceCount: c.sliceCount,
		instanceCount: c.instanceCount, multiprocessorCount: c.multiprocessorCount, copyEngineCount: c.copyEngineCount,
		decoderCount: c.decoderCount, encoderCount: c.encoderCount, jpegCount: c.jpegCount, ofaCount: c.ofaCount, memorySizeMB: c.memorySizeMB,
	}
	putChars(to.name[:], "MIG "+p.Name)
	return to
}

func profileInfo3(p *sim.Profile) C.nvmlGpuInstanceProfileInfo_v3_t {
	c := profileInfo(p)
	to := C.nvmlGpuInstanceProfileInfo_v3_t{
		version: C.nvmlGpuInstanceProfileInfo_v3, id: c.id, sliceCount: c.sliceCount,
		instanceCount: c.instanceCount, multiprocessorCount: c.multiprocessorCount, copyEngineCount: c.copyEngineCount,
		decoderCount: c.decoderCount, encoderCount: c.encoderCount, jpegCount: c.jpegCount, ofaCount: c.ofaCount, memorySizeMB: c.memorySizeMB,
	}
	putChars(to.name[:], "MIG "+p.Name)
	if p.Graphics {
		to.capabilities = C.NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
	}
	return to
}

//export nvmlDeviceGetGpuInstanceProfileInfoV
func nvmlDeviceGetGpuInstanceProfileInfoV(h C.nvmlDevice_t, profile C.uint, to *C.nvmlGpuInstanceProfileInfo_v2_t) C.nvmlReturn_t {
	return profileInfoV(h, func(d *sim.Device) (*sim.Profile, error) { return d.MIG().ProfileByEnumV(int(profile)) }, to)
}

//export nvmlDeviceGetGpuInstanceProfileInfoByIdV
func nvmlDeviceGetGpuInstanceProfileInfoByIdV(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstanceProfileInfo_v2_t) C.nvmlReturn_t {
	return profileInfoV(h, func(d *sim.Device) (*sim.Profile, error) { return d.MIG().ProfileByIDV(int(id)) }, to)
}

func gpuPlacement(p gpu.Placement) C.nvmlGpuInstancePlacement_t {
	return C.nvmlGpuInstancePlacement_t{start: C.uint(p.Start), size: C.uint(p.Size)}
}

//export nvmlDeviceGetGpuInstancePossiblePlacements_v2
func nvmlDeviceGetGpuInstancePossiblePlacements_v2(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstancePlacement_t,
	count *C.uint) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		placements, err := d.MIG().GPUInstancePossiblePlacements(int(id))
		return putSlice(to, count, placements, err, false, gpuPlacement)
	})
}

//export nvmlDeviceGetGpuInstancePossiblePlacements
func nvmlDeviceGetGpuInstancePossiblePlacements(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstancePlacement_t,
	count *C.uint) C.nvmlReturn_t {
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(h, id, to, count)
}

//export nvmlDeviceGetGpuInstanceRemainingCapacity
func nvmlDeviceGetGpuInstanceRemainingCapacity(h C.nvmlDevice_t, id C.uint, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.MIG().GPUInstanceRemainingCapacity(int(id)) }, to)
}

// simDeviceCreateGpuInstance places the instance itself where at is null.
//
//export simDeviceCreateGpuInstance
func simDeviceCreateGpuInstance(h C.nvmlDevice_t, id C.uint, at *C.nvmlGpuInstancePlacement_t, to *C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		if to == nil {
			return code(sim.CodeInvalidArgument)
		}
		if at == nil {
			g, err := d.MIG().CreateGPUInstance(int(id))
			return put(to, g, err, gpuInstanceHandle)
		}
		g, err := d.MIG().CreateGPUInstanceWithPlacement(int(id), gpu.Placement{Start: int(at.start), Size: int(at.size)})
		return put(to, g, err, gpuInstanceHandle)
	})
}

//export nvmlDeviceCreateGpuInstance
func nvmlDeviceCreateGpuInstance(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return simDeviceCreateGpuInstance(h, id, nil, to)
}

//export nvmlDeviceGetGpuInstances
func nvmlDeviceGetGpuInstances(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstance_t, count *C.uint) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return on(device(h), func(d *sim.Device) error {
		found, err := d.MIG().GPUInstances(int(id))
		return putSlice(to, count, found, err, false, gpuInstanceHandle)
	})
}

//export nvmlDeviceGetGpuInstanceById
func nvmlDeviceGetGpuInstanceById(h C.nvmlDevice_t, id C.uint, to *C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return answer(device(h), func(d *sim.Device) (*sim.GPUInstance, error) { return d.MIG().GPUInstanceByID(int(id)) }, to, gpuInstanceHandle)
}

//export nvmlGpuInstanceGetInfo
func nvmlGpuInstanceGetInfo(h C.nvmlGpuInstance_t, to *C.nvmlGpuInstanceInfo_t) C.nvmlReturn_t {
	return on(gpuInstance(h), func(g *sim.GPUInstance) error {
		info, err := g.Info()
		return put(to, info, err, func(i sim.GPUInstanceInfo) C.nvmlGpuInstanceInfo_t {
			return C.nvmlGpuInstanceInfo_t{device: deviceHandle(g.Device()), id: C.uint(i.ID), profileId: C.uint(i.ProfileID),
				placement: gpuPlacement(i.Placement)}
		})
	})
}

//export nvmlGpuInstanceDestroy
func nvmlGpuInstanceDestroy(h C.nvmlGpuInstance_t) C.nvmlReturn_t {
	return on(gpuInstance(h), (*sim.GPUInstance).Destroy)
}
