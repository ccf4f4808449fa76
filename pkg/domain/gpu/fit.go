// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ProfileCount is the wanted number of partitions of a profile.
type ProfileCount struct {
	ProfileID int
	Count     int
}

// Fit finds places for partitions on the board, in order of start, regardless of other partitions. It keeps as many of the
// preferred places as possible, which are those of existing partitions; then it overlaps as few of the others as possible, as those
// would have to be destroyed first; then it keeps as many of the earlier places as possible, so that partitions do not move
// needlessly; then it fills the board from the top, large partitions first, like OrderShapes. It is deterministic.
//
// If they do not fit, the error says what would.
func (g *GPU) Fit(want []ProfileCount, prefer []Place, earlier ...Place) ([]Place, error) {
	groups, err := g.groups(want)
	if err != nil {
		return nil, err
	}
	f := newFitter(g, prefer, earlier)
	if places, ok := f.fit(groups); ok {
		return places, nil
	}
	return nil, f.misfit(groups)
}

// groups are the wanted partitions by profile, large ones first.
func (g *GPU) groups(want []ProfileCount) ([]ProfileCount, error) {
	counts := map[int]int{}
	for _, w := range want {
		p := g.MIG.Profile(w.ProfileID)
		switch {
		case len(g.MIG.offered()) == 0:
			return nil, fmt.Errorf("%s cannot be partitioned", article(g.ProductName))
		case p == nil || !p.InCatalog():
			return nil, fmt.Errorf("%s has no profile %d to offer: it has %s", article(g.ProductName), w.ProfileID,
				strings.Join(g.MIG.Catalog(), ", "))
		case w.Count < 0:
			return nil, fmt.Errorf("%d partitions of %s are wanted: want 0 or more", w.Count, p.Name)
		}
		counts[w.ProfileID] += w.Count
	}
	var groups []ProfileCount
	for _, p := range slices.Backward(g.MIG.Profiles) {
		if counts[p.ID] > 0 {
			groups = append(groups, ProfileCount{p.ID, counts[p.ID]})
		}
	}
	return groups, nil
}

// Profile returns the board's profile with an ID, or nil.
func (m *MIG) Profile(id int) *Profile {
	for i := range m.Profiles {
		if m.Profiles[i].ID == id {
			return &m.Profiles[i]
		}
	}
	return nil
}

// Catalog are the names of the profiles that a policy can offer on the board, by size.
func (m *MIG) Catalog() []string {
	var names []string
	for _, p := range m.offered() {
		names = append(names, p.Name)
	}
	return names
}

// fitter searches for places on a board.
type fitter struct {
	g *GPU
	// left is the remainder of each of the board's counters.
	left []int64
	// candidates are the places of each profile, by ID, from the top down.
	candidates map[int][]candidate
}

// candidate is a possible place of a partition.
type candidate struct {
	place Place
	// takes is its consumption of counters, by index.
	takes []int64
	// preferred places are to be kept; blocked ones overlap places that are not. earlier ones had partitions before.
	preferred, blocked, earlier bool
}

func newFitter(g *GPU, prefer, earlier []Place) *fitter {
	f := &fitter{g: g, candidates: map[int][]candidate{}}
	index := map[string]int{}
	counters := g.Counters()
	for i, c := range counters {
		index[c.Name] = i
		f.left = append(f.left, c.Value)
	}
	for _, p := range g.MIG.offered() {
		for _, at := range slices.Backward(p.Placements) {
			c := candidate{place: Place{p.ID, at}, takes: make([]int64, len(f.left))}
			for _, taken := range (Shape{GPU: g, Profile: p, Placement: at}).ConsumesOf(counters) {
				c.takes[index[taken.Name]] += taken.Value
			}
			c.preferred, c.earlier = slices.Contains(prefer, c.place), slices.Contains(earlier, c.place)
			c.blocked = slices.ContainsFunc(prefer, func(q Place) bool { return q != c.place && q.Placement.Overlaps(at) })
			f.candidates[p.ID] = append(f.candidates[p.ID], c)
		}
	}
	return f
}

// take consumes a candidate's counters, or returns them; it reports whether they sufficed.
func (f *fitter) take(c *candidate, times int64) bool {
	enough := true
	for i, n := range c.takes {
		f.left[i] -= n * times
		enough = enough && f.left[i] >= 0
	}
	return enough
}

// attempt is a choice of places.
type attempt struct {
	places                 []Place
	kept, blocked, earlier int
}

// worse reports whether a choice is no better than another, even with more preferred and earlier places to come.
func (a attempt) worse(than *attempt, preferred, earlier int) bool {
	return cmp.Or(cmp.Compare(a.kept+preferred, than.kept), cmp.Compare(than.blocked, a.blocked),
		cmp.Compare(a.earlier+earlier, than.earlier)) <= 0
}

// fit finds the best choice of places for all groups.
func (f *fitter) fit(groups []ProfileCount) ([]Place, bool) {
	for _, w := range groups {
		if w.Count > len(f.candidates[w.ProfileID]) {
			return nil, false
		}
	}
	var best *attempt
	f.search(groups, 0, attempt{}, &best)
	if best == nil {
		return nil, false
	}
	slices.SortFunc(best.places, func(a, b Place) int { return a.Placement.Start - b.Placement.Start })
	return best.places, true
}

// search tries all choices for the remaining groups; those of the first group from a candidate on.
func (f *fitter) search(groups []ProfileCount, from int, now attempt, best **attempt) {
	if *best != nil {
		preferred, earlier := 0, 0
		for _, w := range groups {
			preferred += min(w.Count, f.number(w.ProfileID, func(c *candidate) bool { return c.preferred }))
			earlier += min(w.Count, f.number(w.ProfileID, func(c *candidate) bool { return c.earlier }))
		}
		if now.worse(*best, preferred, earlier) {
			return
		}
	}
	if len(groups) == 0 {
		now.places = slices.Clone(now.places)
		*best = &now
		return
	}
	w, rest := groups[0], groups[1:]
	candidates := f.candidates[w.ProfileID]
	for i := from; i <= len(candidates)-w.Count; i++ {
		c := &candidates[i]
		if f.take(c, 1) {
			next := attempt{append(now.places, c.place), now.kept + number(c.preferred), now.blocked + number(c.blocked),
				now.earlier + number(c.earlier)}
			if w.Count == 1 {
				f.search(rest, 0, next, best)
			} else {
				f.search(append([]ProfileCount{{w.ProfileID, w.Count - 1}}, rest...), i+1, next, best)
			}
		}
		f.take(c, -1)
	}
}

// number is the number of places of a profile that are of a kind.
func (f *fitter) number(profile int, is func(c *candidate) bool) int {
	n := 0
	for i := range f.candidates[profile] {
		n += number(is(&f.candidates[profile][i]))
	}
	return n
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// misfit reports that partitions do not fit, which of them do, large ones first, and what else fits.
func (f *fitter) misfit(groups []ProfileCount) error {
	var fitting []ProfileCount
	all := 0
	for _, w := range groups {
		all += w.Count
		if n := f.most(fitting, w.ProfileID, w.Count); n > 0 {
			fitting = append(fitting, ProfileCount{w.ProfileID, n})
		}
	}
	var free []string
	for _, p := range f.g.MIG.offered() {
		if n := f.most(fitting, p.ID, len(f.candidates[p.ID])); n > 0 {
			free = append(free, fmt.Sprintf("%s ×%d", p.Name, n))
		}
	}
	if len(free) == 0 {
		free = []string{"none"}
	}
	do := "do not fit"
	if all == 1 {
		do = "does not fit"
	}
	if len(fitting) == 0 { // not even one of any profile fits, which no board has
		return errors.New(f.words(groups) + " " + do + " " + article(f.g.ProductName))
	}
	return fmt.Errorf("%s %s %s; free after %s: %s", f.words(groups), do, article(f.g.ProductName),
		f.words(fitting), strings.Join(free, " or "))
}

// most is the number of partitions of a profile that still fit alongside others, up to a limit.
func (f *fitter) most(others []ProfileCount, profile, limit int) int {
	n := 0
	for n < limit {
		more := slices.Clone(others)
		at := slices.IndexFunc(more, func(w ProfileCount) bool { return w.ProfileID == profile })
		if at < 0 {
			more, at = append(more, ProfileCount{ProfileID: profile}), len(more)
		}
		more[at].Count += n + 1
		if _, ok := f.fit(more); !ok {
			break
		}
		n++
	}
	return n
}

// words formats partitions: "3g.40gb ×2 and 1g.10gb ×1".
func (f *fitter) words(groups []ProfileCount) string {
	var each []string
	for _, w := range groups {
		each = append(each, fmt.Sprintf("%s ×%d", f.g.MIG.ProfileName(w.ProfileID), w.Count))
	}
	if last := len(each) - 1; last > 0 {
		return strings.Join(each[:last], ", ") + " and " + each[last]
	}
	return strings.Join(each, "")
}

// article prefixes a product with "a" or "an".
func article(product string) string {
	if product == "" {
		return "the GPU"
	}
	if strings.HasPrefix(product, "NV") || strings.ContainsRune("AEIO", rune(product[0])) {
		return "an " + product
	}
	return "a " + product
}
