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
	"math"
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/sim"
)

//export nvmlDeviceGetPowerUsage
func nvmlDeviceGetPowerUsage(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.Power, to)
}

//export nvmlDeviceGetPowerManagementLimit
func nvmlDeviceGetPowerManagementLimit(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.PowerLimit, to)
}

//export nvmlDeviceGetEnforcedPowerLimit
func nvmlDeviceGetEnforcedPowerLimit(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.PowerLimit, to)
}

//export nvmlDeviceGetPowerManagementDefaultLimit
func nvmlDeviceGetPowerManagementDefaultLimit(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.PowerLimit, to)
}

//export nvmlDeviceGetCurrPcieLinkGeneration
func nvmlDeviceGetCurrPcieLinkGeneration(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.PCIeGeneration, to)
}

//export nvmlDeviceGetMaxPcieLinkGeneration
func nvmlDeviceGetMaxPcieLinkGeneration(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.MaxPCIeGeneration, to)
}

//export nvmlDeviceGetGpuMaxPcieLinkGeneration
func nvmlDeviceGetGpuMaxPcieLinkGeneration(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.MaxPCIeGeneration, to)
}

//export nvmlDeviceGetCurrPcieLinkWidth
func nvmlDeviceGetCurrPcieLinkWidth(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.PCIeWidth, to)
}

//export nvmlDeviceGetMaxPcieLinkWidth
func nvmlDeviceGetMaxPcieLinkWidth(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.MaxPCIeWidth, to)
}

//export nvmlDeviceGetPowerManagementLimitConstraints
func nvmlDeviceGetPowerManagementLimitConstraints(h C.nvmlDevice_t, least, most *C.uint) C.nvmlReturn_t {
	return answerPair(side(h, (*sim.Device).Telemetry), sim.Telemetry.PowerLimits, least, most, convert[C.uint, int])
}

//export nvmlDeviceGetClockInfo
func nvmlDeviceGetClockInfo(h C.nvmlDevice_t, kind C.nvmlClockType_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Telemetry().Clock(int(kind)) }, to)
}

//export nvmlDeviceGetMaxClockInfo
func nvmlDeviceGetMaxClockInfo(h C.nvmlDevice_t, kind C.nvmlClockType_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Telemetry().MaxClock(int(kind)) }, to)
}

//export nvmlDeviceGetTemperature
func nvmlDeviceGetTemperature(h C.nvmlDevice_t, sensor C.nvmlTemperatureSensors_t, to *C.uint) C.nvmlReturn_t {
	if sensor != C.NVML_TEMPERATURE_GPU {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.Temperature, to)
}

//export nvmlDeviceGetTemperatureV
func nvmlDeviceGetTemperatureV(h C.nvmlDevice_t, to *C.nvmlTemperature_t) C.nvmlReturn_t {
	if to == nil {
		return C.NVML_ERROR_INVALID_ARGUMENT
	}
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.Temperature, &to.temperature)
}

//export nvmlDeviceGetTemperatureThreshold
func nvmlDeviceGetTemperatureThreshold(h C.nvmlDevice_t, kind C.nvmlTemperatureThresholds_t, to *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Telemetry().TemperatureThreshold(int(kind)) }, to)
}

//export nvmlDeviceGetUtilizationRates
func nvmlDeviceGetUtilizationRates(h C.nvmlDevice_t, to *C.nvmlUtilization_t) C.nvmlReturn_t {
	return on(device(h), func(d *sim.Device) error {
		g, m, err := d.Telemetry().Utilization()
		return put(to, m, err, func(m int) C.nvmlUtilization_t { return C.nvmlUtilization_t{gpu: C.uint(g), memory: C.uint(m)} })
	})
}

//export nvmlDeviceGetTotalEnergyConsumption
func nvmlDeviceGetTotalEnergyConsumption(h C.nvmlDevice_t, to *C.ulonglong) C.nvmlReturn_t {
	return answerNumber(side(h, (*sim.Device).Telemetry), sim.Telemetry.TotalEnergy, to)
}

// A call without a buffer tells its size, as of the driver: that of its own buffer, whatever is in it (NVIDIA/go-nvml#11).
//
//export nvmlDeviceGetProcessUtilization
func nvmlDeviceGetProcessUtilization(
	h C.nvmlDevice_t, to *C.nvmlProcessUtilizationSample_t, count *C.uint, since C.ulonglong,
) C.nvmlReturn_t {
	return on(side(h, (*sim.Device).Telemetry), func(d sim.Telemetry) error {
		if count == nil {
			return code(sim.CodeInvalidArgument)
		}
		samples, err := d.ProcessUtilization(int64(min(uint64(since), math.MaxInt64)))
		switch {
		case err != nil:
			return err
		case to == nil || int(*count) < len(samples):
			*count = sim.KeptSamples
			return code(sim.CodeInsufficientSize)
		}
		*count = C.uint(len(samples))
		for i, s := range samples {
			unsafe.Slice(to, len(samples))[i] = C.nvmlProcessUtilizationSample_t{
				pid: C.uint(s.PID), timeStamp: C.ulonglong(s.Timestamp), smUtil: C.uint(s.SM), memUtil: C.uint(s.DRAM),
			}
		}
		return nil
	})
}

//export simGpmSupported
func simGpmSupported(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return on(either(h), func(t target) error {
		d, _, err := gpmOf(t)
		if err != nil {
			return err
		}
		yes, err := d.Telemetry().GPMSupported()
		return put(to, yes, err, func(yes bool) C.uint { return C.uint(enable(yes)) })
	})
}

//export simGpmSample
func simGpmSample(h C.nvmlDevice_t, gi C.int, at *C.longlong, sm, dram *C.double) C.nvmlReturn_t {
	return on(either(h), func(t target) error {
		d, own, err := gpmOf(t)
		switch {
		case err != nil:
			return err
		case own >= 0 && gi >= 0:
			return code(sim.CodeInvalidArgument) // nvmlGpmMigSampleGet takes a GPU
		}
		s, err := d.Telemetry().GPMSample(max(own, int(gi)))
		*at, *sm, *dram = C.longlong(s.At), C.double(s.SM), C.double(s.DRAM)
		return err
	})
}

// gpmOf is the GPU of a handle, and the GPU instance of that of a partition, or -1: "This API supports the device handle and MIG
// device handle" (nvml.h, nvmlGpmSampleGet).
func gpmOf(t target) (*sim.Device, int, error) {
	switch o := t.(type) {
	case *sim.Device:
		return o, -1, nil
	case *sim.MIGDevice:
		d, err := o.Parent()
		return d, o.Compute().Parent().ID(), err
	}
	return nil, -1, code(sim.CodeInvalidArgument)
}

// simGpmSince is the activity between two samples; false if they are of the same reading of the counters.
//
//export simGpmSince
func simGpmSince(at1, at2 C.longlong, sm1, dram1, sm2, dram2 C.double, sm, dram *C.double) C.int {
	s, d, ok := sim.GPMSample{At: int64(at2), SM: float64(sm2), DRAM: float64(dram2)}.Since(
		sim.GPMSample{At: int64(at1), SM: float64(sm1), DRAM: float64(dram1)})
	*sm, *dram = C.double(s), C.double(d)
	if ok {
		return 1
	}
	return 0
}
