// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/packing"
)

// results are what the claims of the API server have, and those that are about to, though they may be deleted meanwhile.
func resultsIn(b *bed) []resourceapi.DeviceRequestAllocationResult {
	var all []resourceapi.DeviceRequestAllocationResult
	for _, name := range slices.Sorted(maps.Keys(b.claims)) {
		all = append(all, results(b.claims[name])...)
	}
	for _, uid := range slices.Sorted(maps.Keys(b.pending)) {
		all = append(all, b.pending[uid].Devices.Results...)
	}
	return all
}

// overAllocated is what more is allocated of than is published.
func overAllocated(b *bed) []string {
	var published []*resourceapi.ResourceSlice
	for _, object := range b.informers.Resource().V1().ResourceSlices().Informer().GetIndexer().List() {
		published = append(published, object.(*resourceapi.ResourceSlice))
	}
	return packing.OverAllocated(published, resultsIn(b))
}

// generation is what a node publishes as a generation, changed; slices of which nothing is left are not published.
func generation(t *testing.T, n int64, name string, change func(*resourceapi.ResourceSliceSpec)) []*resourceapi.ResourceSlice {
	t.Helper()
	var all []*resourceapi.ResourceSlice
	for _, s := range slicesOf(t, "hgx-h100", name) {
		change(&s.Spec)
		s.Spec.Pool.Generation = n
		if len(s.Spec.Devices)+len(s.Spec.SharedCounters) > 0 {
			all = append(all, s)
		}
	}
	for _, s := range all {
		s.Spec.Pool.ResourceSliceCount = int64(len(all))
	}
	return all
}

// less takes places 4 to 6 of GPU 1b away.
func less(s *resourceapi.ResourceSliceSpec) {
	for _, set := range s.SharedCounters {
		if set.Name != "gpu-0000-1b-00-0" {
			continue
		}
		for i := 4; i <= 6; i++ {
			set.Counters[fmt.Sprint("slice-", i)] = resourceapi.Counter{}
		}
	}
}

// TestPlugin_CountersSmaller: a driver takes places away that are allocated. The node gives nothing until they are free, and
// then no more than is left.
func TestPlugin_CountersSmaller(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1", "n2")
	for i := range 3 { // places 6, 5 and 4 of GPU 1b
		name := fmt.Sprint("before-", i)
		b.place(b.pod(name, "1g.10gb"))
		b.store(name)
	}
	on := func(want, when string) {
		t.Helper()
		for _, class := range []string{"1g.10gb", "3g.40gb", "gpu", "mps"} {
			if _, got := b.preFilter(b.pod("looker", class)); got != want {
				t.Errorf("%s, %s: %s, want %s", when, class, got, want)
			}
			delete(b.claims, "looker")
		}
	}
	on("n1 n2", "before")
	smaller := generation(t, 2, "n1", less)
	b.publish(smaller[1:]...)
	on("n2", "half of the generation")
	b.publish(smaller[0])
	on("n2", "fewer places than are allocated")
	var over []string
	for i := 4; i <= 6; i++ {
		over = append(over, fmt.Sprint("n1/gpu-0000-1b-00-0/slice-", i))
	}
	for i := range 5 {
		b.place(b.pod(fmt.Sprint("meanwhile-", i), "1g.10gb"))
	}
	if diff := cmp.Diff(over, overAllocated(b)); diff != "" {
		t.Errorf("over-allocated after five pods more (-want +got):\n%s", diff)
	}
	b.remove("before-0")
	b.remove("before-1")
	on("n2", "one place still allocated")
	b.remove("before-2")
	on("n1 n2", "all of them free")
	got := map[string]int{}
	for i := range 56 + 53 - 5 {
		node, _ := b.place(b.pod(fmt.Sprint("after-", i), "1g.10gb"))
		got[node]++
	}
	if diff := cmp.Diff(map[string]int{"n1": 53, "n2": 51}, got); diff != "" {
		t.Errorf("pods afterwards (-want +got):\n%s", diff)
	}
	if over := overAllocated(b); len(over) > 0 {
		t.Errorf("over-allocated: %v", over)
	}
	on("UnschedulableAndUnresolvable", "all allocated")
}

// TestPlugin_CountersRemoved: a driver withdraws its counters, first without its devices, from which nothing can be had then,
// and at last publishes whole GPUs without any. The one that is allocated stays so.
func TestPlugin_CountersRemoved(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1", "n2")
	for _, class := range []string{"gpu", "1g.10gb"} {
		name := "before-" + class
		b.pod(name, class)
		b.pending[b.claims[name].UID] = b.allocate("n1", b.claims[name])
		b.store(name)
	}
	b.withdraw(slicesOf(t, "hgx-h100", "n1")...)
	b.publish(generation(t, 2, "n1", func(s *resourceapi.ResourceSliceSpec) { s.SharedCounters = nil })...)
	if _, got := b.preFilter(b.pod("pod", "gpu")); got != "n2" {
		t.Errorf("devices of counters that are not there: %s", got)
	}
	b.remove("before-1g.10gb")
	b.withdraw(slicesOf(t, "hgx-h100", "n1")...)
	b.publish(generation(t, 3, "n1", func(s *resourceapi.ResourceSliceSpec) {
		s.SharedCounters = nil
		s.Devices = slices.DeleteFunc(s.Devices, func(d resourceapi.Device) bool { return strings.Count(d.Name, "-") > 4 })
		for i := range s.Devices {
			s.Devices[i].ConsumesCounters = nil
		}
	})...)
	if diff := cmp.Diff(map[string]int{"n1": 7, "n2": 8}, b.placed(15, "gpu")); diff != "" {
		t.Errorf("nodes of 15 GPUs (-want +got):\n%s", diff)
	}
	if over := overAllocated(b); len(over) > 0 {
		t.Errorf("over-allocated: %v", over)
	}
	if _, got := b.preFilter(b.pod("pod", "gpu")); got != "UnschedulableAndUnresolvable" {
		t.Errorf("all allocated: %s", got)
	}
}
