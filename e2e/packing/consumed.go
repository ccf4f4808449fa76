// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// OverAllocated are the counters of a driver of which more is allocated than its slices have, and the devices that several
// claims have as a whole, sorted. Devices that are not published consume nothing.
func OverAllocated(published []*resourceapi.ResourceSlice, results []resourceapi.DeviceRequestAllocationResult) []string {
	totals, devices := map[string]resource.Quantity{}, map[string]*resourceapi.Device{}
	for _, s := range published {
		pool := s.Spec.Pool.Name + "/"
		for _, set := range s.Spec.SharedCounters {
			for name, c := range set.Counters {
				totals[pool+set.Name+"/"+name] = c.Value
			}
		}
		for i := range s.Spec.Devices {
			devices[pool+s.Spec.Devices[i].Name] = &s.Spec.Devices[i]
		}
	}
	var found []string
	consumed, seen := map[string]resource.Quantity{}, map[string]bool{}
	for i := range results {
		r := &results[i]
		name := r.Pool + "/" + r.Device
		switch {
		case r.AdminAccess != nil && *r.AdminAccess:
			continue
		case seen[name]:
			if r.ShareID == nil {
				found = append(found, name)
			}
			continue // the shares of a device consume its counters once
		}
		seen[name] = true
		if d := devices[name]; d != nil {
			consume(consumed, r.Pool, d)
		}
	}
	for counter, sum := range consumed {
		if sum.Cmp(totals[counter]) > 0 {
			found = append(found, counter)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// consume adds what a device consumes of the counters of its pool.
func consume(consumed map[string]resource.Quantity, pool string, d *resourceapi.Device) {
	for _, set := range d.ConsumesCounters {
		for name, c := range set.Counters {
			key := pool + "/" + set.CounterSet + "/" + name
			sum := consumed[key]
			sum.Add(c.Value)
			consumed[key] = sum
		}
	}
}
