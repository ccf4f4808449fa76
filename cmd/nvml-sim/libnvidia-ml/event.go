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

// onEventSet runs a call on an event set.
func onEventSet(h C.nvmlEventSet_t, call func(*sim.EventSet) error) C.nvmlReturn_t {
	return onNode(func(*sim.Node) error {
		set, ok := eventSets.Load(unsafe.Pointer(h.handle))
		if !ok {
			return code(sim.CodeInvalidArgument)
		}
		return call(set.(*sim.EventSet))
	})
}

//export simEventSetCreate
func simEventSetCreate(to *C.nvmlEventSet_t) C.nvmlReturn_t {
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

//export simEventSetFree
func simEventSetFree(h C.nvmlEventSet_t) C.nvmlReturn_t {
	return onEventSet(h, func(set *sim.EventSet) error {
		if err := set.Free(); err != nil {
			return err
		}
		if _, there := eventSets.LoadAndDelete(unsafe.Pointer(h.handle)); there {
			C.free(unsafe.Pointer(h.handle))
		}
		return nil
	})
}

//export simEventSetWait
func simEventSetWait(h C.nvmlEventSet_t, to *C.nvmlEventData_t, timeout C.uint) C.nvmlReturn_t {
	return onEventSet(h, func(set *sim.EventSet) error {
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

//export simDeviceRegisterEvents
func simDeviceRegisterEvents(d C.nvmlDevice_t, types C.ulonglong, h C.nvmlEventSet_t) C.nvmlReturn_t {
	return onEventSet(h, func(set *sim.EventSet) error {
		dev, err := device(current.Load(), d)
		if err != nil {
			return err
		}
		return dev.RegisterEvents(uint64(types), set)
	})
}

//export simDeviceGetSupportedEventTypes
func simDeviceGetSupportedEventTypes(h C.nvmlDevice_t, to *C.ulonglong) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.SupportedEventTypes()
		return put(to, v, err, func(v uint64) C.ulonglong { return C.ulonglong(v) })
	})
}
