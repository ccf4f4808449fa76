// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

func TestAPI_Publish(t *testing.T) {
	r := record(t)
	shared := true
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, Pool: resourceapi.ResourcePool{Name: theNode},
		SharedCounters: []resourceapi.CounterSet{{Name: "set-0", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("8")}}}},
		Devices: []resourceapi.Device{{
			Name: "gpu-0-mps", AllowMultipleAllocations: &shared,
			Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"cores": {Value: resource.MustParse("100")}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "set-0", Counters: map[string]resourceapi.Counter{"slices": {Value: resource.MustParse("8")}}}},
		}},
	}}
	of := func(node string) *published {
		return &published{api: API{Driver: driver, Node: node}, recorder: r, seen: map[string]history.Fact{}, slices: map[string]*resourceapi.ResourceSlice{}}
	}
	p := of(theNode)
	p.changed(slice)
	p.changed(slice)
	of("node-2").changed(slice)
	want := []history.Fact{
		history.Counters{Set: "set-0", Values: map[string]int64{"slices": 8}},
		history.Device{Name: "gpu-0-mps", Set: "set-0", Shared: true, Consumes: map[string]int64{"slices": 8}, Capacity: map[string]int64{"cores": 100}},
	}
	if diff := cmp.Diff(want, factsOf(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// A device is withdrawn once a complete pool lacks it, and may be published again.
func TestAPI_Withdrawn(t *testing.T) {
	r := record(t)
	p := published{api: API{Driver: driver, Node: theNode}, recorder: r, seen: map[string]history.Fact{}, slices: map[string]*resourceapi.ResourceSlice{}}
	slice := func(name string, generation, count int64, devices ...string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, Pool: resourceapi.ResourcePool{Name: theNode, Generation: generation, ResourceSliceCount: count},
		}}
		for _, d := range devices {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: d})
		}
		return s
	}
	p.changed(slice("one", 1, 2, "a", "b"))
	p.changed(slice("two", 1, 2, "c"))
	p.changed(slice("one", 2, 2, "a")) // "c" is of an earlier generation
	p.changed(slice("two", 2, 2, "c"))
	p.deleted(slice("one", 2, 2, "a")) // incomplete
	p.changed(slice("new", 3, 1, "b", "a"))
	p.deleted(slice("two", 2, 2, "c"))
	p.deleted(slice("new", 3, 1))
	device := func(name string) history.Fact { return history.Device{Name: name} }
	want := []history.Fact{
		device("a"), device("b"), device("c"), history.Withdrawn{Name: "b"}, history.Withdrawn{Name: "c"}, device("b"),
		history.Withdrawn{Name: "b"}, history.Withdrawn{Name: "a"},
	}
	if diff := cmp.Diff(want, factsOf(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
