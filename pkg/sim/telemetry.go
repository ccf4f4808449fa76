// SPDX-License-Identifier: Apache-2.0

package sim

// NVML_CLOCK_*: the clocks of a GPU.
const (
	ClockGraphics = 0
	ClockSM       = 1
	ClockMemory   = 2
	ClockVideo    = 3
)

// Telemetry is a GPU's measurements.
type Telemetry struct{ *access }

// Clock is the current frequency of a clock in MHz (nvmlDeviceGetClockInfo). GPUs without clients run slower.
func (d Telemetry) Clock(kind int) (int, error) {
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

// MaxClock is the maximum frequency of a clock in MHz (nvmlDeviceGetMaxClockInfo).
func (d Telemetry) MaxClock(kind int) (int, error) {
	const call = "nvmlDeviceGetMaxClockInfo"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	return d.maxClock(call, kind)
}

func (d Telemetry) maxClock(call string, kind int) (int, error) {
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

// PCIeGeneration is the current generation of the link (nvmlDeviceGetCurrPcieLinkGeneration).
func (d Telemetry) PCIeGeneration() (int, error) {
	return d.board.PCIeGeneration, d.node.enter("nvmlDeviceGetCurrPcieLinkGeneration", d.index)
}

// MaxPCIeGeneration is the maximum of board and slot (nvmlDeviceGetMaxPcieLinkGeneration).
func (d Telemetry) MaxPCIeGeneration() (int, error) {
	return d.board.PCIeGeneration, d.node.enter("nvmlDeviceGetMaxPcieLinkGeneration", d.index)
}

// PCIeWidth is the number of lanes in use (nvmlDeviceGetCurrPcieLinkWidth).
func (d Telemetry) PCIeWidth() (int, error) {
	return pcieWidth, d.node.enter("nvmlDeviceGetCurrPcieLinkWidth", d.index)
}

// MaxPCIeWidth is the number of lanes (nvmlDeviceGetMaxPcieLinkWidth).
func (d Telemetry) MaxPCIeWidth() (int, error) {
	return pcieWidth, d.node.enter("nvmlDeviceGetMaxPcieLinkWidth", d.index)
}

// temperatureThresholds in °C by NVML_TEMPERATURE_THRESHOLD_*: shutdown, slowdown, maximum of the memory, maximum of the GPU.
var temperatureThresholds = []int{92, 89, 95, 85}

// TemperatureThreshold is a temperature threshold (nvmlDeviceGetTemperatureThreshold).
func (d Telemetry) TemperatureThreshold(kind int) (int, error) {
	const call = "nvmlDeviceGetTemperatureThreshold"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if kind < 0 || kind >= len(temperatureThresholds) {
		return 0, fail(call, CodeNotSupported, "temperature threshold %d", kind)
	}
	return temperatureThresholds[kind], nil
}

// PowerLimits are the minimum and maximum of the power limit, in milliwatts (nvmlDeviceGetPowerManagementLimitConstraints).
func (d Telemetry) PowerLimits() (least, most int, err error) {
	limit := d.board.PowerLimitWatts * 1000
	return limit / 2, limit, d.node.enter("nvmlDeviceGetPowerManagementLimitConstraints", d.index)
}

// Power is the board's power draw and limit, in milliwatts (nvmlDeviceGetPowerUsage).
func (d Telemetry) Power() (usage int, err error) {
	st, err := d.load("nvmlDeviceGetPowerUsage")
	if err != nil {
		return 0, err
	}
	usage = d.board.PowerLimitWatts * 100
	now := d.node.microseconds()
	if busy := st.workAt(d.board, now+1).Whole.SM - st.workAt(d.board, now).Whole.SM; busy > 0 {
		usage += int(float64(d.board.PowerLimitWatts) * 7.5 * busy)
	}
	return usage, nil
}

// PowerLimit in milliwatts (nvmlDeviceGetPowerManagementLimit).
func (d Telemetry) PowerLimit() (int, error) {
	return d.board.PowerLimitWatts * 1000, d.node.enter("nvmlDeviceGetPowerManagementLimit", d.index)
}

// Temperature of the GPU in °C (nvmlDeviceGetTemperature).
func (d Telemetry) Temperature() (int, error) {
	return 31 + d.index%5, d.node.enter("nvmlDeviceGetTemperature", d.index)
}
