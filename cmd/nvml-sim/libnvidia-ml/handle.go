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

// Handles are addresses in a range that is reserved and never touched: what they stand for is in the address itself.
// So they need no table, stay the same for as long as the process lives, and a handle of an instance that is gone
// does not reach a later one, for it holds the instance's serial number.
const (
	serialBits  = 12
	computeBits = 3
	gpuInstBits = 4
	indexBits   = 5
	kindBits    = 2

	computeShift = serialBits
	gpuInstShift = computeShift + computeBits
	indexShift   = gpuInstShift + gpuInstBits
	kindShift    = indexShift + indexBits
	handleRange  = 1 << (kindShift + kindBits)
)

// What a handle stands for.
const (
	kindDevice = iota
	kindGPUInstance
	kindComputeInstance
	kindMIGDevice
)

var handleBase = C.simReserve(handleRange)

// makeHandle makes the address.
func makeHandle(kind, index, gi, ci int, serial uint64) unsafe.Pointer {
	off := kind<<kindShift | index<<indexShift | gi<<gpuInstShift | ci<<computeShift | int(serial&(1<<serialBits-1))
	return unsafe.Add(handleBase, off)
}

// parts is what a handle says.
type parts struct {
	kind, index, gi, ci int
	serial              uint64
}

func parseHandle(p unsafe.Pointer) (parts, error) {
	off := uintptr(p) - uintptr(handleBase)
	if p == nil || handleBase == nil || off >= handleRange {
		return parts{}, code(sim.CodeInvalidArgument)
	}
	field := func(shift, bits int) int { return int(off>>shift) & (1<<bits - 1) }
	return parts{
		kind:   field(kindShift, kindBits),
		index:  field(indexShift, indexBits),
		gi:     field(gpuInstShift, gpuInstBits),
		ci:     field(computeShift, computeBits),
		serial: uint64(field(0, serialBits)),
	}, nil
}

// deviceHandle is the handle of a GPU.
func deviceHandle(d *sim.Device) C.nvmlDevice_t {
	return C.nvmlDevice_t{handle: (*C.struct_nvmlDevice_st)(makeHandle(kindDevice, d.Number(), 0, 0, 0))}
}

// onDevice runs a call on a GPU; handles of partitions are refused.
func onDevice(handle C.nvmlDevice_t, call func(*sim.Device) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		d, err := device(n, handle)
		if err != nil {
			return err
		}
		return call(d)
	})
}

// device finds the GPU of a handle.
func device(n *sim.Node, handle C.nvmlDevice_t) (*sim.Device, error) {
	p, err := parseHandle(unsafe.Pointer(handle.handle))
	if err != nil {
		return nil, err
	}
	d := n.Device(p.index)
	if p.kind != kindDevice || d == nil {
		return nil, code(sim.CodeInvalidArgument)
	}
	return d, nil
}

// putDevice stores the handle of a GPU.
func putDevice(to *C.nvmlDevice_t, d *sim.Device, err error) error {
	return put(to, d, err, deviceHandle)
}

//export simDeviceGetCount
func simDeviceGetCount(to *C.uint) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		v, err := n.DeviceCount()
		return putUint(to, v, err)
	})
}

//export simDeviceGetHandleByIndex
func simDeviceGetHandleByIndex(index C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		d, err := n.DeviceByIndex(int(index))
		return putDevice(to, d, err)
	})
}

//export simDeviceGetHandleByPciBusId
func simDeviceGetHandleByPciBusId(id *C.char, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		d, err := n.DeviceByPCIBusID(C.GoString(id))
		return putDevice(to, d, err)
	})
}
