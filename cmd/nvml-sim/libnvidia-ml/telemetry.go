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

//export simDeviceGetClock
func simDeviceGetClock(h C.nvmlDevice_t, kind C.uint, most C.int, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		get := d.Clock
		if most != 0 {
			get = d.MaxClock
		}
		v, err := get(int(kind))
		return putUint(to, v, err)
	})
}

//export simDeviceGetTemperatureThreshold
func simDeviceGetTemperatureThreshold(h C.nvmlDevice_t, kind C.uint, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.TemperatureThreshold(int(kind))
		return putUint(to, v, err)
	})
}

//export simDeviceGetPowerLimits
func simDeviceGetPowerLimits(h C.nvmlDevice_t, least, most *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		a, b, err := d.PowerLimits()
		if err != nil {
			return err
		}
		if least == nil || most == nil {
			return code(sim.CodeInvalidArgument)
		}
		*least, *most = C.uint(a), C.uint(b)
		return nil
	})
}

//export simDeviceGetVbiosVersion
func simDeviceGetVbiosVersion(h C.nvmlDevice_t, to *C.char, length C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		s, err := d.VBIOS()
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

//export simSystemGetProcessName
func simSystemGetProcessName(pid C.uint, to *C.char, length C.uint) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		s, err := n.ProcessName(int(pid))
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

//export simGpmSupported
func simGpmSupported(h C.nvmlDevice_t, to *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		yes, err := d.GPMSupported()
		return put(to, yes, err, func(yes bool) C.uint { return C.uint(enable(yes)) })
	})
}

//export simGpmSample
func simGpmSample(h C.nvmlDevice_t, gi C.int, busy *C.uint) C.nvmlReturn_t {
	return onDevice(h, func(d *sim.Device) error {
		v, err := d.GPMSample(int(gi))
		return putUint(busy, v, err)
	})
}
