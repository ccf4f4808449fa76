// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// readSysfs reads where the GPU sits. Virtual machines often hide it; then it is left out.
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

// deviceLink is the link of a PCI function to its folder, which lies in those of the bridges above it.
func deviceLink(pci gpu.PCIAddress) string { return path.Join("bus/pci/devices", pci.String()) }

// pciePath is the way from the root complex to a PCI function, or nil. What is no PCI function, such as the bus of a
// virtual machine above the root complex, is left out.
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
	way := []string{parts[root]}
	for _, p := range parts[root+1:] {
		if _, err := gpu.ParsePCIAddress(p); err == nil {
			way = append(way, p)
		}
	}
	return way
}

// isPCIRoot tells a root complex, "pci<domain>:<bus>", by its name.
func isPCIRoot(name string) bool {
	bus, found := strings.CutPrefix(name, "pci")
	if !found {
		return false
	}
	_, err := gpu.ParsePCIAddress(bus + ":00.0")
	return err == nil
}

// maxCPUList bounds what is read of a list of CPUs, in bytes: more than sysfs has on one page.
const maxCPUList = 4096

// localCPUs is the list of the CPUs near a PCI function, or nothing.
func localCPUs(sysfs fs.FS, pci gpu.PCIAddress) string {
	file, err := sysfs.Open(deviceLink(pci) + "/local_cpulist")
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxCPUList))
	list := strings.TrimSpace(string(data))
	if err != nil || len(data) == maxCPUList || strings.Trim(list, "0123456789,-") != "" {
		return ""
	}
	return list
}
