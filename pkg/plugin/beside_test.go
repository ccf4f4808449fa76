// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// twoGPUs are 0000:1b:00.0 and 0000:1c:00.0, of which the policy leaves some to others.
func twoGPUs(t *testing.T, excluded ...bool) *policy.Node {
	node := &policy.Node{Node: &gpu.Node{}}
	for i, pci := range []string{"0000:1b:00.0", "0000:1c:00.0"} {
		offer := policy.Offer{Whole: true}
		if i < len(excluded) && excluded[i] {
			offer = policy.Offer{Excluded: true}
		}
		node.GPUs, node.Offers = append(node.GPUs, gpu.GPU{PCI: address(t, pci)}), append(node.Offers, offer)
	}
	return node
}

func TestOthersWhoHandOutTheSameGPUsAreAConflict(t *testing.T) {
	plugin := []pluginResource{{"nvidia.com/gpu", "8"}, {"nvidia.com/mig-1g.10gb", "7"}}
	device := func(pci string) otherDevice { return otherDevice{"gpu.nvidia.com", "gpu-3", address(t, pci)} }
	var many []otherDevice
	for i := range 20 {
		many = append(many, otherDevice{"gpu.nvidia.com", fmt.Sprintf("mig-%02d", i), address(t, "0000:1b:00.0")})
	}
	all, one, none := twoGPUs(t), twoGPUs(t, true), twoGPUs(t, true, true)
	tests := map[string]struct {
		node      *policy.Node
		resources []pluginResource
		others    []otherDevice
		want      []string // nil: no conflict
	}{
		"nobody":                              {all, nil, nil, nil},
		"a device plugin":                     {all, plugin, nil, []string{"nvidia.com/gpu: 8, nvidia.com/mig-1g.10gb: 7", "DaemonSet", "exclude: true", "five minutes"}},
		"a device plugin, one GPU left to it": {one, plugin, nil, []string{"nvidia.com/gpu: 8"}},
		"a device plugin, all left to it":     {none, plugin, nil, nil},
		"a driver":                            {all, nil, []otherDevice{device("0000:1c:00.0")}, []string{"driver gpu.nvidia.com has GPU 0000:1c:00.0 as device gpu-3", "exclude: true"}},
		"a driver of something else":          {all, nil, []otherDevice{device("0000:1d:00.0")}, nil},
		"a driver, with the GPU left to it":   {one, nil, []otherDevice{device("0000:1b:00.0")}, nil},
		"a driver, with the other left to it": {one, nil, []otherDevice{device("0000:1c:00.0")}, []string{"0000:1c:00.0"}},
		"a driver with many devices of a GPU": {all, nil, many, []string{"mig-00", "mig-07, and 12 more"}},
		"both":                                {all, plugin, many, []string{"nvidia.com/gpu: 8"}},
		"no GPU of ours":                      {&policy.Node{Node: &gpu.Node{}}, plugin, many, nil},
		"no policy was applied, all are ours": {&policy.Node{Node: &gpu.Node{GPUs: []gpu.GPU{{PCI: address(t, "0000:1b:00.0")}}}}, plugin, nil, []string{"nvidia.com/gpu"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := conflictOf(tt.node, tt.resources, tt.others)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want a conflict that says %q", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestOnlyWhatNamesAGPUIsADevicePluginsResource(t *testing.T) {
	for name, want := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-3g.40gb": true, "nvidia.com/mig-1g.10gb.me": true, "nvidia.com/gpumem": true,
		"nvidia.com/hostdev": false, "nvidia.com/cx7": false, "nvidia.com/GA102GL_A10": false, "amd.com/gpu": false, "gpu": false,
		"nvidia.com.example/gpu": false, "nvidia.com/migrate": false,
	} {
		if got := handsOutGPUs(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}

func TestBesideOthersOnlyWhatClaimsHoldStaysPublishedAndIsTainted(t *testing.T) {
	node := twoGPUs(t)
	node.Offers[1].TimeSlice = &policy.Sharing{Shares: 4}
	nothing := func(*gpu.GPU) gpu.Held { return gpu.Held{} }
	left, taints := besideOthers(node, nothing)
	if len(left.GPUs) != 0 || taints != nil || len(node.GPUs) != 2 {
		t.Errorf("got %v with taints %v of what nobody holds, want nothing", left.GPUs, taints)
	}
	for name, held := range map[string]gpu.Held{
		"whole": {Tiers: gpu.Tiers{Whole: true}}, "a time slice": {Tiers: gpu.Tiers{TimeSlice: true}}, "a partition": {Places: []gpu.Place{{ProfileID: 19}}},
	} {
		left, taints = besideOthers(node, func(g *gpu.GPU) gpu.Held {
			if g.PCI == node.GPUs[1].PCI {
				return held
			}
			return gpu.Held{}
		})
		want := []publish.Taint{{Device: "gpu-0000-1c-00-0", Key: publish.TaintConflict}, {Device: "gpu-0000-1c-00-0-timeslice", Key: publish.TaintConflict}}
		if diff := cmp.Diff(want, taints); diff != "" || len(left.GPUs) != 1 {
			t.Errorf("%s held: %d GPUs are left; taints (-want +got):\n%s", name, len(left.GPUs), diff)
		}
	}
}
