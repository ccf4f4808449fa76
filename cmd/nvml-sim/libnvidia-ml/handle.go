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

// Handles are addresses in a range that is reserved and never touched: the address itself encodes the object. So they need no
// table, stay the same for as long as the process lives, and a handle of an instance that is gone does not reach a later one, for
// it holds the instance's serial number.
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

// parts is the decoded handle.
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

func partitionHandle(m *sim.MIGDevice) C.nvmlDevice_t {
	c := m.Compute()
	p := makeHandle(kindMIGDevice, c.Parent().Device().Number(), c.Parent().ID(), c.ID(), c.Serial())
	return C.nvmlDevice_t{handle: (*C.struct_nvmlDevice_st)(p)}
}

func gpuInstanceHandle(g *sim.GPUInstance) C.nvmlGpuInstance_t {
	p := makeHandle(kindGPUInstance, g.Device().Number(), g.ID(), 0, g.Serial())
	return C.nvmlGpuInstance_t{handle: (*C.struct_nvmlGpuInstance_st)(p)}
}

func computeInstanceHandle(c *sim.ComputeInstance) C.nvmlComputeInstance_t {
	p := makeHandle(kindComputeInstance, c.Parent().Device().Number(), c.Parent().ID(), c.ID(), c.Serial())
	return C.nvmlComputeInstance_t{handle: (*C.struct_nvmlComputeInstance_st)(p)}
}

// find returns the object of a handle.
func find(n *sim.Node, handle unsafe.Pointer) (any, error) {
	p, err := parseHandle(handle)
	if err != nil {
		return nil, err
	}
	d := n.Device(p.index)
	switch {
	case d == nil:
		return nil, code(sim.CodeInvalidArgument)
	case p.kind == kindGPUInstance:
		return d.MIG().GPUInstanceHandle(p.gi, p.serial), nil
	case p.kind == kindComputeInstance:
		return d.MIG().ComputeInstanceHandle(p.gi, p.ci, p.serial), nil
	case p.kind == kindMIGDevice:
		return sim.MIGDeviceOf(d.MIG().ComputeInstanceHandle(p.gi, p.ci, p.serial)), nil
	default:
		return d, nil
	}
}

// as finds an object of one kind; handles of other kinds are refused.
func as[O any](handle unsafe.Pointer) object[O] {
	return func(n *sim.Node) (o O, err error) {
		found, err := find(n, handle)
		if err != nil {
			return o, err
		}
		o, ok := found.(O)
		if !ok {
			return o, code(sim.CodeInvalidArgument)
		}
		return o, nil
	}
}

// target is the common interface of GPUs and partitions.
type target interface {
	Index() (int, error)
	UUID() (string, error)
	Name() (string, error)
}

// memory is the common interface of a GPU's and a partition's memory.
type memory interface {
	BAR1Total() (uint64, error)
	MemoryV1() (sim.Memory, error)
	MemoryV2() (sim.Memory, error)
	Processes() ([]sim.Client, error)
}

// modes are those that GPUs and partitions have in common.
type modes interface {
	ComputeMode() (int, error)
	SetComputeMode(mode int) error
}

// device is the GPU of a handle, partition the partition, and either one of the two.
func device(h C.nvmlDevice_t) object[*sim.Device] { return as[*sim.Device](unsafe.Pointer(h.handle)) }
func partition(h C.nvmlDevice_t) object[*sim.MIGDevice] {
	return as[*sim.MIGDevice](unsafe.Pointer(h.handle))
}
func either(h C.nvmlDevice_t) object[target] { return as[target](unsafe.Pointer(h.handle)) }

// side is one side of the GPU of a handle.
func side[S any](h C.nvmlDevice_t, of func(*sim.Device) S) object[S] {
	return func(n *sim.Node) (s S, err error) {
		d, err := device(h)(n)
		if err != nil {
			return s, err
		}
		return of(d), nil
	}
}

// eitherSide is a partition, or one side of a GPU.
func eitherSide[S any](h C.nvmlDevice_t, of func(*sim.Device) S) object[S] {
	return func(n *sim.Node) (s S, err error) {
		t, err := either(h)(n)
		if err != nil {
			return s, err
		}
		if d, ok := t.(*sim.Device); ok {
			return of(d), nil
		}
		return t.(S), nil
	}
}

func memoryOf(h C.nvmlDevice_t) object[memory] {
	return eitherSide(h, func(d *sim.Device) memory { return d.Memory() })
}

func modesOf(h C.nvmlDevice_t) object[modes] {
	return eitherSide(h, func(d *sim.Device) modes { return d.Modes() })
}

func gpuInstance(h C.nvmlGpuInstance_t) object[*sim.GPUInstance] {
	return as[*sim.GPUInstance](unsafe.Pointer(h.handle))
}

func computeInstance(h C.nvmlComputeInstance_t) object[*sim.ComputeInstance] {
	return as[*sim.ComputeInstance](unsafe.Pointer(h.handle))
}

//export nvmlDeviceGetCount_v2
func nvmlDeviceGetCount_v2(to *C.uint) C.nvmlReturn_t {
	return answerNumber(node, (*sim.Node).DeviceCount, to)
}

//export nvmlDeviceGetCount
func nvmlDeviceGetCount(to *C.uint) C.nvmlReturn_t { return nvmlDeviceGetCount_v2(to) }

//export nvmlDeviceGetHandleByIndex_v2
func nvmlDeviceGetHandleByIndex_v2(index C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return answer(node, func(n *sim.Node) (*sim.Device, error) { return n.DeviceByIndex(int(index)) }, to, deviceHandle)
}

//export nvmlDeviceGetHandleByIndex
func nvmlDeviceGetHandleByIndex(index C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return nvmlDeviceGetHandleByIndex_v2(index, to)
}

//export simDeviceGetHandleByPciBusId
func simDeviceGetHandleByPciBusId(id *C.char, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return answer(node, func(n *sim.Node) (*sim.Device, error) { return n.DeviceByPCIBusID(C.GoString(id)) }, to, deviceHandle)
}

//export simDeviceGetHandleByUUID
func simDeviceGetHandleByUUID(uuid *C.char, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		d, m, err := n.DeviceByUUID(C.GoString(uuid))
		if m != nil {
			return put(to, m, err, partitionHandle)
		}
		return put(to, d, err, deviceHandle)
	})
}
