// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"strconv"
	"strings"
)

// NVML_CLOCK_*: the clocks of a GPU.
const (
	ClockGraphics = 0
	ClockSM       = 1
	ClockMemory   = 2
	ClockVideo    = 3
)

// Clock is the frequency in MHz that a clock has now (nvmlDeviceGetClockInfo). GPUs without clients run slower.
func (d *Device) Clock(kind int) (int, error) {
	const call = "nvmlDeviceGetClockInfo"
	st, err := d.load(call)
	if err != nil {
		return 0, err
	}
	most, err := d.maxClock(call, kind)
	if err != nil || kind == ClockMemory || len(st.Clients) > 0 {
		return most, err
	}
	return most / 5, nil
}

// MaxClock is the greatest frequency in MHz that a clock may have (nvmlDeviceGetMaxClockInfo).
func (d *Device) MaxClock(kind int) (int, error) {
	const call = "nvmlDeviceGetMaxClockInfo"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	return d.maxClock(call, kind)
}

func (d *Device) maxClock(call string, kind int) (int, error) {
	switch kind {
	case ClockGraphics, ClockSM:
		return d.board.GraphicsMHz, nil
	case ClockMemory:
		return d.board.MemoryMHz, nil
	case ClockVideo:
		return d.board.GraphicsMHz * 9 / 10, nil
	default:
		return 0, fail(call, CodeInvalidArgument, "clock %d", kind)
	}
}

// pcieWidth is the number of lanes of every board.
const pcieWidth = 16

// PCIeGeneration is that of the link now (nvmlDeviceGetCurrPcieLinkGeneration).
func (d *Device) PCIeGeneration() (int, error) {
	return d.board.PCIeGeneration, d.node.enter("nvmlDeviceGetCurrPcieLinkGeneration", d.index)
}

// MaxPCIeGeneration is the greatest that board and slot can do (nvmlDeviceGetMaxPcieLinkGeneration).
func (d *Device) MaxPCIeGeneration() (int, error) {
	return d.board.PCIeGeneration, d.node.enter("nvmlDeviceGetMaxPcieLinkGeneration", d.index)
}

// PCIeWidth is the number of lanes in use (nvmlDeviceGetCurrPcieLinkWidth).
func (d *Device) PCIeWidth() (int, error) {
	return pcieWidth, d.node.enter("nvmlDeviceGetCurrPcieLinkWidth", d.index)
}

// MaxPCIeWidth is the number of lanes there are (nvmlDeviceGetMaxPcieLinkWidth).
func (d *Device) MaxPCIeWidth() (int, error) {
	return pcieWidth, d.node.enter("nvmlDeviceGetMaxPcieLinkWidth", d.index)
}

// VBIOS is the version of the board's BIOS (nvmlDeviceGetVbiosVersion).
func (d *Device) VBIOS() (string, error) {
	return d.board.VBIOS, d.node.enter("nvmlDeviceGetVbiosVersion", d.index)
}

// temperatureThresholds in °C by NVML_TEMPERATURE_THRESHOLD_*: shutdown, slowdown, memory's greatest, GPU's greatest.
var temperatureThresholds = []int{92, 89, 95, 85}

// TemperatureThreshold is one of the temperatures at which something happens (nvmlDeviceGetTemperatureThreshold).
func (d *Device) TemperatureThreshold(kind int) (int, error) {
	const call = "nvmlDeviceGetTemperatureThreshold"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if kind < 0 || kind >= len(temperatureThresholds) {
		return 0, fail(call, CodeNotSupported, "temperature threshold %d", kind)
	}
	return temperatureThresholds[kind], nil
}

// PowerLimits are the least and the greatest power limit that can be set, in milliwatts
// (nvmlDeviceGetPowerManagementLimitConstraints).
func (d *Device) PowerLimits() (least, most int, err error) {
	limit := d.board.PowerLimitWatts * 1000
	return limit / 2, limit, d.node.enter("nvmlDeviceGetPowerManagementLimitConstraints", d.index)
}

// ProcessName is the name of a process that uses a GPU, or of any that runs (nvmlSystemGetProcessName).
func (n *Node) ProcessName(pid int) (string, error) {
	const call = "nvmlSystemGetProcessName"
	if err := n.enter(call, -1); err != nil {
		return "", err
	}
	for i := range n.gpus {
		st, err := n.gpus[i].load()
		if err != nil {
			return "", fail(call, CodeUnknown, "%v", err)
		}
		for _, c := range st.Clients {
			if c.PID == pid {
				return c.Name, nil
			}
		}
	}
	command, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return "", fail(call, CodeNotFound, "no process %d", pid)
	}
	name, _, _ := strings.Cut(string(command), "\x00")
	return name, nil
}

// GPMSupported reports whether the GPU has performance counters for GPM: Hopper and later (nvmlGpmQueryDeviceSupport).
func (d *Device) GPMSupported() (bool, error) {
	const hopper = 9
	return d.board.Architecture >= hopper, d.node.enter("nvmlGpmQueryDeviceSupport", d.index)
}

// GPMSample is what the simulation counts of a GPU or, if gi is not negative, of a GPU instance: the percentage of time
// that it is busy (nvmlGpmSampleGet, nvmlGpmMigSampleGet).
func (d *Device) GPMSample(gi int) (busy int, err error) {
	call := "nvmlGpmSampleGet"
	if gi >= 0 {
		call = "nvmlGpmMigSampleGet"
	}
	st, err := d.load(call)
	if err != nil {
		return 0, err
	}
	const hopper = 9
	if d.board.Architecture < hopper {
		return 0, fail(call, CodeNotSupported, "%s has no GPM", d.board.Product)
	}
	if gi >= 0 && st.findInstance(gi) == nil {
		return 0, fail(call, CodeInvalidArgument, "GPU %d has no GPU instance %d", d.index, gi)
	}
	for _, c := range st.Clients {
		if gi < 0 || c.GPUInstance == gi {
			return 97, nil
		}
	}
	return 0, nil
}
