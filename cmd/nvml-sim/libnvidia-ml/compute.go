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

func computeProfileInfo(c sim.ComputeProfileInfo) C.nvmlComputeInstanceProfileInfo_t {
	return C.nvmlComputeInstanceProfileInfo_t{
		id:                    C.uint(c.ID),
		sliceCount:            C.uint(c.Slices),
		instanceCount:         C.uint(c.MaxInstances),
		multiprocessorCount:   C.uint(c.Multiprocessors),
		sharedCopyEngineCount: C.uint(c.Shared.CopyEngines),
		sharedDecoderCount:    C.uint(c.Shared.Decoders),
		sharedEncoderCount:    C.uint(c.Shared.Encoders),
		sharedJpegCount:       C.uint(c.Shared.JPEGEngines),
		sharedOfaCount:        C.uint(c.Shared.OFAEngines),
	}
}

//export nvmlGpuInstanceGetComputeInstanceProfileInfo
func nvmlGpuInstanceGetComputeInstanceProfileInfo(h C.nvmlGpuInstance_t, profile, engines C.uint,
	to *C.nvmlComputeInstanceProfileInfo_t) C.nvmlReturn_t {
	return answer(gpuInstance(h), func(g *sim.GPUInstance) (sim.ComputeProfileInfo, error) {
		return g.ComputeInstanceProfileInfo(int(profile), int(engines))
	}, to, computeProfileInfo)
}

//export nvmlGpuInstanceGetComputeInstanceProfileInfoV
func nvmlGpuInstanceGetComputeInstanceProfileInfoV(h C.nvmlGpuInstance_t, profile, engines C.uint,
	to *C.nvmlComputeInstanceProfileInfo_v2_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	v3 := to.version == C.nvmlComputeInstanceProfileInfo_v3
	if !v3 && to.version != C.nvmlComputeInstanceProfileInfo_v2 {
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return on(gpuInstance(h), func(g *sim.GPUInstance) error {
		p, err := g.ComputeInstanceProfileInfo(int(profile), int(engines))
		if err != nil {
			return err
		}
		c := computeProfileInfo(p)
		*to = C.nvmlComputeInstanceProfileInfo_v2_t{
			version: to.version, id: c.id, sliceCount: c.sliceCount, instanceCount: c.instanceCount, multiprocessorCount: c.multiprocessorCount,
			sharedCopyEngineCount: c.sharedCopyEngineCount, sharedDecoderCount: c.sharedDecoderCount, sharedEncoderCount: c.sharedEncoderCount,
			sharedJpegCount: c.sharedJpegCount, sharedOfaCount: c.sharedOfaCount,
		}
		putChars(to.name[:], "MIG "+p.Name)
		if v3 { // v2 with one field more at its end
			(*C.nvmlComputeInstanceProfileInfo_v3_t)(unsafe.Pointer(to)).capabilities = 0
		}
		return nil
	})
}

func computePlacement(p gpu.Placement) C.nvmlComputeInstancePlacement_t {
	return C.nvmlComputeInstancePlacement_t{start: C.uint(p.Start), size: C.uint(p.Size)}
}

//export nvmlGpuInstanceGetComputeInstancePossiblePlacements
func nvmlGpuInstanceGetComputeInstancePossiblePlacements(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstancePlacement_t,
	count *C.uint) C.nvmlReturn_t {
	return on(gpuInstance(h), func(g *sim.GPUInstance) error {
		placements, err := g.ComputeInstancePossiblePlacements(int(id))
		return putSlice(to, count, placements, err, false, computePlacement)
	})
}

//export nvmlGpuInstanceGetComputeInstanceRemainingCapacity
func nvmlGpuInstanceGetComputeInstanceRemainingCapacity(h C.nvmlGpuInstance_t, id C.uint, to *C.uint) C.nvmlReturn_t {
	return answerNumber(gpuInstance(h), func(g *sim.GPUInstance) (int, error) { return g.ComputeInstanceRemainingCapacity(int(id)) }, to)
}

// simGpuInstanceCreateComputeInstance places the instance itself where at is null.
//
//export simGpuInstanceCreateComputeInstance
func simGpuInstanceCreateComputeInstance(h C.nvmlGpuInstance_t, id C.uint, at *C.nvmlComputeInstancePlacement_t,
	to *C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return on(gpuInstance(h), func(g *sim.GPUInstance) error {
		if to == nil {
			return code(sim.CodeInvalidArgument)
		}
		if at == nil {
			c, err := g.CreateComputeInstance(int(id))
			return put(to, c, err, computeInstanceHandle)
		}
		c, err := g.CreateComputeInstanceWithPlacement(int(id), gpu.Placement{Start: int(at.start), Size: int(at.size)})
		return put(to, c, err, computeInstanceHandle)
	})
}

//export nvmlGpuInstanceCreateComputeInstance
func nvmlGpuInstanceCreateComputeInstance(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return simGpuInstanceCreateComputeInstance(h, id, nil, to)
}

//export nvmlGpuInstanceGetComputeInstances
func nvmlGpuInstanceGetComputeInstances(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstance_t, count *C.uint) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return on(gpuInstance(h), func(g *sim.GPUInstance) error {
		found, err := g.ComputeInstances(int(id))
		return putSlice(to, count, found, err, false, computeInstanceHandle)
	})
}

//export nvmlGpuInstanceGetComputeInstanceById
func nvmlGpuInstanceGetComputeInstanceById(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return answer(gpuInstance(h), func(g *sim.GPUInstance) (*sim.ComputeInstance, error) { return g.ComputeInstanceByID(int(id)) }, to,
		computeInstanceHandle)
}

func computeInstanceInfo(c *sim.ComputeInstance, i sim.ComputeInstanceInfo) C.nvmlComputeInstanceInfo_t {
	return C.nvmlComputeInstanceInfo_t{
		device:      partitionHandle(sim.MIGDeviceOf(c)),
		gpuInstance: gpuInstanceHandle(i.GPUInstance),
		id:          C.uint(i.ID),
		profileId:   C.uint(i.ProfileID),
		placement:   computePlacement(i.Placement),
	}
}

//export nvmlComputeInstanceGetInfo_v2
func nvmlComputeInstanceGetInfo_v2(h C.nvmlComputeInstance_t, to *C.nvmlComputeInstanceInfo_t) C.nvmlReturn_t {
	return on(computeInstance(h), func(c *sim.ComputeInstance) error {
		info, err := c.Info()
		return put(to, info, err, func(i sim.ComputeInstanceInfo) C.nvmlComputeInstanceInfo_t { return computeInstanceInfo(c, i) })
	})
}

// The older struct has no placement.
//
//export nvmlComputeInstanceGetInfo
func nvmlComputeInstanceGetInfo(h C.nvmlComputeInstance_t, to *C.nvmlComputeInstanceInfo_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return on(computeInstance(h), func(c *sim.ComputeInstance) error {
		info, err := c.Info()
		if err != nil {
			return err
		}
		full := computeInstanceInfo(c, info)
		to.device, to.gpuInstance, to.id, to.profileId = full.device, full.gpuInstance, full.id, full.profileId
		return nil
	})
}

//export nvmlComputeInstanceDestroy
func nvmlComputeInstanceDestroy(h C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return on(computeInstance(h), (*sim.ComputeInstance).Destroy)
}
