// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// allocate picks devices for a claim as a scheduler may: such as the counters admit alongside what is allocated, and no
// tainted ones. Now and then a claim looks at a partition of another.
func (w *worker) allocate() []string {
	used := &counting{w.gpus, map[*gpu.GPU][]gpu.Shape{}, map[string]int64{}, map[*gpu.GPU]string{}}
	var looked []string
	for _, c := range w.truth.Claims {
		for _, d := range c.Devices {
			s, ok := w.gpus.FindShape(baseName(d))
			if !ok || d == admin(s.Name()) {
				continue
			}
			used.take(s, d)
			// One of the layout's may go with the layout when its claim does, and who looks at it is refused then.
			if s.IsPartition() && c.Prepared && !c.Ending && s.GPU != &w.gpus.GPUs[layoutGPU] {
				looked = append(looked, baseName(d))
			}
		}
	}
	if len(looked) > 0 && w.random.IntN(10) == 0 {
		return []string{admin(looked[w.random.IntN(len(looked))])}
	}
	occupied := w.Partitions.Occupied()
	var devices []string
	for range 1 + w.random.IntN(3) {
		g := &w.gpus.GPUs[w.random.IntN(workGPUs+1)]
		if len(w.gpus.Shapes(g)) == 0 {
			continue
		}
		s := w.pick(g)
		if slices.Contains(occupied, s.Name()) || w.gpus.Offer(g).IsWithdrawn(s) || !used.fits(s) {
			continue
		}
		name := s.Name()
		if s.Share == gpu.TimeSlice && !s.IsPartition() && w.random.IntN(2) == 0 {
			// One GPU has one interval; who asks for another than the first is refused, which is tested elsewhere.
			name += "!" + cmp.Or(used.interval[s.GPU], []string{"Short", "Medium", "Long"}[w.random.IntN(3)])
		}
		if s.IsPartition() && !s.IsShare() && w.random.IntN(4) == 0 {
			name += "!mps" // for the claim alone
		}
		if s.IsWhole() {
			name += []string{"", "!mps", "!mps", "!Short", "!Long"}[w.random.IntN(5)] // for the claim alone
		}
		used.take(s, name)
		devices = append(devices, name)
	}
	return devices
}

// pick draws a shape of a GPU, among which shares and the whole would be rare.
func (w *worker) pick(g *gpu.GPU) gpu.Shape {
	switch dice := w.random.IntN(10); {
	case g == &w.gpus.GPUs[layoutGPU]:
		shapes := w.gpus.Shapes(g)
		return shapes[w.random.IntN(len(shapes))]
	case dice < 2:
		return g.Whole()
	case dice < 4:
		return gpu.Shape{GPU: g, Share: gpu.TimeSlice}
	case dice < 6:
		return gpu.Shape{GPU: g, Share: gpu.MPS}
	case dice < 8: // of partitions, so that claims meet on one
		shared := slices.DeleteFunc(w.gpus.Shapes(g), func(s gpu.Shape) bool { return !s.IsPartition() || !s.IsShare() })
		return shared[w.random.IntN(len(shared))]
	default:
		shapes := w.gpus.Shapes(g)
		return shapes[w.random.IntN(len(shapes))]
	}
}

// counting is a scheduler's count of what is allocated.
type counting struct {
	node     *policy.Node
	taken    map[*gpu.GPU][]gpu.Shape // each shared device once
	shares   map[string]int64         // taken, by device
	interval map[*gpu.GPU]string      // that a claim asks for
}

// fits reports whether a shape can be had alongside what is taken. A shared device consumes its counters once.
func (u *counting) fits(s gpu.Shape) bool {
	if n := u.shares[s.Name()]; n > 0 {
		return n < u.node.Offer(s.GPU).Sharing(s).Shares
	}
	return gpu.Coexist(append(slices.Clone(u.taken[s.GPU]), s), s.GPU.Counters())
}

// take counts a shape in that is allocated by a name, which may have an interval.
func (u *counting) take(s gpu.Shape, name string) {
	if u.shares[s.Name()] == 0 {
		u.taken[s.GPU] = append(u.taken[s.GPU], s)
	}
	if s.IsShare() {
		u.shares[s.Name()]++
		if _, interval, ok := strings.Cut(name, "!"); ok {
			u.interval[s.GPU] = interval
		}
	}
}
