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

//export nvmlDeviceGetMinorNumber
func nvmlDeviceGetMinorNumber(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), (*sim.Device).MinorNumber, to)
}

//export nvmlDeviceGetModuleId
func nvmlDeviceGetModuleId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), (*sim.Device).ModuleID, to)
}

//export nvmlDeviceGetBrand
func nvmlDeviceGetBrand(h C.nvmlDevice_t, to *C.nvmlBrandType_t) C.nvmlReturn_t {
	return answerNumber(device(h), (*sim.Device).Brand, to)
}

//export nvmlDeviceGetArchitecture
func nvmlDeviceGetArchitecture(h C.nvmlDevice_t, to *C.nvmlDeviceArchitecture_t) C.nvmlReturn_t {
	return answerNumber(device(h), (*sim.Device).Architecture, to)
}

//export nvmlDeviceGetNumaNodeId
func nvmlDeviceGetNumaNodeId(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Links), sim.Links.NUMANodeID, to)
}

//export nvmlDeviceGetVirtualizationMode
func nvmlDeviceGetVirtualizationMode(h C.nvmlDevice_t, to *C.nvmlGpuVirtualizationMode_t) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Modes), sim.Modes.VirtualizationMode, to)
}

//export nvmlDeviceGetAddressingMode
func nvmlDeviceGetAddressingMode(h C.nvmlDevice_t, to *C.nvmlDeviceAddressingMode_t) C.nvmlReturn_t {
	switch {
	case to == nil:
		return C.NVML_ERROR_INVALID_ARGUMENT
	case to.version != C.nvmlDeviceAddressingMode_v1:
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return answerNumber(side(h, (*sim.Device).Modes), sim.Modes.AddressingMode, &to.value)
}

//export nvmlDeviceGetIndex
func nvmlDeviceGetIndex(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(either(h), target.Index, to)
}

//export nvmlDeviceGetName
func nvmlDeviceGetName(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(either(h), target.Name, to, length)
}

//export nvmlDeviceGetUUID
func nvmlDeviceGetUUID(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(either(h), target.UUID, to, length)
}

//export nvmlDeviceGetSerial
func nvmlDeviceGetSerial(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(device(h), (*sim.Device).Serial, to, length)
}

//export nvmlDeviceGetVbiosVersion
func nvmlDeviceGetVbiosVersion(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(device(h), (*sim.Device).VBIOS, to, length)
}

//export nvmlDeviceGetPciInfo_v3
func nvmlDeviceGetPciInfo_v3(h C.nvmlDevice_t, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return answer(device(h), (*sim.Device).PCI, to, pciInfo)
}

// olderPCIInfo stores the beginning of the struct: older structs are that.
func olderPCIInfo(h C.nvmlDevice_t, to *C.nvmlPciInfo_t, size uintptr) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return on(device(h), func(d *sim.Device) error {
		info, err := d.PCI()
		if err != nil {
			return err
		}
		full := pciInfo(info)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), size), unsafe.Slice((*byte)(unsafe.Pointer(&full)), size))
		return nil
	})
}

//export nvmlDeviceGetPciInfo_v2
func nvmlDeviceGetPciInfo_v2(h C.nvmlDevice_t, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return olderPCIInfo(h, to, unsafe.Offsetof(to.busId))
}

//export nvmlDeviceGetPciInfo
func nvmlDeviceGetPciInfo(h C.nvmlDevice_t, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return olderPCIInfo(h, to, unsafe.Offsetof(to.pciSubSystemId))
}

// pciInfo converts the description of a PCI function.
func pciInfo(info sim.PCIInfo) C.nvmlPciInfo_t {
	to := C.nvmlPciInfo_t{
		domain:         C.uint(info.Address.Domain),
		bus:            C.uint(info.Address.Bus),
		device:         C.uint(info.Address.Device),
		pciDeviceId:    C.uint(info.DeviceID),
		pciSubSystemId: C.uint(info.SubsystemID),
	}
	putChars(to.busId[:], info.BusID)
	putChars(to.busIdLegacy[:], info.BusID[4:]) // the legacy form has a four-digit domain
	return to
}

//export nvmlDeviceGetCudaComputeCapability
func nvmlDeviceGetCudaComputeCapability(h C.nvmlDevice_t, major, minor *C.int) C.nvmlReturn_t {
	return answerPair(device(h), (*sim.Device).CUDAComputeCapability, major, minor, convert[C.int, int])
}

//export nvmlDeviceGetEccMode
func nvmlDeviceGetEccMode(h C.nvmlDevice_t, now, pending *C.nvmlEnableState_t) C.nvmlReturn_t {
	return answerPair(side(h, (*sim.Device).Memory), sim.DeviceMemory.ECCMode, now, pending, enable)
}

//export nvmlDeviceGetTotalEccErrors
func nvmlDeviceGetTotalEccErrors(h C.nvmlDevice_t, kind C.nvmlMemoryErrorType_t, counter C.nvmlEccCounterType_t,
	to *C.ulonglong) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Memory), sim.DeviceMemory.TotalECCErrors, to)
}

//export nvmlDeviceGetRemappedRows
func nvmlDeviceGetRemappedRows(h C.nvmlDevice_t, corrected, uncorrected, pending, failed *C.uint) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		if err := d.Memory().RemappedRows(); err != nil {
			return err
		}
		for _, to := range []*C.uint{corrected, uncorrected, pending, failed} {
			if to != nil {
				*to = 0
			}
		}
		return nil
	})
}

//export nvmlDeviceGetPersistenceMode
func nvmlDeviceGetPersistenceMode(h C.nvmlDevice_t, to *C.nvmlEnableState_t) C.nvmlReturn_t {
	return answer(side(h, (*sim.Device).Modes), sim.Modes.PersistenceMode, to, enable)
}

//export nvmlDeviceSetPersistenceMode
func nvmlDeviceSetPersistenceMode(h C.nvmlDevice_t, mode C.nvmlEnableState_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error { return d.Modes().SetPersistenceMode(mode == C.NVML_FEATURE_ENABLED) })
}

//export nvmlDeviceGetComputeMode
func nvmlDeviceGetComputeMode(h C.nvmlDevice_t, to *C.nvmlComputeMode_t) C.nvmlReturn_t {
	return answerNumber(modesOf(h), modes.ComputeMode, to)
}

//export nvmlDeviceSetComputeMode
func nvmlDeviceSetComputeMode(h C.nvmlDevice_t, mode C.nvmlComputeMode_t) C.nvmlReturn_t {
	return on(modesOf(h), func(m modes) error { return m.SetComputeMode(int(mode)) })
}

//export nvmlDeviceGetFieldValues
func nvmlDeviceGetFieldValues(h C.nvmlDevice_t, count C.int, values *C.nvmlFieldValue_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		if values == nil || count <= 0 {
			return code(sim.CodeInvalidArgument)
		}
		if err := d.BeginFieldValues(); err != nil {
			return err
		}
		for i := range unsafe.Slice(values, int(count)) {
			f := &unsafe.Slice(values, int(count))[i]
			v, err := d.FieldValue(int(f.fieldId), int(f.scopeId))
			f.nvmlReturn = returnCode(err)
			f.valueType = C.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
			if f.fieldId == C.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE || f.fieldId == C.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION {
				// Captured with driver 580.159.04 on H100 and H200. The rest of the value is then undocumented.
				f.valueType = C.NVML_VALUE_TYPE_UNSIGNED_INT
				v |= 0xdead << 32
			}
			*(*uint64)(unsafe.Pointer(&f.value)) = v
		}
		return nil
	})
}
