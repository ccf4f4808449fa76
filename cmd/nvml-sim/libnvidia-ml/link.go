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

//export nvmlDeviceGetNvLinkState
func nvmlDeviceGetNvLinkState(h C.nvmlDevice_t, link C.uint, to *C.nvmlEnableState_t) C.nvmlReturn_t {
	return answer(device(h), func(d *sim.Device) (bool, error) { return d.Links().NVLinkState(int(link)) }, to, enable)
}

//export nvmlDeviceGetNvLinkVersion
func nvmlDeviceGetNvLinkVersion(h C.nvmlDevice_t, link C.uint, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Links().NVLinkVersion(int(link)) }, to)
}

//export nvmlDeviceGetNvLinkRemoteDeviceType
func nvmlDeviceGetNvLinkRemoteDeviceType(h C.nvmlDevice_t, link C.uint, to *C.nvmlIntNvLinkDeviceType_t) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Links().NVLinkRemoteDeviceType(int(link)) }, to)
}

//export nvmlDeviceGetNvLinkRemotePciInfo_v2
func nvmlDeviceGetNvLinkRemotePciInfo_v2(h C.nvmlDevice_t, link C.uint, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return answer(device(h), func(d *sim.Device) (sim.PCIInfo, error) { return d.Links().NVLinkRemotePCI(int(link)) }, to, pciInfo)
}

//export nvmlDeviceGetTopologyCommonAncestor
func nvmlDeviceGetTopologyCommonAncestor(h, other C.nvmlDevice_t, to *C.nvmlGpuTopologyLevel_t) C.nvmlReturn_t {
	return onPair(device(h), device(other), func(a, b *sim.Device) error {
		v, err := a.Links().TopologyCommonAncestor(b)
		return put(to, v, err, convert[C.nvmlGpuTopologyLevel_t, int])
	})
}

//export nvmlDeviceGetTopologyNearestGpus
func nvmlDeviceGetTopologyNearestGpus(h C.nvmlDevice_t, level C.nvmlGpuTopologyLevel_t, count *C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		near, err := d.Links().TopologyNearestGPUs(int(level))
		return putSlice(to, count, near, err, true, deviceHandle)
	})
}

//export nvmlDeviceGetP2PStatus
func nvmlDeviceGetP2PStatus(h, other C.nvmlDevice_t, capability C.nvmlGpuP2PCapsIndex_t, to *C.nvmlGpuP2PStatus_t) C.nvmlReturn_t {
	return onPair(device(h), device(other), func(a, b *sim.Device) error {
		v, err := a.Links().P2PStatus(b, int(capability))
		return put(to, v, err, convert[C.nvmlGpuP2PStatus_t, int])
	})
}

// fabricInfo stores a GPU's NVLink domain in the fields that all versions of the struct have.
func fabricInfo(h C.nvmlDevice_t, clusterUUID []C.uchar, clique *C.uint, state *C.nvmlGpuFabricState_t, status *C.nvmlReturn_t,
	health *C.uint) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		info, err := d.Links().Fabric()
		if err != nil {
			return err
		}
		for i, b := range info.ClusterUUID {
			clusterUUID[i] = C.uchar(b)
		}
		*clique, *state, *status = C.uint(info.Clique), C.nvmlGpuFabricState_t(info.State), C.nvmlReturn_t(info.Status)
		if health != nil {
			*health = C.uint(info.HealthMask)
		}
		return nil
	})
}

//export nvmlDeviceGetGpuFabricInfo
func nvmlDeviceGetGpuFabricInfo(h C.nvmlDevice_t, to *C.nvmlGpuFabricInfo_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	to.status, to.state = C.NVML_SUCCESS, C.NVML_GPU_FABRIC_STATE_COMPLETED
	return fabricInfo(h, to.clusterUuid[:], &to.cliqueId, &to.state, &to.status, nil)
}

//export nvmlDeviceGetGpuFabricInfoV
func nvmlDeviceGetGpuFabricInfoV(h C.nvmlDevice_t, to *C.nvmlGpuFabricInfoV_t) C.nvmlReturn_t {
	switch {
	case to == nil:
		return C.NVML_ERROR_INVALID_ARGUMENT
	case to.version == C.nvmlGpuFabricInfo_v3:
		to.healthSummary = C.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
	case to.version != C.nvmlGpuFabricInfo_v2:
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	to.status, to.state, to.healthMask = C.NVML_SUCCESS, C.NVML_GPU_FABRIC_STATE_COMPLETED, 0
	return fabricInfo(h, to.clusterUuid[:], &to.cliqueId, &to.state, &to.status, &to.healthMask)
}

//export nvmlDeviceGetCpuAffinityWithinScope
func nvmlDeviceGetCpuAffinityWithinScope(h C.nvmlDevice_t, size C.uint, to *C.ulong, scope C.nvmlAffinityScope_t) C.nvmlReturn_t {
	return nvmlDeviceGetCpuAffinity(h, size, to)
}

//export nvmlDeviceGetCpuAffinity
func nvmlDeviceGetCpuAffinity(h C.nvmlDevice_t, size C.uint, to *C.ulong) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		cpus, err := d.Links().CPUAffinity()
		if err != nil {
			return err
		}
		return putBits(to, size, cpus...)
	})
}

//export nvmlDeviceGetMemoryAffinity
func nvmlDeviceGetMemoryAffinity(h C.nvmlDevice_t, size C.uint, to *C.ulong, scope C.nvmlAffinityScope_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		node, err := d.Links().MemoryAffinity()
		if err != nil {
			return err
		}
		return putBits(to, size, sim.CPURange{First: node, Last: node})
	})
}

// putBits sets bits in an array of words; bits past its end are left out, as NVML does.
func putBits(to *C.ulong, size C.uint, ranges ...sim.CPURange) error {
	if to == nil || size == 0 {
		return code(sim.CodeInvalidArgument)
	}
	words := unsafe.Slice(to, int(size))
	clear(words)
	for _, r := range ranges {
		for bit := r.First; bit <= min(r.Last, 64*len(words)-1); bit++ {
			words[bit/64] |= 1 << (bit % 64)
		}
	}
	return nil
}
