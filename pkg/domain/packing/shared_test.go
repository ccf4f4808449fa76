// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

func TestOrderShared(t *testing.T) {
	shapes := func(n int) (all []gpu.Shape) {
		for i := range n {
			all = append(all, gpu.Shape{GPU: &gpu.GPU{Index: i, PCI: gpu.PCIAddress{Bus: uint8(i)}}, Share: gpu.MPS})
		}
		return all
	}
	of := func(indexes ...int) func(gpu.Shape) int {
		return func(s gpu.Shape) (n int) {
			for _, i := range indexes {
				if s.GPU.Index == i {
					n++
				}
			}
			return n
		}
	}
	spread := func(from int) func(gpu.Shape) bool { return func(s gpu.Shape) bool { return s.GPU.Index >= from } }
	for name, tt := range map[string]struct {
		shapes int
		claims func(gpu.Shape) int
		spread func(gpu.Shape) bool
		want   string
	}{
		"none":                   {4, of(), nil, "[0 1 2 3]"},
		"unknown":                {4, nil, nil, "[0 1 2 3]"},
		"the first":              {4, of(0), nil, "[0 1 2 3]"},
		"the last":               {4, of(3), nil, "[3 0 1 2]"},
		"two keep their order":   {4, of(3, 1, 3), nil, "[1 3 0 2]"},
		"all":                    {4, of(0, 1, 2, 3), nil, "[0 1 2 3]"},
		"no shared GPU":          {0, of(0), nil, "[]"},
		"in the second slice":    {66, of(65), nil, "0 1 … 65 64"},
		"in both slices":         {66, of(63, 65), nil, "63 0 … 65 64"},
		"spread, none":           {4, of(), spread(0), "[0 1 2 3]"},
		"spread, unknown":        {4, nil, spread(0), "[0 1 2 3]"},
		"spread, the first":      {4, of(0), spread(0), "[1 2 3 0]"},
		"spread, fewest first":   {4, of(0, 0, 1, 2, 2, 2), spread(0), "[3 1 0 2]"},
		"spread, a few":          {4, of(1, 2, 2, 3), spread(2), "[1 0 3 2]"},
		"spread, in both slices": {66, of(0, 64), spread(0), "1 2 … 65 64"},
	} {
		t.Run(name, func(t *testing.T) {
			indexes := []int{}
			for _, s := range packing.OrderShared(shapes(tt.shapes), tt.claims, tt.spread) {
				indexes = append(indexes, s.GPU.Index)
			}
			got := fmt.Sprint(indexes)
			if tt.shapes > 64 {
				got = fmt.Sprintf("%d %d … %d %d", indexes[0], indexes[1], indexes[64], indexes[65])
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}
