// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsim

package main

/*
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include "sim.h"
*/
import "C"

import "github.com/cleave-dra/cleave/pkg/sim"

//export nvmlDeviceIsMigDeviceHandle
func nvmlDeviceIsMigDeviceHandle(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return on(either(h), func(t target) error {
		if d, ok := t.(*sim.Device); ok {
			return put(to, false, d.IsMIG(), mode)
		}
		return put(to, true, t.(*sim.MIGDevice).Compute().Parent().Device().IsMIG(), mode)
	})
}

//export nvmlDeviceGetMigDeviceHandleByIndex
func nvmlDeviceGetMigDeviceHandleByIndex(h C.nvmlDevice_t, index C.uint, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return answer(device(h), func(d *sim.Device) (*sim.MIGDevice, error) { return d.MIG().MIGDeviceByIndex(int(index)) }, to, partitionHandle)
}

//export nvmlDeviceGetDeviceHandleFromMigDeviceHandle
func nvmlDeviceGetDeviceHandleFromMigDeviceHandle(h C.nvmlDevice_t, to *C.nvmlDevice_t) C.nvmlReturn_t {
	return answer(partition(h), (*sim.MIGDevice).Parent, to, deviceHandle)
}

//export nvmlDeviceGetGpuInstanceId
func nvmlDeviceGetGpuInstanceId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(partition(h), (*sim.MIGDevice).GPUInstanceID, to)
}

//export nvmlDeviceGetComputeInstanceId
func nvmlDeviceGetComputeInstanceId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(partition(h), (*sim.MIGDevice).ComputeInstanceID, to)
}

//export nvmlDeviceGetAttributes_v2
func nvmlDeviceGetAttributes_v2(h C.nvmlDevice_t, to *C.nvmlDeviceAttributes_t) C.nvmlReturn_t {
	return answer(partition(h), (*sim.MIGDevice).Attributes, to, func(a sim.Attributes) C.nvmlDeviceAttributes_t {
		return C.nvmlDeviceAttributes_t{
			multiprocessorCount:       C.uint(a.Multiprocessors),
			sharedCopyEngineCount:     C.uint(a.Instance.CopyEngines),
			sharedDecoderCount:        C.uint(a.Instance.Decoders),
			sharedEncoderCount:        C.uint(a.Instance.Encoders),
			sharedJpegCount:           C.uint(a.Instance.JPEGEngines),
			sharedOfaCount:            C.uint(a.Instance.OFAEngines),
			gpuInstanceSliceCount:     C.uint(a.Instance.ComputeSlices),
			computeInstanceSliceCount: C.uint(a.Slices),
			memorySizeMB:              C.ulonglong(a.Instance.Memory >> 20),
		}
	})
}

//export nvmlDeviceGetAttributes
func nvmlDeviceGetAttributes(h C.nvmlDevice_t, to *C.nvmlDeviceAttributes_t) C.nvmlReturn_t {
	return nvmlDeviceGetAttributes_v2(h, to)
}
