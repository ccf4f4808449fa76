// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Values of the attribute "type".
const (
	typeGPU          = string(gpu.TypeGPU)
	typeMIG          = string(gpu.TypeMIG)
	typeTimeSlice    = string(gpu.TypeTimeSlice)
	typeMPS          = string(gpu.TypeMPS)
	typeMIGTimeSlice = string(gpu.TypeMIGTimeSlice)
	typeMIGMPS       = string(gpu.TypeMIGMPS)
)

func (s *Shape) isPartition() bool { return s.Placement != nil }

// isShared reports whether several claims can be allocated the shape at once.
func (s *Shape) isShared() bool { return s.Total != nil }

// isAllocated reports whether a claim is allocated the shape or a part of it.
func (s *Shape) isAllocated() bool {
	return slices.ContainsFunc(s.Claims, func(h Claim) bool { return !h.AdminAccess })
}

// closed reports whether a taint excludes new claims.
func (s *Shape) closed() bool {
	return slices.ContainsFunc(s.Taints, func(t Taint) bool { return t.Closes() })
}

// isWithdrawn reports whether the shape is published only until its claims end.
func (s *Shape) isWithdrawn() bool {
	return slices.ContainsFunc(s.Taints, func(t Taint) bool { return t.Withdrawn() })
}

// room is how many more claims fit on a shared GPU or partition, each with the default amounts; 1 where only a smaller claim fits.
func (s *Shape) room() int64 {
	if s.Used == nil {
		return s.fit(*s.Total, s.usual)
	}
	left := Amounts{s.Total.Shares - s.Used.Shares, s.Total.MemoryBytes - s.Used.MemoryBytes, s.Total.CoresPercent - s.Used.CoresPercent}
	return max(s.fit(left, s.usual), min(s.fit(left, s.least), 1))
}

// fit is how many claims of equal amounts fit what is left. Amounts that a GPU does not count limit nothing.
func (s *Shape) fit(left, each Amounts) int64 {
	fit := left.Shares / max(each.Shares, 1)
	for _, a := range []struct{ total, left, each int64 }{
		{s.Total.MemoryBytes, left.MemoryBytes, each.MemoryBytes}, {s.Total.CoresPercent, left.CoresPercent, each.CoresPercent},
	} {
		if a.total > 0 && a.each > 0 {
			fit = min(fit, a.left/a.each)
		}
	}
	return max(fit, 0)
}

func (s *Shape) use(has Amounts) {
	if s.Used == nil {
		s.Used = &Amounts{}
	}
	s.Used.Shares += has.Shares
	s.Used.MemoryBytes += has.MemoryBytes
	s.Used.CoresPercent += has.CoresPercent
}

// complete derives the states of shapes, and what is offered and free. full are the GPU's counters, left those that are not
// consumed. A state that is already set stays.
func (g *GPU) complete(full, left resourcepool.Stock) {
	for i := range g.Shapes {
		s := &g.Shapes[i]
		switch {
		case s.State != "":
		case s.isShared() && s.isAllocated() && s.room() > 0 && !s.closed():
			s.State = Shared
		case s.isAllocated():
			s.State = Allocated
		case s.closed():
			s.State = Tainted
		case s.ready || left.Fits(s.needs):
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

// count returns how many shapes of each kind fit the stock: of all shapes, or of those that are available now. Counts of
// partitions are per profile.
func (g *GPU) count(from resourcepool.Stock, now bool) []Amount {
	amounts := []Amount{}
	left := map[string]resourcepool.Stock{}
	for i := range g.Shapes {
		s := &g.Shapes[i]
		if now && s.State != Free && s.State != Shared || s.isWithdrawn() {
			continue
		}
		if kind := s.Type + s.Profile; s.isPartition() && (!now || !s.ready && !s.isAllocated()) {
			if left[kind] == nil {
				left[kind] = maps.Clone(from)
			}
			if !left[kind].Fits(s.needs) {
				continue
			}
			left[kind].Take(s.needs)
		}
		n := int64(1)
		switch {
		case s.isShared() && now:
			n = s.room()
		case s.isShared():
			n = s.fit(*s.Total, s.usual)
		}
		at := slices.IndexFunc(amounts, func(a Amount) bool { return a.Type == s.Type && a.Profile == s.Profile })
		if at < 0 {
			at = len(amounts)
			amounts = append(amounts, Amount{Type: s.Type, Profile: s.Profile})
		}
		amounts[at].Count += n
	}
	amounts = slices.DeleteFunc(amounts, func(a Amount) bool { return a.Count <= 0 })
	InOrder(amounts)
	return amounts
}
