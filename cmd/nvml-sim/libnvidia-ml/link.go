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

//export simDeviceGetNvLinkState
func simDeviceGetNvLinkState(h C.nvmlDevice_t, link C.uint, to *C.nvmlEnableState_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		up, err := d.NVLinkState(int(link))
		return put(to, up, err, enable)
	})
}

//export simDeviceGetNvLinkVersion
func simDeviceGetNvLinkVersion(h C.nvmlDevice_t, link C.uint, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.NVLinkVersion(int(link))
		return putUint(to, v, err)
	})
}

//export simDeviceGetNvLinkRemoteDeviceType
func simDeviceGetNvLinkRemoteDeviceType(h C.nvmlDevice_t, link C.uint, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.NVLinkRemoteDeviceType(int(link))
		return putUint(to, v, err)
	})
}

//export simDeviceGetNvLinkRemotePciInfo
func simDeviceGetNvLinkRemotePciInfo(h C.nvmlDevice_t, link C.uint, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		info, err := d.NVLinkRemotePCI(int(link))
		return put(to, info, err, pciInfo)
	})
}

// onPair runs a call on two GPUs.
func onPair(a, b C.nvmlDevice_t, call func(a, b *sim.Device) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		first, err := device(n, a)
		if err != nil {
			return err
		}
		second, err := device(n, b)
		if err != nil {
			return err
		}
		return call(first, second)
	})
}

//export simDeviceGetTopologyCommonAncestor
func simDeviceGetTopologyCommonAncestor(h, other C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onPair(h, other, func(a, b *sim.Device) error {
		v, err := a.TopologyCommonAncestor(b)
		return putUint(to, v, err)
	})
}

//export simDeviceGetTopologyNearestGpus
func simDeviceGetTopologyNearestGpus(h C.nvmlDevice_t, level C.uint, count *C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		near, err := d.TopologyNearestGPUs(int(level))
		return putSlice(to, count, near, err, true, deviceHandle)
	})
}

//export simDeviceGetP2PStatus
func simDeviceGetP2PStatus(h, other C.nvmlDevice_t, capability C.uint, to *C.uint) C.nvmlReturn_t {
	return onPair(h, other, func(a, b *sim.Device) error {
		v, err := a.P2PStatus(b, int(capability))
		return putUint(to, v, err)
	})
}

// putSlice fills an array. Where sized, count says on entry how many fit, and NVML wants to hear how many there are
// if they do not; where not, the caller has made room for all there can be. A null array asks for the count alone.
func putSlice[T, G any](to *T, count *C.uint, values []G, err error, sized bool, convert func(G) T) error {
	if err != nil {
		return err
	}
	if count == nil {
		return code(sim.CodeInvalidArgument)
	}
	room := int(*count)
	*count = C.uint(len(values))
	switch {
	case to == nil && (!sized || room == 0):
		return nil
	case to == nil:
		return code(sim.CodeInvalidArgument)
	case sized && room < len(values):
		return code(sim.CodeInsufficientSize)
	}
	for i, v := range values {
		unsafe.Slice(to, len(values))[i] = convert(v)
	}
	return nil
}

// fabric is what a GPU says of its NVLink domain.
//
//export simDeviceGetGpuFabricInfo
func simDeviceGetGpuFabricInfo(h C.nvmlDevice_t, clusterUUID *C.uchar, clique *C.uint, state *C.uchar) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		info, err := d.Fabric()
		if err != nil {
			return err
		}
		copy(unsafe.Slice((*byte)(clusterUUID), len(info.ClusterUUID)), info.ClusterUUID[:])
		*clique = C.uint(info.Clique)
		*state = C.uchar(info.State)
		return nil
	})
}
