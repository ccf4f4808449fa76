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

// computeHandle is the handle of a compute instance.
func computeHandle(c *sim.ComputeInstance) C.nvmlComputeInstance_t {
	p := makeHandle(kindComputeInstance, c.Parent().Device().Number(), c.Parent().ID(), c.ID(), c.Serial())
	return C.nvmlComputeInstance_t{handle: (*C.struct_nvmlComputeInstance_st)(p)}
}

// onComputeInstance runs a call on a compute instance.
func onComputeInstance(h C.nvmlComputeInstance_t, call func(*sim.ComputeInstance) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		p, err := parseHandle(unsafe.Pointer(h.handle))
		if err != nil {
			return err
		}
		d := n.Device(p.index)
		if d == nil || p.kind != kindComputeInstance {
			return code(sim.CodeInvalidArgument)
		}
		return call(d.ComputeInstanceHandle(p.gi, p.ci, p.serial))
	})
}

// simGpuInstanceGetComputeInstanceProfileInfo answers with the fields that all versions of the struct have and the
// name; nvml.c lays them out.
//
//export simGpuInstanceGetComputeInstanceProfileInfo
func simGpuInstanceGetComputeInstanceProfileInfo(h C.nvmlGpuInstance_t, profile, engines C.uint, to *C.nvmlComputeInstanceProfileInfo_t, name *C.char) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		c, err := g.ComputeInstanceProfileInfo(int(profile), int(engines))
		if err != nil {
			return err
		}
		if to == nil {
			return code(sim.CodeInvalidArgument)
		}
		*to = C.nvmlComputeInstanceProfileInfo_t{
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
		return putString(name, C.NVML_DEVICE_NAME_V2_BUFFER_SIZE, "MIG "+c.Name)
	})
}

func computePlacement(p gpu.Placement) C.nvmlComputeInstancePlacement_t {
	return C.nvmlComputeInstancePlacement_t{start: C.uint(p.Start), size: C.uint(p.Size)}
}

//export simGpuInstanceGetComputeInstancePossiblePlacements
func simGpuInstanceGetComputeInstancePossiblePlacements(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstancePlacement_t, count *C.uint) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		placements, err := g.ComputeInstancePossiblePlacements(int(id))
		return putSlice(to, count, placements, err, false, computePlacement)
	})
}

//export simGpuInstanceGetComputeInstanceRemainingCapacity
func simGpuInstanceGetComputeInstanceRemainingCapacity(h C.nvmlGpuInstance_t, id C.uint, to *C.uint) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		v, err := g.ComputeInstanceRemainingCapacity(int(id))
		return putUint(to, v, err)
	})
}

//export simGpuInstanceCreateComputeInstance
func simGpuInstanceCreateComputeInstance(h C.nvmlGpuInstance_t, id C.uint, at *C.nvmlComputeInstancePlacement_t, to *C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		if to == nil {
			return code(sim.CodeInvalidArgument)
		}
		if at == nil {
			c, err := g.CreateComputeInstance(int(id))
			return put(to, c, err, computeHandle)
		}
		c, err := g.CreateComputeInstanceWithPlacement(int(id), gpu.Placement{Start: int(at.start), Size: int(at.size)})
		return put(to, c, err, computeHandle)
	})
}

//export simGpuInstanceGetComputeInstances
func simGpuInstanceGetComputeInstances(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstance_t, count *C.uint) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		found, err := g.ComputeInstances(int(id))
		return putSlice(to, count, found, err, false, computeHandle)
	})
}

//export simGpuInstanceGetComputeInstanceById
func simGpuInstanceGetComputeInstanceById(h C.nvmlGpuInstance_t, id C.uint, to *C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return onGPUInstance(h, func(g *sim.GPUInstance) error {
		c, err := g.ComputeInstanceByID(int(id))
		return put(to, c, err, computeHandle)
	})
}

//export simComputeInstanceGetInfo
func simComputeInstanceGetInfo(h C.nvmlComputeInstance_t, to *C.nvmlComputeInstanceInfo_t) C.nvmlReturn_t {
	return onComputeInstance(h, func(c *sim.ComputeInstance) error {
		info, err := c.Info()
		return put(to, info, err, func(i sim.ComputeInstanceInfo) C.nvmlComputeInstanceInfo_t {
			return C.nvmlComputeInstanceInfo_t{
				device:      migHandle(sim.MIGDeviceOf(c)),
				gpuInstance: gpuInstanceHandle(i.GPUInstance),
				id:          C.uint(i.ID),
				profileId:   C.uint(i.ProfileID),
				placement:   computePlacement(i.Placement),
			}
		})
	})
}

//export simComputeInstanceDestroy
func simComputeInstanceDestroy(h C.nvmlComputeInstance_t) C.nvmlReturn_t {
	return onComputeInstance(h, (*sim.ComputeInstance).Destroy)
}
