// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"
)

// CPURange is an inclusive range of CPU numbers.
type CPURange struct{ First, Last int }

// numaNodes is the number of NUMA nodes of all sockets.
func (s *spec) numaNodes() int {
	last := 0
	for i := range s.GPUs {
		last = max(last, s.GPUs[i].NUMA)
	}
	for i := range s.NVSwitches {
		last = max(last, s.NVSwitches[i].NUMA)
	}
	for i := range s.Others {
		last = max(last, s.Others[i].NUMA)
	}
	perSocket := max(s.NUMAPerSocket, 1)
	return (last/perSocket + 1) * perSocket
}

// cpusOf are the CPUs of a NUMA node, or all if it is negative: the first threads of its cores, then the second ones, which Linux
// numbers after the first threads of all nodes.
func (s *spec) cpusOf(numa int) []CPURange {
	threads, cores := max(s.ThreadsPerCore, 1), s.numaNodes()*s.CPUsPerNUMA
	if numa < 0 {
		return []CPURange{{0, threads*cores - 1}}
	}
	var ranges []CPURange
	for thread := range threads {
		first := thread*cores + numa*s.CPUsPerNUMA
		ranges = append(ranges, CPURange{first, first + s.CPUsPerNUMA - 1})
	}
	return ranges
}

// cpuList formats ranges like Linux: "0-55,112-167".
func cpuList(ranges []CPURange) string {
	words := make([]string, 0, len(ranges))
	for _, r := range ranges {
		words = append(words, fmt.Sprintf("%d-%d", r.First, r.Last))
	}
	return strings.Join(words, ",")
}

// Distances between NUMA nodes as firmware writes them (ACPI SLIT): to itself, within a socket, and to another socket.
const (
	distanceSelf   = 10
	distanceSocket = 12
	distanceFar    = 32
)

// addNUMA adds the NUMA nodes, and the CPU files that show the socket of a node.
func (s *spec) addNUMA(files map[string]treeFile) {
	perSocket := max(s.NUMAPerSocket, 1)
	for node := range s.numaNodes() {
		dir := fmt.Sprintf("devices/system/node/node%d", node)
		cpus := s.cpusOf(node)
		var row []string
		for other := range s.numaNodes() {
			distance := distanceFar
			switch {
			case other == node:
				distance = distanceSelf
			case other/perSocket == node/perSocket:
				distance = distanceSocket
			}
			row = append(row, fmt.Sprint(distance))
		}
		addFile(files, dir+"/distance", strings.Join(row, " ")+"\n")
		addFile(files, dir+"/cpulist", cpuList(cpus)+"\n")
		for _, r := range cpus {
			for cpu := r.First; cpu <= r.Last; cpu++ {
				addFile(files, fmt.Sprintf("devices/system/cpu/cpu%d/topology/physical_package_id", cpu), fmt.Sprintf("%d\n", node/perSocket))
			}
		}
	}
}
