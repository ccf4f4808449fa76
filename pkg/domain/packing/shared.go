// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// OrderShared returns shared GPUs, or shared partitions, in the order of OrderShapes, but with those in use before untouched ones:
// the scheduler takes the first with room, so that none is opened while an open one has room. The order of the open ones is fixed,
// so that it changes only when one gets its first share or loses its last. Those that spread come last, the one with the fewest
// claims first, and of such partitions the one of the GPU with the fewest.
//
// That holds within each slice, of maxRanked: devices that move between slices would temporarily be in both or in neither.
//
// claims is the number of claims of a shared GPU or partition, spread whether its shares are spread; nil stands for none.
func OrderShared(shared []gpu.Shape, claims func(gpu.Shape) int, spread func(gpu.Shape) bool) []gpu.Shape {
	if claims == nil {
		claims = func(gpu.Shape) int { return 0 }
	}
	if spread == nil {
		spread = func(gpu.Shape) bool { return false }
	}
	ofGPU := map[gpu.PCIAddress]int{}
	for _, s := range shared {
		ofGPU[s.GPU.PCI] += claims(s)
	}
	rank := func(s gpu.Shape) (group, claimed, alongside int) {
		switch n := claims(s); {
		case spread(s):
			return 2, n, ofGPU[s.GPU.PCI]
		case n == 0:
			return 1, 0, 0
		default:
			return 0, 0, 0
		}
	}
	var all []gpu.Shape
	for published := range slices.Chunk(shared, maxRanked) {
		published = slices.Clone(published)
		slices.SortStableFunc(published, func(a, b gpu.Shape) int {
			group, claimed, alongside := rank(a)
			group2, claimed2, alongside2 := rank(b)
			return cmp.Or(cmp.Compare(group, group2), cmp.Compare(claimed, claimed2), cmp.Compare(alongside, alongside2))
		})
		all = append(all, published...)
	}
	return all
}
