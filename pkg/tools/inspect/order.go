// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// kinds are the types of shapes in the order of every list.
var kinds = []string{typeGPU, typeMIG, typeTimeSlice, typeMPS, typeMIGTimeSlice, typeMIGMPS}

// InOrder sorts amounts as every list has them: whole GPUs, partitions from small to large, shares.
func InOrder(all []Amount) {
	slices.SortStableFunc(all, func(a, b Amount) int {
		compute, memory := sizeOf(a.Profile)
		otherCompute, otherMemory := sizeOf(b.Profile)
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Type), slices.Index(kinds, b.Type)), cmp.Compare(compute, otherCompute),
			cmp.Compare(memory, otherMemory), strings.Compare(a.Profile, b.Profile))
	})
}

// sizeOf reads a profile's name: "1g.10gb+me" has one compute slice and 10 GB.
func sizeOf(profile string) (compute, memory int) {
	if _, err := fmt.Sscanf(profile, "%dg.%dgb", &compute, &memory); err != nil {
		return 0, 0 // as names of no known form
	}
	return compute, memory
}
