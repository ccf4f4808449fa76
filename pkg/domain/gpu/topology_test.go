// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// switched, joined and direct are the links of GPUs: to switches, to those of a fabric, and to other GPUs by bus number.
func switched() *gpu.NVLinks { return &gpu.NVLinks{Active: 18, Switched: true} }

func direct(buses ...uint8) *gpu.NVLinks {
	links := &gpu.NVLinks{Active: 4 * len(buses)}
	for _, b := range buses {
		links.Peers = append(links.Peers, gpu.NVLinkPeer{PCI: gpu.PCIAddress{Bus: b}, Links: 4})
	}
	return links
}

func joined(uuid string, clique int) *gpu.Fabric {
	return &gpu.Fabric{ClusterUUID: uuid, CliqueID: clique}
}

// nodeOf gives GPUs bus numbers from 1.
func nodeOf(gpus ...gpu.GPU) []gpu.GPU {
	for i := range gpus {
		gpus[i].PCI = gpu.PCIAddress{Bus: uint8(i + 1)}
		gpus[i].Index = i
	}
	return gpus
}

func TestNVLinkGroups(t *testing.T) {
	tests := map[string]struct {
		gpus []gpu.GPU
		want string // bus of the group's first GPU for each GPU, or - for none
	}{
		"no links":             {nodeOf(gpu.GPU{}, gpu.GPU{NVLinks: &gpu.NVLinks{}}), "- -"},
		"switches":             {nodeOf(gpu.GPU{NVLinks: switched()}, gpu.GPU{NVLinks: switched()}, gpu.GPU{}, gpu.GPU{NVLinks: switched()}), "1 1 - 1"},
		"pairs":                {nodeOf(gpu.GPU{NVLinks: direct(3)}, gpu.GPU{NVLinks: direct(4)}, gpu.GPU{NVLinks: direct(1)}, gpu.GPU{NVLinks: direct(2)}), "1 2 1 2"},
		"a ring":               {nodeOf(gpu.GPU{NVLinks: direct(2, 4)}, gpu.GPU{NVLinks: direct(1, 3)}, gpu.GPU{NVLinks: direct(2, 4)}, gpu.GPU{NVLinks: direct(3, 1)}), "1 1 1 1"},
		"two that join late":   {nodeOf(gpu.GPU{NVLinks: direct(4)}, gpu.GPU{NVLinks: direct(3)}, gpu.GPU{NVLinks: direct(2, 4)}, gpu.GPU{NVLinks: direct(1, 3)}), "1 1 1 1"},
		"one end that says so": {nodeOf(gpu.GPU{NVLinks: direct(2)}, gpu.GPU{NVLinks: &gpu.NVLinks{Active: 4}}), "1 1"},
		"a peer elsewhere":     {nodeOf(gpu.GPU{NVLinks: direct(77)}, gpu.GPU{NVLinks: direct(78)}), "1 2"},
		"a link that is down":  {nodeOf(gpu.GPU{NVLinks: direct(2)}, gpu.GPU{NVLinks: &gpu.NVLinks{}}), "1 -"},
		"links and switches":   {nodeOf(gpu.GPU{NVLinks: switched()}, gpu.GPU{NVLinks: direct(3)}, gpu.GPU{NVLinks: direct(2)}, gpu.GPU{NVLinks: switched()}), "1 2 2 1"},
		"one fabric": {nodeOf(
			gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)},
		), "1 1"},
		"two cliques": {nodeOf(
			gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: switched(), Fabric: joined("a", 2)},
			gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: switched(), Fabric: joined("b", 1)},
		), "1 2 1 4"},
		"one that has not joined": {nodeOf(
			gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: switched()}, gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)},
		), "1 2 1"},
		"a fabric whose links are down": {nodeOf(
			gpu.GPU{NVLinks: switched(), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: &gpu.NVLinks{}, Fabric: joined("a", 1)},
		), "1 -"},
		"links inside of a fabric's cliques": {nodeOf(
			gpu.GPU{NVLinks: direct(2), Fabric: joined("a", 1)}, gpu.GPU{NVLinks: direct(1), Fabric: joined("a", 2)},
		), "1 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			groups := gpu.NVLinkGroups(tt.gpus)
			var got []string
			for i := range tt.gpus {
				first := "-"
				for j := range tt.gpus {
					if groups[tt.gpus[i].PCI] == tt.gpus[j].PCI.DeviceName() {
						first = fmt.Sprint(j + 1)
					}
				}
				got = append(got, first)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("first GPUs of groups (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPCIeSwitch_Nearest(t *testing.T) {
	for path, want := range map[string]string{
		"":                                     "",
		"pci0000:00 0000:00:1e.0":              "",
		"pci0000:16 0000:16:00.0 0000:17:00.0": "",
		"pci0000:16 0000:16:00.0 0000:17:00.0 0000:18:00.0":                                        "", // a bridge to PCI: no switch
		"pci0000:15 0000:15:01.0 0000:16:00.0 0000:17:03.0 0000:1b:00.0":                           "0000:16:00.0",
		"pci0000:00 0000:00:01.1 0000:01:00.0 0000:02:00.0 0000:03:00.0 0000:04:00.0 0000:07:00.0": "0000:03:00.0",
	} {
		g := gpu.GPU{PCIePath: strings.Fields(path)}
		if got := g.PCIeSwitch(); got != want {
			t.Errorf("%q: got switch %q, want %q", path, got, want)
		}
	}
}
