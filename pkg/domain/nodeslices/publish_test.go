// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

func TestObjects_TwoGPUs(t *testing.T) {
	checkGolden(t, "two-gpus.yaml", Objects(nodeOf(2), "gpu.cleave.dev", "node-1"))
}

func TestObjects_NothingOptional(t *testing.T) {
	node := &policy.Node{Node: &gpu.Node{DriverVersion: "580.95.05", CUDAVersion: gpu.Version{Major: 13}, GPUs: []gpu.GPU{bareGPU()}}}
	checkGolden(t, "bare-gpu.yaml", Objects(node, "gpu.cleave.dev", "node-1"))
}

func TestObjects_NoGPUs(t *testing.T) {
	checkGolden(t, "no-gpus.yaml", Objects(&policy.Node{Node: &gpu.Node{DriverVersion: "580.95.05"}}, "gpu.cleave.dev", "node-1"))
	slices := slicesOf(t, &policy.Node{Node: &gpu.Node{}})
	if len(slices) != 1 || len(slices[0].Devices) != 0 || len(slices[0].SharedCounters) != 0 {
		t.Errorf("got %v, want one empty slice", slices)
	}
}

func TestObjects_Deterministic(t *testing.T) {
	for name, node := range map[string]func() *policy.Node{"whole": func() *policy.Node { return nodeOf(70) }, "every tier": func() *policy.Node { return offeredNode(t, "hgx-h100") }} {
		want := encode(t, Of(node(), View{}))
		for range 20 {
			if got := encode(t, Of(node(), View{})); got != want {
				t.Fatalf("%s: slices differ (-first +now):\n%s", name, cmp.Diff(want, got))
			}
		}
	}
}

func TestResources_DeepCopy(t *testing.T) {
	node := nodeOf(1)
	device := deviceOf(t, node)
	want := encode(t, device)
	*node.GPUs[0].NUMANode, *node.GPUs[0].ECC, node.GPUs[0].UUID = 7, false, "GPU-other"
	node.GPUs[0].NVLinks.Active, *node.GPUs[0].Memory = 1, 1
	if diff := cmp.Diff(want, encode(t, device)); diff != "" {
		t.Errorf("published device changed with the node (-before +after):\n%s", diff)
	}
}

func TestResources_WholeCounters(t *testing.T) {
	for _, model := range []string{"l40s", "a30", "hgx-h100", "rtx-pro-6000"} {
		node := offeredNode(t, model)
		sets := map[string]map[string]resourceapi.Counter{}
		var devices []resourceapi.Device
		for _, s := range slicesOf(t, node) {
			for _, set := range s.SharedCounters {
				sets[set.Name] = set.Counters
			}
			for _, d := range s.Devices {
				if *d.Attributes["type"].StringValue == string(gpu.TypeGPU) {
					devices = append(devices, d)
				}
			}
		}
		if len(devices) != len(node.GPUs) {
			t.Errorf("%s: %d whole GPUs, want %d", model, len(devices), len(node.GPUs))
		}
		for _, d := range devices {
			if len(d.ConsumesCounters) != 1 || d.ConsumesCounters[0].CounterSet != d.Name {
				t.Fatalf("%s: device %s consumes %v, want only its own set", model, d.Name, d.ConsumesCounters)
			}
			if diff := cmp.Diff(encode(t, sets[d.Name]), encode(t, d.ConsumesCounters[0].Counters)); diff != "" {
				t.Errorf("%s: device %s (-has +consumes):\n%s", model, d.Name, diff)
			}
		}
	}
}

// The order in which a scheduler meets the slices is that of their names.
func TestObjects_NamesSorted(t *testing.T) {
	items := Objects(nodeOf(200), "gpu.cleave.dev", "node-1").Items
	for i := 1; i < len(items); i++ {
		if items[i-1].Name >= items[i].Name {
			t.Errorf("slice %d is named %q, slice %d %q: want them in ascending order", i-1, items[i-1].Name, i, items[i].Name)
		}
	}
	for _, s := range items {
		if s.Spec.Pool.ResourceSliceCount != int64(len(items)) || s.Spec.Pool.Generation != 1 || *s.Spec.NodeName != "node-1" {
			t.Errorf("slice %s: got pool %v on node %s", s.Name, s.Spec.Pool, *s.Spec.NodeName)
		}
	}
}
