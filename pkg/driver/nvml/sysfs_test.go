// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// sysfsOf is a sysfs in which a GPU's link has a target, with these files.
func sysfsOf(target string, files map[string]string) fs.ReadLinkFS {
	const address = "0000:18:00.0"
	tree := fstest.MapFS{"bus/pci/devices/" + address: {Data: []byte("../../../" + target), Mode: fs.ModeSymlink}}
	for name, data := range files {
		tree[target+"/"+name] = &fstest.MapFile{Data: []byte(data + "\n")}
	}
	return tree
}

// sitsAt is what discovery finds of where a GPU sits.
func sitsAt(t *testing.T, sysfs fs.ReadLinkFS) gpu.GPU {
	t.Helper()
	d, err := discover(t.Context(), &fakeLibrary{devices: []*fakeDevice{h100(0)}}, sysfs)
	must(t, err)
	g := d.node.GPUs[0]
	return gpu.GPU{NUMANode: g.NUMANode, NearNUMANodes: g.NearNUMANodes, PCIePath: g.PCIePath, CPUAffinity: g.CPUAffinity}
}

func TestReadSysfs(t *testing.T) {
	const plain = "devices/pci0000:15/0000:15:01.0/0000:18:00.0"
	pcie := []string{"pci0000:15", "0000:15:01.0", "0000:18:00.0"}
	tests := map[string]struct {
		target string
		files  map[string]string
		want   gpu.GPU
	}{
		"nothing":      {"devices/pci0000:15/0000:18:00.0", nil, gpu.GPU{PCIePath: []string{"pci0000:15", "0000:18:00.0"}}},
		"node 0":       {plain, map[string]string{"numa_node": "0"}, gpu.GPU{PCIePath: pcie, NUMANode: ptr(0)}},
		"node 1":       {plain, map[string]string{"numa_node": "1"}, gpu.GPU{PCIePath: pcie, NUMANode: ptr(1)}},
		"no node":      {plain, map[string]string{"numa_node": "-1"}, gpu.GPU{PCIePath: pcie}},
		"an odd node":  {plain, map[string]string{"numa_node": "x"}, gpu.GPU{PCIePath: pcie}},
		"CPUs":         {plain, map[string]string{"local_cpulist": "0-55,112-167"}, gpu.GPU{PCIePath: pcie, CPUAffinity: "0-55,112-167"}},
		"no CPUs":      {plain, map[string]string{"local_cpulist": ""}, gpu.GPU{PCIePath: pcie}},
		"odd CPUs":     {plain, map[string]string{"local_cpulist": "all of them"}, gpu.GPU{PCIePath: pcie}},
		"endless CPUs": {plain, map[string]string{"local_cpulist": strings.Repeat("1,", 1<<20)}, gpu.GPU{PCIePath: pcie}},
		"behind switches": {
			"devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:18:00.0", nil,
			gpu.GPU{PCIePath: []string{"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:03.0", "0000:18:00.0"}},
		},
		"in a virtual machine": {
			"devices/LNXSYSTM:00/VMBUS:00/47505500-0001/pci0000:15/0000:18:00.0", nil,
			gpu.GPU{PCIePath: []string{"pci0000:15", "0000:18:00.0"}},
		},
		"with something between": {"devices/pci0000:15/0000:15:01.0/odd/0000:18:00.0", nil, gpu.GPU{PCIePath: pcie}},
		"under no root complex":  {"devices/virtual/0000:18:00.0", map[string]string{"numa_node": "0"}, gpu.GPU{NUMANode: ptr(0)}},
		"another directory":      {"devices/pci0000:15/0000:19:00.0", nil, gpu.GPU{}},
		"a root that is none":    {"devices/pci-e/0000:18:00.0", nil, gpu.GPU{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			equal(t, "where the GPU sits", tt.want, sitsAt(t, sysfsOf(tt.target, tt.files)))
		})
	}
	equal(t, "without sysfs", gpu.GPU{}, sitsAt(t, noSysfs()))
}

func TestReadSysfs_NoLink(t *testing.T) {
	tree := fstest.MapFS{"bus/pci/devices/0000:18:00.0/local_cpulist": {Data: []byte("0-3\n")}}
	equal(t, "where the GPU sits", gpu.GPU{CPUAffinity: "0-3"}, sitsAt(t, tree))
}
