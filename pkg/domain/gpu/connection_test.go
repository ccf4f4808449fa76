// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// matrix is a node's connections, a line for each GPU.
func matrix(gpus []gpu.GPU) []string {
	var lines []string
	for i := range gpus {
		var line []string
		for j := range gpus {
			line = append(line, gpu.Connection(&gpus[i], &gpus[j]).String())
		}
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}

// without makes copies of GPUs that lack something.
func without(gpus []gpu.GPU, take func(g *gpu.GPU)) []gpu.GPU {
	var less []gpu.GPU
	for _, g := range gpus {
		take(&g)
		less = append(less, g)
	}
	return less
}

// What GPUs of a model are told by their way over PCIe; package inspect has the models as they are.
func TestConnect_EveryPair(t *testing.T) {
	noLinks := func(g *gpu.GPU) { g.NVLinks = nil }
	tests := map[string]struct {
		model string
		take  func(g *gpu.GPU)
		want  []string
	}{
		"a root complex for each GPU": {"hgx-h100", noLinks, []string{
			"X NODE NODE NODE SYS SYS SYS SYS",
			"NODE X NODE NODE SYS SYS SYS SYS",
			"NODE NODE X NODE SYS SYS SYS SYS",
			"NODE NODE NODE X SYS SYS SYS SYS",
			"SYS SYS SYS SYS X NODE NODE NODE",
			"SYS SYS SYS SYS NODE X NODE NODE",
			"SYS SYS SYS SYS NODE NODE X NODE",
			"SYS SYS SYS SYS NODE NODE NODE X",
		}},
		"switches behind switches": {"dgx-a100", noLinks, []string{
			"X PXB SYS SYS SYS SYS SYS SYS",
			"PXB X SYS SYS SYS SYS SYS SYS",
			"SYS SYS X PXB SYS SYS SYS SYS",
			"SYS SYS PXB X SYS SYS SYS SYS",
			"SYS SYS SYS SYS X PXB SYS SYS",
			"SYS SYS SYS SYS PXB X SYS SYS",
			"SYS SYS SYS SYS SYS SYS X PXB",
			"SYS SYS SYS SYS SYS SYS PXB X",
		}},
		"only the NUMA node is reported": {"l40s", func(g *gpu.GPU) { g.PCIePath = nil }, []string{
			"X ? SYS SYS",
			"? X SYS SYS",
			"SYS SYS X ?",
			"SYS SYS ? X",
		}},
		"nothing is reported": {"a30", func(g *gpu.GPU) { g.PCIePath, g.NUMANode = nil, nil }, []string{"X ?", "? X"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, matrix(without(modelNode(t, tt.model).GPUs, tt.take))); diff != "" {
				t.Errorf("connections (-want +got):\n%s", diff)
			}
		})
	}
}

// at is a GPU of a NUMA node, by its way from the root complex.
func at(numa int, path string) gpu.GPU {
	g := gpu.GPU{PCIePath: strings.Split(path, "/"), NUMANode: &numa}
	g.PCI, _ = gpu.ParsePCIAddress(g.PCIePath[len(g.PCIePath)-1])
	return g
}

// linked is a GPU with so many links to each of others.
func linked(address string, links int, peers ...string) gpu.GPU {
	g := at(0, "pci0000:"+address[5:7]+"/"+address)
	g.NVLinks = &gpu.NVLinks{Active: links * len(peers)}
	for _, p := range peers {
		pci, _ := gpu.ParsePCIAddress(p)
		g.NVLinks.Peers = append(g.NVLinks.Peers, gpu.NVLinkPeer{PCI: pci, Links: links})
	}
	return g
}

func TestConnect_UnusualPairs(t *testing.T) {
	switched := func(address string, active int, fabric *gpu.Fabric) gpu.GPU {
		g := linked(address, 0)
		g.NVLinks.Active, g.NVLinks.Switched, g.Fabric = active, true, fabric
		return g
	}
	const one, two, three = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
	tests := map[string]struct {
		a, b gpu.GPU
		want string
	}{
		"the same GPU":                    {at(0, "pci0000:00/0000:01:00.0"), at(0, "pci0000:00/0000:01:00.0"), "X"},
		"two ports of one root complex":   {at(0, "pci0000:00/0000:00:01.0/0000:01:00.0"), at(0, "pci0000:00/0000:00:02.0/0000:02:00.0"), "PHB"},
		"a virtual machine's flat bus":    {at(0, "pci0000:00/0000:00:05.0"), at(0, "pci0000:00/0000:00:06.0"), "PHB"},
		"one bridge":                      {at(0, "pci0000:00/0000:00:01.0/0000:01:00.0"), at(0, "pci0000:00/0000:00:01.0/0000:01:01.0"), "PIX"},
		"a switch":                        {at(0, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"), at(0, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0"), "PIX"},
		"a switch, and one behind it":     {at(0, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"), at(0, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0"), "PXB"},
		"unknown NUMA nodes":              {gpu.GPU{PCI: gpu.PCIAddress{Bus: 1}, PCIePath: []string{"pci0000:00", one}}, gpu.GPU{PCIePath: []string{"pci0000:40", two}}, "?"},
		"links to another GPU":            {linked(one, 4, three), linked(two, 4, three), "NODE"},
		"a mesh":                          {linked(one, 4, two, three), linked(two, 4, one, three), "NV4"},
		"fewer links from the far end":    {linked(one, 4, two), linked(two, 3, one), "NV3"},
		"the far end reports nothing":     {linked(one, 4, two), linked(two, 4, three), "NV4"},
		"the far end has no links":        {linked(one, 4, two), linked(two, 0), "NODE"},
		"a domain, and a GPU outside it":  {switched(one, 18, &gpu.Fabric{ClusterUUID: "c", CliqueID: 1}), switched(two, 18, nil), "NODE"},
		"a switch and a direct link":      {switched(one, 18, nil), linked(two, 4, three), "NODE"},
		"links of a switch that are down": {switched(one, 18, nil), switched(two, 17, nil), "NV17"},
		"no link of a switch is up":       {switched(one, 18, nil), switched(two, 0, nil), "NODE"},
		"one domain of several nodes":     {switched(one, 18, &gpu.Fabric{ClusterUUID: "c", CliqueID: 1}), switched(two, 18, &gpu.Fabric{ClusterUUID: "c", CliqueID: 1}), "NV18"},
		"two cliques":                     {switched(one, 18, &gpu.Fabric{ClusterUUID: "c", CliqueID: 1}), switched(two, 18, &gpu.Fabric{ClusterUUID: "c", CliqueID: 2}), "NODE"},
		"nothing known":                   {gpu.GPU{PCI: gpu.PCIAddress{Bus: 1}}, gpu.GPU{PCI: gpu.PCIAddress{Bus: 2}}, "?"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			there, back := gpu.Connection(&tt.a, &tt.b).String(), gpu.Connection(&tt.b, &tt.a).String()
			if there != tt.want || back != tt.want {
				t.Errorf("got %s there and %s back, want %s", there, back, tt.want)
			}
		})
	}
}
