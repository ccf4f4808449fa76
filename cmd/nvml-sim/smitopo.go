// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// topologyWords are nvidia-smi's terms for connections between two GPUs without NVLink.
var topologyWords = map[int]string{
	sim.TopologyInternal: "X", sim.TopologySingle: "PIX", sim.TopologyMultiple: "PXB", sim.TopologyHostBridge: "PHB",
	sim.TopologyNode: "NODE", sim.TopologySystem: "SYS",
}

// topo is nvidia-smi topo -m, without network adapters.
func (s *smi) topo(args []string) error {
	var id string
	var matrix bool
	f := smiFlags(&id)
	f.BoolVar(&matrix, "m", false, "")
	f.BoolVar(&matrix, "matrix", false, "")
	if err := smiParse(f, args); err != nil {
		return err
	}
	if !matrix {
		return usagef("topo knows -m only\n%s", smiUsage)
	}
	devices, err := s.devices(id)
	if err != nil {
		return err
	}
	head := []string{""}
	for _, d := range devices {
		head = append(head, fmt.Sprintf("GPU%d", d.Number()))
	}
	fmt.Fprintln(stdout, strings.Join(append(head, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"), "\t"))
	for _, d := range devices {
		row := []string{fmt.Sprintf("GPU%d", d.Number())}
		for _, other := range devices {
			word, err := joined(d, other)
			if err != nil {
				return err
			}
			row = append(row, word)
		}
		fmt.Fprintln(stdout, strings.Join(append(row, affinity(d)...), "\t"))
	}
	fmt.Fprint(stdout, topoLegend)
	return nil
}

// joined is the term for the connection between two GPUs.
func joined(d, other *sim.Device) (string, error) {
	if d == other {
		return " X ", nil
	}
	links, err := linksBetween(d, other)
	if err != nil {
		return "", err
	}
	if links > 0 {
		return fmt.Sprintf("NV%d", links), nil
	}
	level, err := d.Links().TopologyCommonAncestor(other)
	return topologyWords[level], err
}

// linksBetween counts the NVLinks from a GPU to another, or to the switches that join them.
func linksBetween(d, other *sim.Device) (int, error) {
	nv := d.Board().NVLink
	if nv == nil {
		return 0, nil
	}
	address, err := other.PCIBusID()
	if err != nil {
		return 0, err
	}
	count := 0
	for link := range nv.Links {
		if up, err := d.Links().NVLinkState(link); err != nil || !up {
			continue
		}
		kind, err := d.Links().NVLinkRemoteDeviceType(link)
		if err != nil {
			continue
		}
		remote, err := d.Links().NVLinkRemotePCI(link)
		if kind == sim.LinkToSwitch || err == nil && remote.BusID == address {
			count++
		}
	}
	return count, nil
}

// affinity words the CPUs and the NUMA node of a GPU.
func affinity(d *sim.Device) []string {
	var ranges []string
	cpus, err := d.Links().CPUAffinity()
	if err != nil {
		return []string{"N/A", "N/A", "N/A"}
	}
	for _, r := range cpus {
		ranges = append(ranges, fmt.Sprintf("%d-%d", r.First, r.Last))
	}
	node := "N/A"
	if n, err := d.Links().MemoryAffinity(); err == nil {
		node = fmt.Sprint(n)
	}
	return []string{strings.Join(ranges, ","), node, "N/A"}
}

const topoLegend = `
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
`
