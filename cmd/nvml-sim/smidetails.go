// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// smiNode is an element of nvidia-smi -q: a value, or a group of them. The XML names are those of nvsmi_device_v12.dtd.
type smiNode struct {
	tag, title string
	value      string
	children   []smiNode
	attribute  string // id
}

// details is nvidia-smi -q, as text or XML, with part of the real output.
func (s *smi) details(devices []*sim.Device, asXML bool) error {
	driver, cuda, err := s.versions()
	if err != nil {
		return err
	}
	nodes := []smiNode{
		{tag: "driver_version", title: "Driver Version", value: driver},
		{tag: "cuda_version", title: "CUDA Version", value: cuda},
		{tag: "attached_gpus", title: "Attached GPUs", value: strconv.Itoa(len(devices))},
	}
	st, err := s.node.Status()
	if err != nil {
		return err
	}
	for _, d := range devices {
		g, err := s.gpuDetails(d, &st.GPUs[d.Number()])
		if err != nil {
			return err
		}
		nodes = append(nodes, g)
	}
	if asXML {
		fmt.Fprint(stdout, xml.Header+"<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n")
		for i := range nodes {
			nodes[i].writeXML(1)
		}
		fmt.Fprintln(stdout, "</nvidia_smi_log>")
		return nil
	}
	fmt.Fprint(stdout, "\n==============NVSMI LOG==============\n\n")
	for i := range nodes {
		nodes[i].writeText(0)
	}
	return nil
}

// leaf is a field as an element.
func (s *smi) leaf(d *sim.Device, tag, title, field string) (smiNode, error) {
	f := findField(field)
	v, missing, err := f.value(s, d)
	if f.unit != "" && !missing {
		v += " " + f.unit
	}
	return smiNode{tag: tag, title: title, value: v}, err
}

// smiDetails are the groups of a GPU with their leaves: tag, title, field.
var smiDetails = []struct {
	tag, title string
	leaves     [][3]string
}{
	{"", "", [][3]string{
		{"product_name", "Product Name", "name"}, {"persistence_mode", "Persistence Mode", "persistence_mode"},
		{"addressing_mode", "Addressing Mode", "addressing_mode"},
	}},
	{"mig_mode", "MIG Mode", [][3]string{{"current_mig", "Current", "mig.mode.current"}, {"pending_mig", "Pending", "mig.mode.pending"}}},
	{"", "", [][3]string{{"serial", "Serial Number", "serial"}, {"uuid", "GPU UUID", "uuid"},
		{"vbios_version", "VBIOS Version", "vbios_version"}}},
	{"pci", "PCI", [][3]string{
		{"pci_bus", "Bus", "pci.bus"}, {"pci_device", "Device", "pci.device"}, {"pci_domain", "Domain", "pci.domain"},
		{"pci_device_id", "Device Id", "pci.device_id"}, {"pci_bus_id", "Bus Id", "pci.bus_id"},
		{"pci_sub_system_id", "Sub System Id", "pci.sub_device_id"},
	}},
	{"fb_memory_usage", "FB Memory Usage", [][3]string{
		{"total", "Total", "memory.total"}, {"reserved", "Reserved", "memory.reserved"}, {"used", "Used", "memory.used"},
		{"free", "Free", "memory.free"},
	}},
	{"", "", [][3]string{{"compute_mode", "Compute Mode", "compute_mode"}}},
	{"utilization", "Utilization", [][3]string{{"gpu_util", "GPU", "utilization.gpu"}, {"memory_util", "Memory", "utilization.memory"}}},
	{"ecc_mode", "ECC Mode", [][3]string{{"current_ecc", "Current", "ecc.mode.current"}, {"pending_ecc", "Pending", "ecc.mode.pending"}}},
	{"temperature", "Temperature", [][3]string{{"gpu_temp", "GPU Current Temp", "temperature.gpu"}}},
	{"gpu_power_readings", "GPU Power Readings", [][3]string{
		{"instant_power_draw", "Instantaneous Power Draw", "power.draw"}, {"current_power_limit", "Current Power Limit", "power.limit"},
		{"default_power_limit", "Default Power Limit", "power.default_limit"}, {"min_power_limit", "Min Power Limit", "power.min_limit"},
		{"max_power_limit", "Max Power Limit", "power.max_limit"},
	}},
	{"clocks", "Clocks", [][3]string{
		{"graphics_clock", "Graphics", "clocks.gr"}, {"sm_clock", "SM", "clocks.sm"}, {"mem_clock", "Memory", "clocks.mem"},
		{"video_clock", "Video", "clocks.video"},
	}},
	{"max_clocks", "Max Clocks", [][3]string{
		{"graphics_clock", "Graphics", "clocks.max.gr"}, {"sm_clock", "SM", "clocks.max.sm"}, {"mem_clock", "Memory", "clocks.max.mem"},
	}},
}

// gpuDetails is all that -q says of a GPU.
func (s *smi) gpuDetails(d *sim.Device, g *sim.GPUStatus) (smiNode, error) {
	id, err := d.PCIBusID()
	if err != nil {
		return smiNode{}, err
	}
	gpu := smiNode{tag: "gpu", title: "GPU " + id, attribute: id}
	for _, group := range smiDetails {
		var leaves []smiNode
		for _, l := range group.leaves {
			leaf, err := s.leaf(d, l[0], l[1], l[2])
			if err != nil {
				return smiNode{}, err
			}
			leaves = append(leaves, leaf)
		}
		if group.tag == "" {
			gpu.children = append(gpu.children, leaves...)
		} else {
			gpu.children = append(gpu.children, smiNode{tag: group.tag, title: group.title, children: leaves})
		}
		if group.tag == "mig_mode" {
			gpu.children = append(gpu.children, migDetails(g))
		}
	}
	minor := smiNode{tag: "minor_number", title: "Minor Number", value: strconv.Itoa(g.Minor)}
	processes := smiNode{tag: "processes", title: "Processes", value: "None"}
	for _, c := range g.Clients {
		processes.children = append(processes.children,
			smiNode{tag: "process_info", title: "Process ID " + strconv.Itoa(c.PID), children: []smiNode{
				{tag: "pid", title: "Process ID", value: strconv.Itoa(c.PID)}, {tag: "type", title: "Type", value: "C"},
				{tag: "process_name", title: "Name", value: c.Name},
				{tag: "used_memory", title: "Used GPU Memory", value: strconv.FormatUint(c.Memory>>20, 10) + " MiB"},
			}})
	}
	gpu.children = append(gpu.children, minor, processes)
	return gpu, nil
}

// migDetails are the partitions of a GPU.
func migDetails(g *sim.GPUStatus) smiNode {
	devices := smiNode{tag: "mig_devices", title: "MIG Devices", value: "None"}
	index := 0
	for _, i := range g.Instances {
		for _, c := range i.Compute {
			devices.children = append(devices.children, smiNode{tag: "mig_device", title: "MIG Device " + strconv.Itoa(index), children: []smiNode{
				{tag: "index", title: "Index", value: strconv.Itoa(index)},
				{tag: "gpu_instance_id", title: "GPU Instance ID", value: strconv.Itoa(i.ID)},
				{tag: "compute_instance_id", title: "Compute Instance ID", value: strconv.Itoa(c.ID)}, {tag: "uuid", title: "UUID", value: c.UUID},
			}})
			index++
		}
	}
	return devices
}

func (n *smiNode) writeXML(depth int) {
	indent := strings.Repeat("\t", depth)
	attribute := ""
	if n.attribute != "" {
		attribute = ` id="` + escape(n.attribute) + `"`
	}
	if len(n.children) == 0 {
		fmt.Fprintf(stdout, "%s<%s%s>%s</%s>\n", indent, n.tag, attribute, escape(n.value), n.tag)
		return
	}
	fmt.Fprintf(stdout, "%s<%s%s>\n", indent, n.tag, attribute)
	for i := range n.children {
		n.children[i].writeXML(depth + 1)
	}
	fmt.Fprintf(stdout, "%s</%s>\n", indent, n.tag)
}

// escape makes text fit for XML.
func escape(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		return "" // a builder takes everything
	}
	return b.String()
}

func (n *smiNode) writeText(depth int) {
	const column = 50
	indent := strings.Repeat(" ", 4*depth)
	if n.value != "" && len(n.children) == 0 {
		fmt.Fprintf(stdout, "%-*s: %s\n", column, indent+n.title, n.value)
		return
	}
	fmt.Fprintln(stdout, indent+n.title)
	for i := range n.children {
		n.children[i].writeText(depth + 1)
	}
}
