// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// readSysfs reads the GPU's position in the PCI tree and its NUMA node. It skips what virtual machines hide.
func readSysfs(g *gpu.GPU, sysfs fs.ReadLinkFS) {
	g.PCIePath = pciePath(sysfs, g.PCI)
	g.CPUAffinity = localCPUs(sysfs, g.PCI)
	numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCI.String(), deviceattribute.ListAttribute, deviceattribute.WithFS(sysfs))
	if err != nil || len(numa.Value.IntValues) == 0 {
		return
	}
	node := int(numa.Value.IntValues[0])
	g.NUMANode = &node
	for _, near := range numa.Value.IntValues[1:] {
		g.NearNUMANodes = append(g.NearNUMANodes, int(near))
	}
}

// deviceLink is the link to a PCI function's directory, which is nested in those of its upstream bridges.
func deviceLink(pci gpu.PCIAddress) string { return path.Join(pciDevices, pci.String()) }

// pciePath is the path from the root complex to a PCI function, or nil. It skips components that are not PCI functions,
// such as a virtual machine's bus above the root complex.
func pciePath(sysfs fs.ReadLinkFS, pci gpu.PCIAddress) []string {
	target, err := sysfs.ReadLink(deviceLink(pci))
	if err != nil {
		return nil
	}
	parts := strings.Split(path.Join(path.Dir(deviceLink(pci)), target), "/")
	root := slices.IndexFunc(parts, isPCIRoot)
	if root < 0 || parts[len(parts)-1] != pci.String() {
		return nil
	}
	nodes := []string{parts[root]}
	for _, p := range parts[root+1:] {
		if _, err := gpu.ParsePCIAddress(p); err == nil {
			nodes = append(nodes, p)
		}
	}
	return nodes
}

// isPCIRoot reports whether a name is that of a root complex, "pci<domain>:<bus>".
func isPCIRoot(name string) bool {
	bus, found := strings.CutPrefix(name, "pci")
	if !found {
		return false
	}
	_, err := gpu.ParsePCIAddress(bus + ":00.0")
	return err == nil
}

// localCPUs is the list of the CPUs near a PCI function, or empty.
func localCPUs(sysfs fs.FS, pci gpu.PCIAddress) string {
	list := readPCIFile(sysfs, pci.String(), "local_cpulist")
	if strings.Trim(list, "0123456789,-") != "" {
		return ""
	}
	return list
}
