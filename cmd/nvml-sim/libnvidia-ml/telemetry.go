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

//export simGpmSupported
func simGpmSupported(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return answer(side(h, (*sim.Device).Telemetry), sim.Telemetry.GPMSupported, to, func(yes bool) C.uint { return C.uint(enable(yes)) })
}

//export simGpmSample
func simGpmSample(h C.nvmlDevice_t, gi C.int, busy *C.uint) C.nvmlReturn_t {
	return answerNumber(device(h), func(d *sim.Device) (int, error) { return d.Telemetry().GPMSample(int(gi)) }, busy)
}
