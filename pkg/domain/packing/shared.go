// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// SharedFirst returns shared GPUs, or shared partitions, in the order of OrderShapes, but with those in use before untouched ones:
// the scheduler takes the first with room, so that none is opened while an open one has room. The order of the open ones is fixed,
// so that it changes only when one gets its first share or loses its last.
//
// That holds within each slice, of maxRanked: devices that move between slices would temporarily be in both or in neither.
//
// used reports whether a claim has a share of a shared GPU or partition; nil means that none has.
func SharedFirst(shared []gpu.Shape, used func(gpu.Shape) bool) []gpu.Shape {
	if used == nil {
		return shared
	}
	var all []gpu.Shape
	for published := range slices.Chunk(shared, maxRanked) {
		var untouched []gpu.Shape
		for _, s := range published {
			if used(s) {
				all = append(all, s)
			} else {
				untouched = append(untouched, s)
			}
		}
		all = append(all, untouched...)
	}
	return all
}
