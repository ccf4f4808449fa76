// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsim

package main

/*
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stdlib.h>
#include <nvml.h>
#include "sim.h"
*/
import "C"

import (
	"sync"
	"time"
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// eventSets are the sets that exist, by their handle: the address of a byte of C that nobody else has.
var eventSets sync.Map // unsafe.Pointer -> *sim.EventSet

func eventSet(h C.nvmlEventSet_t) object[*sim.EventSet] {
	return func(*sim.Node) (*sim.EventSet, error) {
		set, ok := eventSets.Load(unsafe.Pointer(h.handle))
		if !ok {
			return nil, code(sim.CodeInvalidArgument)
		}
		return set.(*sim.EventSet), nil
	}
}

//export nvmlEventSetCreate
func nvmlEventSetCreate(to *C.nvmlEventSet_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return onNode(func(n *sim.Node) error {
		set, err := n.EventSetCreate()
		if err != nil {
			return err
		}
		handle := C.malloc(1)
		eventSets.Store(handle, set)
		to.handle = (*C.struct_nvmlEventSet_st)(handle)
		return nil
	})
}

//export nvmlEventSetFree
func nvmlEventSetFree(h C.nvmlEventSet_t) C.nvmlReturn_t {
	return on(eventSet(h), func(set *sim.EventSet) error {
		if err := set.Free(); err != nil {
			return err
		}
		if _, there := eventSets.LoadAndDelete(unsafe.Pointer(h.handle)); there {
			C.free(unsafe.Pointer(h.handle))
		}
		return nil
	})
}

//export nvmlEventSetWait_v2
func nvmlEventSetWait_v2(h C.nvmlEventSet_t, to *C.nvmlEventData_t, timeout C.uint) C.nvmlReturn_t {
	return on(eventSet(h), func(set *sim.EventSet) error {
		e, err := set.Wait(time.Duration(timeout) * time.Millisecond)
		return put(to, e, err, func(e sim.Event) C.nvmlEventData_t {
			return C.nvmlEventData_t{
				device:            deviceHandle(e.Device),
				eventType:         C.ulonglong(e.Type),
				eventData:         C.ulonglong(e.Data),
				gpuInstanceId:     C.uint(e.GPUInstance),
				computeInstanceId: C.uint(e.ComputeInstance),
			}
		})
	})
}

//export nvmlEventSetWait
func nvmlEventSetWait(h C.nvmlEventSet_t, to *C.nvmlEventData_t, timeout C.uint) C.nvmlReturn_t {
	return nvmlEventSetWait_v2(h, to, timeout)
}

//export nvmlDeviceRegisterEvents
func nvmlDeviceRegisterEvents(h C.nvmlDevice_t, types C.ulonglong, set C.nvmlEventSet_t) C.nvmlReturn_t {
	return on(eventSet(set), func(to *sim.EventSet) error {
		d, err := device(h)(current.Load())
		if err != nil {
			return err
		}
		return d.RegisterEvents(uint64(types), to)
	})
}

//export nvmlDeviceGetSupportedEventTypes
func nvmlDeviceGetSupportedEventTypes(h C.nvmlDevice_t, to *C.ulonglong) C.nvmlReturn_t {
	return answerNumber(device(h), (*sim.Device).SupportedEventTypes, to)
}
