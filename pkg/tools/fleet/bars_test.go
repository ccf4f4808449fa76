// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// A share of MPS is drawn by its amounts: one with half of the cores has half of the bar.
func TestBarsOf_Amounts(t *testing.T) {
	const gib = 1 << 30
	total := inspect.Amounts{Shares: 10, MemoryBytes: 80 * gib, CoresPercent: 100}
	for name, test := range map[string]struct {
		placement *gpu.Placement
		state     inspect.ShapeState
		taints    []inspect.Taint
		has       []inspect.Amounts
		want      []string
	}{
		"75 %": {nil, inspect.Shared, nil, []inspect.Amounts{{Shares: 1, MemoryBytes: 40 * gib, CoresPercent: 50}, {Shares: 1, MemoryBytes: 20 * gib, CoresPercent: 25}},
			[]string{"0.500 4 ns/0 allocated", "0.250 2 ns/1 allocated", "0.250 2  free"}},
		"most of the memory": {nil, inspect.Shared, nil, []inspect.Amounts{{Shares: 1, MemoryBytes: 60 * gib, CoresPercent: 10}},
			[]string{"0.750 6 ns/0 allocated", "0.250 2  free"}},
		"full": {nil, inspect.Allocated, nil, []inspect.Amounts{{Shares: 1, CoresPercent: 95}},
			[]string{"0.950 8 ns/0 allocated", "0.050 0  too little left for another claim"}},
		"each has most of something": {nil, inspect.Allocated, nil, []inspect.Amounts{{Shares: 1, MemoryBytes: 72 * gib, CoresPercent: 10}, {Shares: 1, CoresPercent: 90}},
			[]string{"0.500 4 ns/0 allocated", "0.500 4 ns/1 allocated"}},
		"tainted": {nil, inspect.Allocated, []inspect.Taint{{Effect: "NoSchedule"}}, []inspect.Amounts{{Shares: 1, CoresPercent: 25}},
			[]string{"0.250 2 ns/0 allocated", "0.750 6  tainted"}},
		"of a partition": {&gpu.Placement{Start: 4, Size: 4}, inspect.Shared, nil, []inspect.Amounts{{Shares: 1, CoresPercent: 50}},
			[]string{"0.250 2 ns/0 allocated", "0.250 2  free"}},
		"nobody": {nil, inspect.Free, nil, nil, []string{"1.000 8  free"}},
	} {
		shape := &inspect.Shape{Type: "mps", Placement: test.placement, Total: &total, State: test.state, Taints: test.taints}
		segment := inspect.Segment{Size: 8, State: inspect.SegmentAllocated, Shape: shape}
		if test.placement != nil {
			segment.Size = test.placement.Size
		}
		for i := range test.has {
			segment.Claims = append(segment.Claims, inspect.Claim{Claim: fmt.Sprintf("ns/%d", i), Has: &test.has[i]})
		}
		segment.Claims = append(segment.Claims, inspect.Claim{Claim: "ns/admin", AdminAccess: true})
		var got []string
		for _, b := range barsOf(segment, 8) {
			got = append(got, fmt.Sprintf("%.3f %d %s %s", b.Part, b.Units, b.Claim, b.Means))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Time slices are equal, and cover the GPU.
func TestBarsOf_TimeSlices(t *testing.T) {
	for total := int64(1); total < 70; total++ {
		for used := range total + 1 {
			shape := &inspect.Shape{Type: "timeslice", Total: &inspect.Amounts{Shares: total}, Used: &inspect.Amounts{Shares: used}}
			segment := inspect.Segment{Size: 8, State: inspect.SegmentAllocated, Shape: shape}
			for i := range used {
				segment.Claims = append(segment.Claims, inspect.Claim{Claim: fmt.Sprintf("ns/%d", i), Has: &inspect.Amounts{Shares: 1}})
			}
			units, parts, free := 0, 0.0, 0.0
			for _, b := range barsOf(segment, 8) {
				units, parts = units+b.Units, parts+b.Part
				if b.Claim == "" {
					free += b.Part
				}
			}
			if units != 8 || math.Abs(parts-1) > 1e-9 || math.Abs(free-float64(total-used)/float64(total)) > 1e-9 {
				t.Fatalf("%d of %d shares: %d units, %f of the GPU, %f free", used, total, units, parts, free)
			}
		}
	}
}
