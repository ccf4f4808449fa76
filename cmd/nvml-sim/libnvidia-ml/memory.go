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

//export nvmlDeviceGetMemoryInfo
func nvmlDeviceGetMemoryInfo(h C.nvmlDevice_t, to *C.nvmlMemory_t) C.nvmlReturn_t {
	return answer(memoryOf(h), memory.MemoryV1, to, func(m sim.Memory) C.nvmlMemory_t {
		return C.nvmlMemory_t{total: C.ulonglong(m.Total), free: C.ulonglong(m.Free), used: C.ulonglong(m.Reserved + m.Used)}
	})
}

//export nvmlDeviceGetMemoryInfo_v2
func nvmlDeviceGetMemoryInfo_v2(h C.nvmlDevice_t, to *C.nvmlMemory_v2_t) C.nvmlReturn_t {
	switch {
	case to == nil:
		return C.NVML_ERROR_INVALID_ARGUMENT
	case to.version != C.nvmlMemory_v2:
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return answer(memoryOf(h), memory.MemoryV2, to, func(m sim.Memory) C.nvmlMemory_v2_t {
		return C.nvmlMemory_v2_t{version: to.version, total: C.ulonglong(m.Total), reserved: C.ulonglong(m.Reserved),
			free: C.ulonglong(m.Free), used: C.ulonglong(m.Used)}
	})
}

//export nvmlDeviceGetBAR1MemoryInfo
func nvmlDeviceGetBAR1MemoryInfo(h C.nvmlDevice_t, to *C.nvmlBAR1Memory_t) C.nvmlReturn_t {
	return answer(memoryOf(h), memory.BAR1Total, to, func(total uint64) C.nvmlBAR1Memory_t {
		return C.nvmlBAR1Memory_t{bar1Total: C.ulonglong(total), bar1Free: C.ulonglong(total - 1<<20), bar1Used: 1 << 20}
	})
}

// onLimitable runs a call on a GPU; on a partition it is not supported.
func onLimitable(h C.nvmlDevice_t, call func(*sim.Device) error) C.nvmlReturn_t {
	return on(either(h), func(t target) error {
		d, ok := t.(*sim.Device)
		if !ok {
			return code(sim.CodeNotSupported)
		}
		return call(d)
	})
}

//export nvmlDeviceSetMemoryLimits_v1
func nvmlDeviceSetMemoryLimits_v1(h C.nvmlDevice_t, limits *C.nvmlSetMemoryLimits_v1_t) C.nvmlReturn_t {
	if limits == nil || limits.nameSpace == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return onLimitable(h, func(d *sim.Device) error {
		return d.Memory().SetMemoryLimits(C.GoString(limits.nameSpace), uint64(limits.softLimit), uint64(limits.hardLimit))
	})
}

//export nvmlDeviceGetMemoryLimits_v1
func nvmlDeviceGetMemoryLimits_v1(h C.nvmlDevice_t, limits *C.nvmlGetMemoryLimits_v1_t) C.nvmlReturn_t {
	if limits == nil || limits.nameSpace == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return onLimitable(h, func(d *sim.Device) error {
		soft, hard, used, err := d.Memory().MemoryLimits(C.GoString(limits.nameSpace))
		if err != nil {
			return err
		}
		limits.softLimit, limits.hardLimit, limits.currentUsed = C.ulonglong(soft), C.ulonglong(hard), C.ulonglong(used)
		return nil
	})
}

// All processes are compute processes.
//
//export nvmlDeviceGetComputeRunningProcesses_v3
func nvmlDeviceGetComputeRunningProcesses_v3(h C.nvmlDevice_t, count *C.uint, to *C.nvmlProcessInfo_t) C.nvmlReturn_t {
	return on(memoryOf(h), func(m memory) error {
		clients, err := m.Processes()
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

//export nvmlDeviceGetComputeRunningProcesses_v2
func nvmlDeviceGetComputeRunningProcesses_v2(h C.nvmlDevice_t, count *C.uint, to *C.nvmlProcessInfo_v2_t) C.nvmlReturn_t {
	return nvmlDeviceGetComputeRunningProcesses_v3(h, count, (*C.nvmlProcessInfo_t)(unsafe.Pointer(to)))
}

func noProcesses(count *C.uint) C.nvmlReturn_t {
	if count == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	*count = 0
	return C.NVML_SUCCESS
}

//export nvmlDeviceGetGraphicsRunningProcesses_v3
func nvmlDeviceGetGraphicsRunningProcesses_v3(h C.nvmlDevice_t, count *C.uint, to *C.nvmlProcessInfo_t) C.nvmlReturn_t {
	return noProcesses(count)
}

//export nvmlDeviceGetMPSComputeRunningProcesses_v3
func nvmlDeviceGetMPSComputeRunningProcesses_v3(h C.nvmlDevice_t, count *C.uint, to *C.nvmlProcessInfo_t) C.nvmlReturn_t {
	return noProcesses(count)
}

//export nvmlSystemGetProcessName
func nvmlSystemGetProcessName(pid C.uint, to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(node, func(n *sim.Node) (string, error) { return n.ProcessName(int(pid)) }, to, length)
}
