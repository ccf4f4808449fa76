// SPDX-License-Identifier: Apache-2.0

package resourcepool_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

const driver = "gpu.example.com"

// slice is one of a pool; devices consume the counter "units" of the set after their colon: "a", "b:set".
func slice(name, pool string, generation, count int64, devices ...string) *resourceapi.ResourceSlice {
	node := "node-1"
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count},
	}}
	for _, d := range devices {
		name, set, counted := strings.Cut(d, ":")
		device := resourceapi.Device{Name: name}
		if counted {
			device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: units(1)}}
		}
		s.Spec.Devices = append(s.Spec.Devices, device)
	}
	return s
}

func counters(s *resourceapi.ResourceSlice, names ...string) *resourceapi.ResourceSlice {
	for _, name := range names {
		s.Spec.SharedCounters = append(s.Spec.SharedCounters, resourceapi.CounterSet{Name: name, Counters: units(100)})
	}
	return s
}

func units(n int64) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{"units": {Value: *resource.NewQuantity(n, resource.DecimalSI)}}
}

func elsewhere(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	node := "node-2"
	s.Spec.NodeName = &node
	return s
}

func TestGather(t *testing.T) {
	other := slice("b", "p", 1, 2, "b:set")
	other.Spec.Devices[0].ConsumesCounters[0].Counters = map[string]resourceapi.Counter{"else": {}}
	grouped := slice("b", "p", 1, 2, "b:set")
	grouped.Spec.Devices[0].ConsumesCounters[0].CompatibilityGroups = []string{"g"}
	for name, tt := range map[string]struct {
		reached, rest []*resourceapi.ResourceSlice
		want          string
	}{
		"none":                         {nil, nil, ""},
		"whole":                        {[]*resourceapi.ResourceSlice{slice("b", "p", 1, 2, "b"), slice("a", "p", 1, 2, "a")}, nil, "p: a b"},
		"one is missing":               {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 2, "a")}, nil, "p: 1 of 2"},
		"more than it says":            {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 1, "a"), slice("b", "p", 1, 1, "b")}, nil, "p: 2 of 1"},
		"an older generation":          {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 1, "a"), slice("b", "p", 2, 1, "b")}, nil, "p: b"},
		"the rest is elsewhere":        {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 2, "a")}, []*resourceapi.ResourceSlice{elsewhere(slice("b", "p", 1, 2, "b"))}, "p: a"},
		"it is replaced elsewhere":     {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 2, "a")}, []*resourceapi.ResourceSlice{elsewhere(slice("b", "p", 2, 2, "b"))}, ""},
		"a device twice":               {[]*resourceapi.ResourceSlice{slice("a", "p", 1, 2, "a"), slice("b", "p", 1, 2, "a")}, nil, "p: device a is published twice"},
		"counters":                     {[]*resourceapi.ResourceSlice{counters(slice("a", "p", 1, 2), "set"), slice("b", "p", 1, 2, "b:set")}, nil, "p: b"},
		"counters elsewhere":           {[]*resourceapi.ResourceSlice{slice("b", "p", 1, 2, "b:set")}, []*resourceapi.ResourceSlice{elsewhere(counters(slice("a", "p", 1, 2), "set"))}, "p: b"},
		"no counters":                  {[]*resourceapi.ResourceSlice{slice("b", "p", 1, 1, "b:set")}, nil, "p: device b consumes counters of set, which is not published"},
		"other counters":               {[]*resourceapi.ResourceSlice{counters(slice("a", "p", 1, 2), "set"), other}, nil, "p: device b consumes counters of set that it does not have"},
		"counters twice":               {[]*resourceapi.ResourceSlice{counters(slice("a", "p", 1, 2), "set"), counters(slice("b", "p", 1, 2), "set")}, nil, "p: counter set set is published twice"},
		"devices beside counters":      {[]*resourceapi.ResourceSlice{counters(slice("a", "p", 1, 1, "a"), "set")}, nil, "p:"},
		"by compatibility groups":      {[]*resourceapi.ResourceSlice{counters(slice("a", "p", 1, 2), "set"), grouped}, nil, "p: 1 of 2"},
		"two pools, in order of names": {[]*resourceapi.ResourceSlice{slice("a", "q", 1, 1, "a"), slice("b", "p", 1, 1, "b")}, nil, "p: b; q: a"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range resourcepool.Gather(tt.reached, tt.rest) {
				text := p.Pool + ":"
				switch {
				case p.IsIncomplete():
					text += fmt.Sprintf(" %d of %d", p.Have(), p.Want)
				case p.Invalid != "":
					text += " " + p.Invalid
				default:
					for _, d := range p.Devices() {
						text += " " + d.Name
					}
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "; ")); diff != "" {
				t.Errorf("pools (-want +got):\n%s", diff)
			}
		})
	}
}

// random are slices of up to three pools, most of them broken in one way or another, of which some are of another node.
func random(r *rand.Rand) (reached, rest []*resourceapi.ResourceSlice) {
	for i := range 1 + r.IntN(3) {
		pool := string(rune('p' + i))
		n := 1 + r.IntN(3)
		count := int64(n)
		if r.IntN(4) == 0 {
			count += int64(r.IntN(3) - 1)
		}
		for j := range n {
			generation := int64(1)
			if r.IntN(12) == 0 {
				generation = 2
			}
			s := slice(fmt.Sprintf("%s-%d", pool, r.IntN(9)*10+j), pool, generation, max(1, count))
			if j == 0 && r.IntN(2) == 0 {
				s = counters(s, "set")
				if r.IntN(8) == 0 {
					s = counters(s, "set")
				}
			} else {
				for range 1 + r.IntN(2) {
					name := fmt.Sprintf("d%d", r.IntN(30))
					if r.IntN(3) == 0 {
						name += ":set"
					}
					s.Spec.Devices = append(s.Spec.Devices, slice("", "", 0, 0, name).Spec.Devices...)
				}
			}
			if r.IntN(8) == 0 {
				rest = append(rest, elsewhere(s))
			} else {
				reached = append(reached, s)
			}
		}
	}
	return reached, rest
}

// The allocator allocates a device exactly where a pool is usable and has it, and the first one of them.
func TestGather_Allocator(t *testing.T) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n", UID: "1"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	outcomes := map[string]int{}
	for seed := range uint64(3000) {
		reached, rest := random(rand.New(rand.NewPCG(seed, 1)))
		want := "nothing"
		for _, p := range resourcepool.Gather(reached, rest) {
			if !p.IsUsable() {
				continue
			}
			for _, d := range p.Devices() {
				want = p.Pool + "/" + d.Name
				break
			}
			if want != "nothing" {
				break
			}
		}
		inner, err := structured.NewAllocator(t.Context(), allocator.Features(), allocator.NewAllocated().AllocatedState, resourcepool.Classes{class}, slices.Concat(reached, rest), cel.NewCache(1, cel.Features{}))
		if err != nil {
			t.Fatal(err)
		}
		results, err := inner.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
		got := "nothing"
		if err == nil && len(results) == 1 {
			r := results[0].Devices.Results[0]
			got = r.Pool + "/" + r.Device
		}
		outcomes[fmt.Sprint(got == "nothing")]++
		if got != want {
			t.Errorf("seed %d: the allocator allocates %s (%v), Gather says %s", seed, got, err, want)
		}
	}
	if outcomes["true"] < 300 || outcomes["false"] < 300 {
		t.Errorf("outcomes %v: one of them hardly occurs", outcomes)
	}
}
