// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/packing"
)

// TestOverAllocated: a GPU of two places, with a device for each, one for both, and shares of both.
func TestOverAllocated(t *testing.T) {
	places := func(names ...string) map[string]resourceapi.Counter {
		m := map[string]resourceapi.Counter{}
		for _, n := range names {
			m[n] = resourceapi.Counter{Value: resource.MustParse("1")}
		}
		return m
	}
	device := func(name string, of ...string) resourceapi.Device {
		return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu", Counters: places(of...)}}}
	}
	pool := resourceapi.ResourcePool{Name: "n1"}
	published := []*resourceapi.ResourceSlice{
		{Spec: resourceapi.ResourceSliceSpec{Pool: pool, SharedCounters: []resourceapi.CounterSet{{Name: "gpu", Counters: places("a", "b")}}}},
		{Spec: resourceapi.ResourceSliceSpec{Pool: pool, Devices: []resourceapi.Device{
			device("first", "a"), device("second", "b"), device("whole", "a", "b"), device("shared", "a", "b"),
		}}},
	}
	share := types.UID("share")
	admin := resourceapi.DeviceRequestAllocationResult{Pool: "n1", Device: "whole", AdminAccess: new(true)}
	of := func(device string) resourceapi.DeviceRequestAllocationResult {
		r := resourceapi.DeviceRequestAllocationResult{Pool: "n1", Device: device}
		if device == "shared" {
			r.ShareID = &share
		}
		return r
	}
	for name, tt := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    []string
	}{
		"nothing":             {nil, nil},
		"both partitions":     {[]resourceapi.DeviceRequestAllocationResult{of("first"), of("second")}, nil},
		"two shares":          {[]resourceapi.DeviceRequestAllocationResult{of("shared"), of("shared")}, nil},
		"admin access":        {[]resourceapi.DeviceRequestAllocationResult{of("whole"), admin}, nil},
		"not published":       {[]resourceapi.DeviceRequestAllocationResult{of("whole"), of("gone")}, nil},
		"one device twice":    {[]resourceapi.DeviceRequestAllocationResult{of("first"), of("first")}, []string{"n1/first"}},
		"GPU and partition":   {[]resourceapi.DeviceRequestAllocationResult{of("whole"), of("second")}, []string{"n1/gpu/b"}},
		"share and partition": {[]resourceapi.DeviceRequestAllocationResult{of("first"), of("shared"), of("shared")}, []string{"n1/gpu/a"}},
	} {
		if diff := cmp.Diff(tt.want, packing.OverAllocated(published, tt.results)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
