// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

func TestSharedFirst(t *testing.T) {
	shapes := func(n int) (all []gpu.Shape) {
		for i := range n {
			all = append(all, gpu.Shape{GPU: &gpu.GPU{Index: i}, Share: gpu.MPS})
		}
		return all
	}
	of := func(indexes ...int) func(gpu.Shape) bool {
		return func(s gpu.Shape) bool {
			for _, i := range indexes {
				if s.GPU.Index == i {
					return true
				}
			}
			return false
		}
	}
	for name, tt := range map[string]struct {
		shapes int
		used   func(gpu.Shape) bool
		want   string
	}{
		"none":                 {4, of(), "[0 1 2 3]"},
		"unknown":              {4, nil, "[0 1 2 3]"},
		"the first":            {4, of(0), "[0 1 2 3]"},
		"the last":             {4, of(3), "[3 0 1 2]"},
		"two keep their order": {4, of(3, 1), "[1 3 0 2]"},
		"all":                  {4, of(0, 1, 2, 3), "[0 1 2 3]"},
		"no shared GPU":        {0, of(0), "[]"},
		"in the second slice":  {66, of(65), "0 1 … 65 64"},
		"in both slices":       {66, of(63, 65), "63 0 … 65 64"},
	} {
		t.Run(name, func(t *testing.T) {
			indexes := []int{}
			for _, s := range packing.SharedFirst(shapes(tt.shapes), tt.used) {
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
