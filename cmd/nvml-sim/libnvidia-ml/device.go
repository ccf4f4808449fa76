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

//export simDeviceNumber
func simDeviceNumber(which C.int, h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		gets := [...]func() (int, error){
			C.SIM_MINOR:               d.MinorNumber,
			C.SIM_MODULE:              d.ModuleID,
			C.SIM_BRAND:               d.Brand,
			C.SIM_ARCHITECTURE:        d.Architecture,
			C.SIM_NUMA_NODE:           d.NUMANodeID,
			C.SIM_VIRTUALIZATION:      d.VirtualizationMode,
			C.SIM_POWER:               d.Power,
			C.SIM_POWER_LIMIT:         d.PowerLimit,
			C.SIM_TEMPERATURE:         d.Temperature,
			C.SIM_ADDRESSING_MODE:     d.AddressingMode,
			C.SIM_MAX_MIG_DEVICES:     d.MaxMIGDevices,
			C.SIM_PERSISTENCE_MODE:    func() (int, error) { on, err := d.PersistenceMode(); return int(enable(on)), err },
			C.SIM_PCIE_GENERATION:     d.PCIeGeneration,
			C.SIM_PCIE_MAX_GENERATION: d.MaxPCIeGeneration,
			C.SIM_PCIE_WIDTH:          d.PCIeWidth,
			C.SIM_PCIE_MAX_WIDTH:      d.MaxPCIeWidth,
		}
		v, err := gets[which]()
		return putUint(to, v, err)
	})
}

//export simDeviceGetSerial
func simDeviceGetSerial(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		s, err := d.Serial()
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

//export simDeviceGetPciInfo
func simDeviceGetPciInfo(h C.nvmlDevice_t, to *C.nvmlPciInfo_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		info, err := d.PCI()
		return put(to, info, err, pciInfo)
	})
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

//export simDeviceGetCudaComputeCapability
func simDeviceGetCudaComputeCapability(h C.nvmlDevice_t, major, minor *C.int) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		a, b, err := d.CUDAComputeCapability()
		if err != nil {
			return err
		}
		if major == nil || minor == nil {
			return code(sim.CodeInvalidArgument)
		}
		*major, *minor = C.int(a), C.int(b)
		return nil
	})
}

//export simDeviceGetEccMode
func simDeviceGetEccMode(h C.nvmlDevice_t, now, pending *C.nvmlEnableState_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		a, b, err := d.ECCMode()
		if err != nil {
			return err
		}
		if now == nil || pending == nil {
			return code(sim.CodeInvalidArgument)
		}
		*now, *pending = enable(a), enable(b)
		return nil
	})
}

//export simDeviceGetTotalEccErrors
func simDeviceGetTotalEccErrors(h C.nvmlDevice_t, to *C.ulonglong) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.TotalECCErrors()
		return put(to, v, err, func(v uint64) C.ulonglong { return C.ulonglong(v) })
	})
}

//export simDeviceGetRemappedRows
func simDeviceGetRemappedRows(h C.nvmlDevice_t, corrected, uncorrected, pending, failed *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		if err := d.RemappedRows(); err != nil {
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

//export simDeviceGetUtilizationRates
func simDeviceGetUtilizationRates(h C.nvmlDevice_t, to *C.nvmlUtilization_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		g, m, err := d.Utilization()
		return put(to, m, err, func(m int) C.nvmlUtilization_t { return C.nvmlUtilization_t{gpu: C.uint(g), memory: C.uint(m)} })
	})
}

//export simDeviceSetPersistenceMode
func simDeviceSetPersistenceMode(h C.nvmlDevice_t, mode C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error { return d.SetPersistenceMode(mode == C.NVML_FEATURE_ENABLED) })
}

//export simDeviceGetCpuAffinity
func simDeviceGetCpuAffinity(h C.nvmlDevice_t, size C.uint, to *C.ulong) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		cpus, err := d.CPUAffinity()
		if err != nil {
			return err
		}
		return putBits(to, size, cpus...)
	})
}

//export simDeviceGetMemoryAffinity
func simDeviceGetMemoryAffinity(h C.nvmlDevice_t, size C.uint, to *C.ulong) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		node, err := d.MemoryAffinity()
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

//export simDeviceGetFieldValues
func simDeviceGetFieldValues(h C.nvmlDevice_t, count C.int, values *C.nvmlFieldValue_t) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
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
			*(*uint64)(unsafe.Pointer(&f.value)) = v
		}
		return nil
	})
}
