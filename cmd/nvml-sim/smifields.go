// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// smiField is a field of --query-gpu ("nvidia-smi --help-query-gpu").
type smiField struct {
	names []string // the first is the one that is shown
	unit  string
	read  func(s *smi, d *sim.Device) (string, error)
}

// smiFields are the fields, in the order of the help.
var smiFields = []smiField{
	{[]string{"driver_version"}, "", func(s *smi, _ *sim.Device) (string, error) { return s.node.SystemDriverVersion() }},
	{[]string{"count"}, "", func(s *smi, _ *sim.Device) (string, error) { return decimal(s.node.DeviceCount()) }},
	{[]string{"name", "gpu_name"}, "", onGPUField((*sim.Device).Name)},
	{[]string{"serial", "gpu_serial"}, "", onGPUField((*sim.Device).Serial)},
	{[]string{"uuid", "gpu_uuid"}, "", onGPUField((*sim.Device).UUID)},
	{[]string{"pci.bus_id", "gpu_bus_id"}, "", onGPUField((*sim.Device).PCIBusID)},
	{[]string{"pci.domain"}, "", pciField(func(i sim.PCIInfo) string { return fmt.Sprintf("0x%04X", i.Address.Domain) })},
	{[]string{"pci.bus"}, "", pciField(func(i sim.PCIInfo) string { return fmt.Sprintf("0x%02X", i.Address.Bus) })},
	{[]string{"pci.device"}, "", pciField(func(i sim.PCIInfo) string { return fmt.Sprintf("0x%02X", i.Address.Device) })},
	{[]string{"pci.device_id"}, "", pciField(func(i sim.PCIInfo) string { return fmt.Sprintf("0x%08X", i.DeviceID) })},
	{[]string{"pci.sub_device_id"}, "", pciField(func(i sim.PCIInfo) string { return fmt.Sprintf("0x%08X", i.SubsystemID) })},
	{[]string{"pcie.link.gen.current", "pcie.link.gen.gpucurrent"}, "", numberField(sim.Telemetry.PCIeGeneration)},
	{[]string{"pcie.link.gen.max"}, "", numberField(sim.Telemetry.MaxPCIeGeneration)},
	{[]string{"pcie.link.width.current"}, "", numberField(sim.Telemetry.PCIeWidth)},
	{[]string{"pcie.link.width.max"}, "", numberField(sim.Telemetry.MaxPCIeWidth)},
	{[]string{"index"}, "", func(_ *smi, d *sim.Device) (string, error) { return decimal(d.Index()) }},
	{[]string{"persistence_mode"}, "", func(_ *smi, d *sim.Device) (string, error) { return enabled(d.Modes().PersistenceMode()) }},
	{[]string{"vbios_version"}, "", onGPUField((*sim.Device).VBIOS)},
	{[]string{"addressing_mode"}, "", func(_ *smi, d *sim.Device) (string, error) {
		mode, err := d.Modes().AddressingMode()
		return []string{"None", "HMM", "ATS"}[mode], err
	}},
	{[]string{"memory.total"}, "MiB", memoryField(func(m sim.Memory) uint64 { return m.Total })},
	{[]string{"memory.reserved"}, "MiB", memoryField(func(m sim.Memory) uint64 { return m.Reserved })},
	{[]string{"memory.used"}, "MiB", memoryField(func(m sim.Memory) uint64 { return m.Used })},
	{[]string{"memory.free"}, "MiB", memoryField(func(m sim.Memory) uint64 { return m.Free })},
	{[]string{"compute_mode"}, "", func(_ *smi, d *sim.Device) (string, error) {
		mode, err := d.Modes().ComputeMode()
		words := map[int]string{sim.ModeDefault: "Default", sim.ModeProhibited: "Prohibited", sim.ModeExclusiveProcess: "Exclusive_Process"}
		return words[mode], err
	}},
	{[]string{"compute_cap"}, "", func(_ *smi, d *sim.Device) (string, error) {
		major, minor, err := d.CUDAComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), err
	}},
	{[]string{"utilization.gpu"}, "%", func(_ *smi, d *sim.Device) (string, error) {
		v, _, err := d.Telemetry().Utilization()
		return decimal(v, err)
	}},
	{[]string{"utilization.memory"}, "%",
		func(_ *smi, d *sim.Device) (string, error) {
			_, v, err := d.Telemetry().Utilization()
			return decimal(v, err)
		}},
	{[]string{"ecc.mode.current"}, "", func(_ *smi, d *sim.Device) (string, error) {
		on, _, err := d.Memory().ECCMode()
		return enabled(on, err)
	}},
	{[]string{"ecc.mode.pending"}, "", func(_ *smi, d *sim.Device) (string, error) {
		_, on, err := d.Memory().ECCMode()
		return enabled(on, err)
	}},
	{[]string{"temperature.gpu"}, "", numberField(sim.Telemetry.Temperature)},
	{[]string{"power.draw"}, "W", wattField(sim.Telemetry.Power)},
	{[]string{"power.limit"}, "W", wattField(sim.Telemetry.PowerLimit)},
	{[]string{"enforced.power.limit"}, "W", wattField(sim.Telemetry.PowerLimit)},
	{[]string{"power.default_limit"}, "W", wattField(sim.Telemetry.PowerLimit)},
	{[]string{"power.min_limit"}, "W", wattField(func(t sim.Telemetry) (int, error) { v, _, err := t.PowerLimits(); return v, err })},
	{[]string{"power.max_limit"}, "W", wattField(func(t sim.Telemetry) (int, error) { _, v, err := t.PowerLimits(); return v, err })},
	{[]string{"clocks.current.graphics", "clocks.gr"}, "MHz", clockField(sim.Telemetry.Clock, sim.ClockGraphics)},
	{[]string{"clocks.current.sm", "clocks.sm"}, "MHz", clockField(sim.Telemetry.Clock, sim.ClockSM)},
	{[]string{"clocks.current.memory", "clocks.mem"}, "MHz", clockField(sim.Telemetry.Clock, sim.ClockMemory)},
	{[]string{"clocks.current.video", "clocks.video"}, "MHz", clockField(sim.Telemetry.Clock, sim.ClockVideo)},
	{[]string{"clocks.max.graphics", "clocks.max.gr"}, "MHz", clockField(sim.Telemetry.MaxClock, sim.ClockGraphics)},
	{[]string{"clocks.max.sm"}, "MHz", clockField(sim.Telemetry.MaxClock, sim.ClockSM)},
	{[]string{"clocks.max.memory", "clocks.max.mem"}, "MHz", clockField(sim.Telemetry.MaxClock, sim.ClockMemory)},
	{[]string{"mig.mode.current"}, "", func(_ *smi, d *sim.Device) (string, error) {
		on, _, err := d.MIG().MIGMode()
		return enabled(on, err)
	}},
	{[]string{"mig.mode.pending"}, "", func(_ *smi, d *sim.Device) (string, error) {
		_, on, err := d.MIG().MIGMode()
		return enabled(on, err)
	}},
}

// findField returns the field of a name, or nil.
func findField(name string) *smiField {
	for i := range smiFields {
		for _, n := range smiFields[i].names {
			if n == name {
				return &smiFields[i]
			}
		}
	}
	return nil
}

func onGPUField(get func(*sim.Device) (string, error)) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) { return get(d) }
}

func numberField(get func(sim.Telemetry) (int, error)) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) { return decimal(get(d.Telemetry())) }
}

func clockField(get func(sim.Telemetry, int) (int, error), kind int) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) { return decimal(get(d.Telemetry(), kind)) }
}

func wattField(get func(sim.Telemetry) (int, error)) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) {
		v, err := get(d.Telemetry())
		return fmt.Sprintf("%.2f", float64(v)/1000), err
	}
}

func pciField(get func(sim.PCIInfo) string) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) {
		info, err := d.PCI()
		return get(info), err
	}
}

func memoryField(get func(sim.Memory) uint64) func(*smi, *sim.Device) (string, error) {
	return func(_ *smi, d *sim.Device) (string, error) {
		m, err := d.Memory().MemoryV2()
		return strconv.FormatUint(get(m)>>20, 10), err
	}
}

func decimal(v int, err error) (string, error) { return strconv.Itoa(v), err }

func enabled(on bool, err error) (string, error) {
	if on {
		return "Enabled", err
	}
	return "Disabled", err
}

// value reads a field; N/A if the board does not have it.
func (f *smiField) value(s *smi, d *sim.Device) (value string, missing bool, err error) {
	value, err = f.read(s, d)
	if errors.Is(err, gpu.ErrNotSupported) {
		return "N/A", true, nil
	}
	return value, false, err
}

// csvFormat is --format.
type csvFormat struct{ header, units bool }

func parseFormat(format string) (csvFormat, error) {
	c := csvFormat{header: true, units: true}
	kind := false
	for _, word := range strings.Split(format, ",") {
		switch strings.TrimSpace(word) {
		case "csv":
			kind = true
		case "noheader":
			c.header = false
		case "nounits":
			c.units = false
		default:
			return c, usagef("unknown format %q", format)
		}
	}
	if !kind {
		return c, usagef("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
	}
	return c, nil
}

// queryGPU is nvidia-smi --query-gpu.
func (s *smi) queryGPU(devices []*sim.Device, names, format string) error {
	csv, err := parseFormat(format)
	if err != nil {
		return err
	}
	var fields []*smiField
	var head []string
	for _, name := range strings.Split(names, ",") {
		name = strings.TrimSpace(name)
		f := findField(name)
		if f == nil {
			return usagef("Field %q is not a valid field to query.", name)
		}
		fields = append(fields, f)
		if f.unit != "" && f.unit != "%" {
			name += " [" + f.unit + "]"
		} else if f.unit != "" {
			name += " [%]"
		}
		head = append(head, name)
	}
	if csv.header {
		fmt.Fprintln(stdout, strings.Join(head, ", "))
	}
	for _, d := range devices {
		row := make([]string, 0, len(fields))
		for _, f := range fields {
			v, missing, err := f.value(s, d)
			switch {
			case err != nil:
				return err
			case missing:
				v = "[N/A]"
			case csv.units && f.unit != "":
				v += " " + f.unit
			}
			row = append(row, v)
		}
		fmt.Fprintln(stdout, strings.Join(row, ", "))
	}
	return nil
}

// queryApps is nvidia-smi --query-compute-apps.
func (s *smi) queryApps(devices []*sim.Device, names, format string) error {
	csv, err := parseFormat(format)
	if err != nil {
		return err
	}
	columns := strings.Split(names, ",")
	for i, name := range columns {
		columns[i] = strings.TrimSpace(name)
		switch columns[i] {
		case "pid", "name", "process_name", "gpu_uuid", "gpu_bus_id", "gpu_name", "used_memory", "used_gpu_memory":
		default:
			return usagef("Field %q is not a valid field to query.", columns[i])
		}
	}
	if csv.header {
		head := strings.Join(columns, ", ")
		fmt.Fprintln(stdout, strings.ReplaceAll(strings.ReplaceAll(head, "used_gpu_memory", "used_gpu_memory [MiB]"),
			"used_memory", "used_gpu_memory [MiB]"))
	}
	for _, d := range devices {
		clients, err := d.Memory().Processes()
		if err != nil {
			return err
		}
		for _, c := range clients {
			row := make([]string, 0, len(columns))
			for _, name := range columns {
				v, err := appValue(d, &c, name, csv.units)
				if err != nil {
					return err
				}
				row = append(row, v)
			}
			fmt.Fprintln(stdout, strings.Join(row, ", "))
		}
	}
	return nil
}

// appValue is a process's value in a column.
func appValue(d *sim.Device, c *sim.Client, column string, units bool) (string, error) {
	switch column {
	case "pid":
		return strconv.Itoa(c.PID), nil
	case "gpu_uuid":
		return d.UUID()
	case "gpu_bus_id":
		return d.PCIBusID()
	case "gpu_name":
		return d.Name()
	case "used_memory", "used_gpu_memory":
		v := strconv.FormatUint(c.Memory>>20, 10)
		if units {
			v += " MiB"
		}
		return v, nil
	default:
		return c.Name, nil
	}
}
