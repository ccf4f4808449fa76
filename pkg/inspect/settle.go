// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"slices"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// Values of the attribute "type".
const (
	typeGPU       = "gpu"
	typeMIG       = "mig"
	typeTimeSlice = string(gpu.TimeSlice)
	typeMPS       = string(gpu.MPS)
)

// stock is how much there is, or is needed, of each counter.
type stock map[string]int64

// fits tells whether all that is needed is there.
func (s stock) fits(needs stock) bool {
	for name, n := range needs {
		if s[name] < n {
			return false
		}
	}
	return true
}

func (s stock) take(needs stock) {
	for name, n := range needs {
		s[name] -= n
	}
}

func (s stock) clone() stock {
	c := make(stock, len(s))
	for name, n := range s {
		c[name] = n
	}
	return c
}

// isPartition tells a partition from what takes the whole GPU.
func (s *Shape) isPartition() bool { return s.Placement != nil }

// isShared tells whether many claims can have the shape at once.
func (s *Shape) isShared() bool { return s.Total != nil }

// isHeld tells whether a claim has the shape, or a part of it.
func (s *Shape) isHeld() bool {
	return slices.ContainsFunc(s.HeldBy, func(h Holder) bool { return !h.AdminAccess })
}

// closed tells whether a taint keeps new claims away.
func (s *Shape) closed() bool {
	return slices.ContainsFunc(s.Taints, func(t Taint) bool { return t.Effect != effectNone })
}

// isWithdrawn tells whether it is there only until those who hold some of it are gone.
func (s *Shape) isWithdrawn() bool {
	return slices.ContainsFunc(s.Taints, func(t Taint) bool { return t.Key == publish.TaintWithdrawn })
}

// room is how many more claims can have a part of a shared GPU, each taking what it gets if it does not say.
func (s *Shape) room() int64 {
	room := s.Total.Shares
	if s.Used != nil {
		room -= s.Used.Shares
		if s.Total.MemoryBytes > 0 && s.Total.MemoryBytes-s.Used.MemoryBytes < s.least.MemoryBytes ||
			s.Total.CoresPercent > 0 && s.Total.CoresPercent-s.Used.CoresPercent < s.least.CoresPercent {
			return 0
		}
	}
	return max(room, 0)
}

func (s *Shape) use(has Amounts) {
	if s.Used == nil {
		s.Used = &Amounts{}
	}
	s.Used.Shares += has.Shares
	s.Used.MemoryBytes += has.MemoryBytes
	s.Used.CoresPercent += has.CoresPercent
}

// settle fills in what follows from who holds what: the states of shapes, and what is offered and free. full is what the
// GPU has of counters, left what is not taken of them. Shapes whose state is set already keep it.
func (g *GPU) settle(full, left stock) {
	for i := range g.Shapes {
		s := &g.Shapes[i]
		switch {
		case s.State != "":
		case s.isShared() && s.isHeld() && s.room() > 0 && !s.closed():
			s.State = Shared
		case s.isHeld():
			s.State = Held
		case s.closed():
			s.State = Tainted
		case s.ready || left.fits(s.needs):
			s.State = Free
		default:
			s.State = Blocked
		}
	}
	g.Offers, g.Free = g.count(full, false), g.count(left, true)
	slices.SortStableFunc(g.Partitions, func(a, b Partition) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.ProfileID, b.ProfileID))
	})
}

// count is how many shapes of each kind the stock allows: of all, or of those that can be had now. Of partitions it is as
// many of a profile as can be there at once.
func (g *GPU) count(from stock, now bool) []Amount {
	amounts := []Amount{}
	left := map[string]stock{}
	for i := range g.Shapes {
		s := &g.Shapes[i]
		if now && s.State != Free && s.State != Shared || s.isWithdrawn() {
			continue
		}
		n := int64(1)
		switch {
		case s.isShared() && now:
			n = s.room()
		case s.isShared():
			n = s.Total.Shares
		case s.isPartition() && (!now || !s.ready):
			if left[s.Profile] == nil {
				left[s.Profile] = from.clone()
			}
			if !left[s.Profile].fits(s.needs) {
				continue
			}
			left[s.Profile].take(s.needs)
		}
		at := slices.IndexFunc(amounts, func(a Amount) bool { return a.Type == s.Type && a.Profile == s.Profile })
		if at < 0 {
			at = len(amounts)
			amounts = append(amounts, Amount{Type: s.Type, Profile: s.Profile})
		}
		amounts[at].Count += n
	}
	return slices.DeleteFunc(amounts, func(a Amount) bool { return a.Count <= 0 })
}
