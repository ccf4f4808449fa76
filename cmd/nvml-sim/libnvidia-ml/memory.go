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

	"github.com/cleave-dra/cleave/pkg/sim"
)

// target is what GPUs and partitions have in common.
type target interface {
	Index() (int, error)
	BAR1Total() (uint64, error)
	UUID() (string, error)
	Name() (string, error)
	MemoryV1() (sim.Memory, error)
	MemoryV2() (sim.Memory, error)
	Processes() ([]sim.Client, error)
	ComputeMode() (int, error)
	SetComputeMode(mode int) error
}

// onTarget runs a call on a GPU or a partition.
func onTarget(handle C.nvmlDevice_t, call func(target) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		p, err := parseHandle(unsafe.Pointer(handle.handle))
		if err != nil {
			return err
		}
		d := n.Device(p.index)
		switch {
		case d != nil && p.kind == kindDevice:
			return call(d)
		case d != nil && p.kind == kindMIGDevice:
			return call(sim.MIGDeviceOf(d.ComputeInstanceHandle(p.gi, p.ci, p.serial)))
		default:
			return code(sim.CodeInvalidArgument)
		}
	})
}

//export simDeviceGetName
func simDeviceGetName(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		s, err := t.Name()
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

//export simDeviceGetUUID
func simDeviceGetUUID(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		s, err := t.UUID()
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

//export simDeviceGetMemoryInfo
func simDeviceGetMemoryInfo(h C.nvmlDevice_t, to *C.nvmlMemory_t) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		m, err := t.MemoryV1()
		return put(to, m, err, func(m sim.Memory) C.nvmlMemory_t {
			return C.nvmlMemory_t{total: C.ulonglong(m.Total), free: C.ulonglong(m.Free), used: C.ulonglong(m.Reserved + m.Used)}
		})
	})
}

//export simDeviceGetMemoryInfoV2
func simDeviceGetMemoryInfoV2(h C.nvmlDevice_t, to *C.nvmlMemory_v2_t) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		m, err := t.MemoryV2()
		return put(to, m, err, func(m sim.Memory) C.nvmlMemory_v2_t {
			return C.nvmlMemory_v2_t{version: to.version, total: C.ulonglong(m.Total), reserved: C.ulonglong(m.Reserved),
				free: C.ulonglong(m.Free), used: C.ulonglong(m.Used)}
		})
	})
}

//export simDeviceGetProcesses
func simDeviceGetProcesses(h C.nvmlDevice_t, count *C.uint, to *C.nvmlProcessInfo_t) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		clients, err := t.Processes()
		if err != nil {
			return err
		}
		if count == nil {
			return code(sim.CodeInvalidArgument)
		}
		room := int(*count)
		*count = C.uint(len(clients))
		if len(clients) == 0 {
			return nil
		}
		if to == nil || room < len(clients) {
			return code(sim.CodeInsufficientSize)
		}
		for i, c := range clients {
			unsafe.Slice(to, len(clients))[i] = C.nvmlProcessInfo_t{
				pid:               C.uint(c.PID),
				usedGpuMemory:     C.ulonglong(c.Memory),
				gpuInstanceId:     C.uint(uint32(c.GPUInstance)), // -1 is how NVML says none
				computeInstanceId: C.uint(uint32(c.ComputeInstance)),
			}
		}
		return nil
	})
}

//export simDeviceGetHandleByUUID
func simDeviceGetHandleByUUID(uuid *C.char, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		d, m, err := n.DeviceByUUID(C.GoString(uuid))
		if err != nil {
			return err
		}
		if m != nil {
			return put(to, m, nil, migHandle)
		}
		return putDevice(to, d, nil)
	})
}

//export simDeviceGetComputeMode
func simDeviceGetComputeMode(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		mode, err := t.ComputeMode()
		return putUint(to, mode, err)
	})
}

//export simDeviceSetComputeMode
func simDeviceSetComputeMode(h C.nvmlDevice_t, mode C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error { return t.SetComputeMode(int(mode)) })
}

// onLimitable runs a call on a GPU; on a partition it is not supported.
func onLimitable(h C.nvmlDevice_t, call func(*sim.Device) error) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		d, ok := t.(*sim.Device)
		if !ok {
			return code(sim.CodeNotSupported)
		}
		return call(d)
	})
}

//export simDeviceSetMemoryLimits
func simDeviceSetMemoryLimits(h C.nvmlDevice_t, cgroup *C.char, soft, hard C.ulonglong) C.nvmlReturn_t {
	return onLimitable(h, func(d *sim.Device) error {
		return d.SetMemoryLimits(C.GoString(cgroup), uint64(soft), uint64(hard))
	})
}

//export simDeviceGetMemoryLimits
func simDeviceGetMemoryLimits(h C.nvmlDevice_t, limits *C.nvmlGetMemoryLimits_v1_t) C.nvmlReturn_t {
	return onLimitable(h, func(d *sim.Device) error {
		soft, hard, used, err := d.MemoryLimits(C.GoString(limits.nameSpace))
		if err != nil {
			return err
		}
		limits.softLimit, limits.hardLimit, limits.currentUsed = C.ulonglong(soft), C.ulonglong(hard), C.ulonglong(used)
		return nil
	})
}

//export simDeviceGetIndex
func simDeviceGetIndex(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		v, err := t.Index()
		return putUint(to, v, err)
	})
}

//export simDeviceGetBAR1MemoryInfo
func simDeviceGetBAR1MemoryInfo(h C.nvmlDevice_t, to *C.nvmlBAR1Memory_t) C.nvmlReturn_t {
	return onTarget(h, func(t target) error {
		total, err := t.BAR1Total()
		return put(to, total, err, func(total uint64) C.nvmlBAR1Memory_t {
			return C.nvmlBAR1Memory_t{bar1Total: C.ulonglong(total), bar1Free: C.ulonglong(total - 1<<20), bar1Used: 1 << 20}
		})
	})
}
