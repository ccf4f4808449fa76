// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSysfs_LocalCPUs(t *testing.T) {
	tests := []struct {
		model string
		index int
		want  string
	}{
		{"hgx-h100", 0, "0-55,112-167"},
		{"hgx-h100", 7, "56-111,168-223"},
		{"dgx-a100", 0, "48-63,176-191"},
		{"gb200-nvl72", 3, "72-143"}, // the cores of Grace have one thread
		{"t4", 0, "0-7"},             // no NUMA node: all CPUs
	}
	for _, tt := range tests {
		n := testNode(t, tt.model)
		got, err := fs.ReadFile(n.Sysfs(), "bus/pci/devices/"+n.spec.GPUs[tt.index].bdf()+"/local_cpulist")
		if diff := cmp.Diff(tt.want+"\n", string(got)); diff != "" || err != nil {
			t.Errorf("GPU %d of %s, %v (-want +got):\n%s", tt.index, tt.model, err, diff)
		}
		cpus, err := n.Device(tt.index).Links().CPUAffinity()
		if err != nil || cpuList(cpus) != tt.want {
			t.Errorf("GPU %d of %s: NVML says %v, %v, sysfs %s", tt.index, tt.model, cpus, err, tt.want)
		}
	}
}

func TestSysfs_NUMANodesOfSocket(t *testing.T) {
	sys := testNode(t, "dgx-a100").Sysfs()
	for name, want := range map[string]string{
		"devices/system/node/node3/distance":                         "12 12 12 10 32 32 32 32",
		"devices/system/node/node3/cpulist":                          "48-63,176-191",
		"devices/system/node/node7/distance":                         "32 32 32 32 12 12 12 10",
		"devices/system/cpu/cpu48/topology/physical_package_id":      "0",
		"devices/system/cpu/cpu112/topology/physical_package_id":     "1",
		"bus/pci/devices/0000:07:00.0/numa_node":                     "3",
		"devices/pci0000:00/0000:00:01.1/0000:01:00.0/numa_node":     "3",
		"devices/pci0000:00/0000:00:01.1/0000:01:00.0/local_cpulist": "48-63,176-191",
	} {
		got, err := fs.ReadFile(sys, name)
		if strings.TrimSpace(string(got)) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}
