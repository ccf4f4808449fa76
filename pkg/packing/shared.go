// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// SharedFirst is shared GPUs, or shared partitions, in the order of OrderShapes, but those that claims share already stand
// before untouched ones: the scheduler takes the first with room, so that none is opened while an open one has room. Which of
// the open ones is first does not change, so that the order changes only when one gets its first share or loses its last.
//
// used reports of a shared GPU or partition whether a claim has a share of it; nil means that none has.
func SharedFirst(shared []gpu.Shape, used func(gpu.Shape) bool) []gpu.Shape {
	if used == nil || len(shared) > maxRanked {
		return shared
	}
	var open, untouched []gpu.Shape
	for _, s := range shared {
		if used(s) {
			open = append(open, s)
		} else {
			untouched = append(untouched, s)
		}
	}
	return slices.Concat(open, untouched)
}
