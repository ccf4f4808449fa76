// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/google/go-cmp/cmp"
)

func TestObjects_A30InMIGMode(t *testing.T) {
	node := modelNode(t, "a30", 0)
	node.GPUs = node.GPUs[:1]
	checkGolden(t, "a30-mig.yaml", Objects(node, "gpu.cleave.dev", "node-1"))
}

// Each newer board in MIG mode: profile names and placements as its driver reports them, and no others than those without a policy.
func TestObjects_Boards(t *testing.T) {
	for _, model := range []string{"gb200-nvl72", "gb300-nvl72", "gh200", "hgx-b300", "rtx-pro-6000"} {
		node := modelNode(t, model, 0)
		node.GPUs = node.GPUs[:1]
		var devices []string
		for _, s := range slicesOf(t, node) {
			for _, set := range s.SharedCounters {
				devices = append(devices, fmt.Sprintf("%s: %d counters", set.Name, len(set.Counters)))
			}
			for _, d := range s.Devices {
				line := []string{d.Name, *d.Attributes["type"].StringValue}
				if profile, ok := d.Attributes["profile"]; ok {
					line = append(line, *profile.StringValue)
				}
				for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
					amount := d.Capacity[name].Value
					line = append(line, fmt.Sprintf("%s %s", name, amount.String()))
				}
				for _, c := range d.ConsumesCounters {
					line = append(line, fmt.Sprintf("uses %d counters", len(c.Counters)))
				}
				devices = append(devices, strings.Join(line, ", "))
			}
		}
		checkGolden(t, "board-"+model+".yaml", devices)
	}
}

// names are the devices of each slice, with what is tainted marked.
func names(t *testing.T, node *policy.Node, occupied ...string) [][]string {
	t.Helper()
	var all [][]string
	for _, s := range Of(node, View{Taints: occupiedTaints(occupied)}) {
		list := []string{}
		for _, set := range s.SharedCounters {
			list = append(list, fmt.Sprintf("counters %s (%d)", set.Name, len(set.Counters)))
		}
		for _, d := range s.Devices {
			name := d.Name
			for _, taint := range d.Taints {
				name += " " + taint.Key + ":" + string(taint.Effect)
			}
			list = append(list, name)
		}
		all = append(all, list)
	}
	return all
}

func TestLimits_Partitions(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s MIG %t", model, mig), func(t *testing.T) {
				node := modelNode(t, model)
				for i := range node.GPUs {
					node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
				}
				checkLimits(t, slicesOf(t, node))
			})
		}
	}
}

// A policy can have every profile of the board with the most.
func TestLimits_EveryProfile(t *testing.T) {
	node := modelNode(t, "rtx-pro-6000")
	node.Offers = slices.Repeat([]policy.Offer{{Whole: true, Partitions: &policy.PartitionOffer{Mode: policy.OnDemand}}}, len(node.GPUs))
	published, devices := slicesOf(t, node), 0
	checkLimits(t, published)
	for _, s := range published {
		devices += len(s.Devices)
	}
	if want := 31 * len(node.GPUs); devices != want {
		t.Errorf("got %d devices, want %d", devices, want)
	}
}

func TestPartition_Attributes(t *testing.T) {
	node := modelNode(t, "hgx-h100")
	node.GPUs = node.GPUs[:1]
	g := &node.GPUs[0]
	for _, s := range slicesOf(t, node) {
		for _, d := range s.Devices {
			if d.Name != g.PCI.DeviceName()+"-mig-9-4" {
				continue
			}
			got := map[string]string{}
			for name, a := range d.Attributes {
				got[string(name)] = encode(t, a)
			}
			want := map[string]string{
				"type": `{"string":"mig"}`, "parentUUID": `{"string":"` + g.UUID + `"}`, "profile": `{"string":"3g.40gb"}`,
				"placementSize": `{"int":4}`, "productName": `{"string":"NVIDIA H100 80GB HBM3"}`, "architecture": `{"string":"Hopper"}`,
				"cudaComputeCapability": `{"version":"9.0.0"}`, "driverVersion": `{"version":"580.95.5"}`,
				"resource.kubernetes.io/numaNode": `{"int":0}`, "resource.kubernetes.io/pcieRoot": `{"string":"pci0000:15"}`,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("attributes of 3g.40gb at 4 (-want +got):\n%s", diff)
			}
			capacity := map[string]string{}
			for name, c := range d.Capacity {
				capacity[string(name)] = c.Value.String()
			}
			wantCapacity := map[string]string{
				"memory": "40448Mi", "multiprocessors": "60", "copyEngines": "3", "decoders": "3", "jpegEngines": "3",
			}
			if diff := cmp.Diff(wantCapacity, capacity); diff != "" {
				t.Errorf("capacity of 3g.40gb at 4 (-want +got):\n%s", diff)
			}
			return
		}
	}
	t.Error("3g.40gb at 4 is not published")
}

func TestResources_Occupied(t *testing.T) {
	node := modelNode(t, "hgx-h100")
	whole, part := node.GPUs[2].PCI.DeviceName(), node.GPUs[2].PCI.DeviceName()+"-mig-19-6"
	clean, tainted := names(t, node), names(t, node, part, whole)
	var marked []string
	for i := range tainted {
		for j, name := range tainted[i] {
			if name != clean[i][j] {
				marked = append(marked, name)
			}
		}
	}
	slices.Sort(marked)
	want := []string{whole + " " + TaintOccupied + ":NoSchedule", part + " " + TaintOccupied + ":NoSchedule"}
	slices.SortFunc(want, strings.Compare)
	if diff := cmp.Diff(want, marked); diff != "" {
		t.Errorf("devices that differ (-want +got):\n%s", diff)
	}
}

func TestResources_AmpereMIGMode(t *testing.T) {
	node := modelNode(t, "dgx-a100", 3)
	for _, slice := range slicesOf(t, node) {
		for _, d := range slice.Devices {
			kind, inMIG := *d.Attributes["type"].StringValue, strings.HasPrefix(d.Name, node.GPUs[3].PCI.DeviceName())
			if inMIG != (kind == string(gpu.TypeMIG)) {
				t.Errorf("device %s of type %s: its GPU is in MIG mode: %t", d.Name, kind, inMIG)
			}
		}
	}
}

func occupiedTaints(devices []string) []Taint {
	var taints []Taint
	for _, d := range devices {
		taints = append(taints, Taint{Device: d, Key: TaintOccupied})
	}
	return taints
}
