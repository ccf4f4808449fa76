// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"slices"
)

// Holder has allocations that end together: those of a pod, or of all pods that share a claim.
type Holder struct {
	Uses []Use
	// Priority is the highest of its pods, Pods their number.
	Priority int32
	Pods     int
	// Budgets are the PodDisruptionBudgets that cover its pods, by their number, once for each pod.
	Budgets []int
	// Since is when the first of its pods started, in seconds since 1970.
	Since int64
}

// Loss is the cost of an eviction, the most important part first.
type Loss struct {
	// Breaks are the evictions that a PodDisruptionBudget does not allow.
	Breaks int
	// Priority is the highest of an evicted pod.
	Priority int32
	// Units are the placement units of the evicted pods' devices, Pods their number.
	Units, Pods int
	// Since is when the first of them started.
	Since int64
}

// Compare is negative if a loss is less than another.
func (l Loss) Compare(o Loss) int {
	return cmp.Or(cmp.Compare(l.Breaks, o.Breaks), cmp.Compare(l.Priority, o.Priority), cmp.Compare(l.Units, o.Units),
		cmp.Compare(l.Pods, o.Pods), cmp.Compare(o.Since, l.Since))
}

// loss of evicting some of the holders, by their indices.
func (s *State) loss(holders []Holder, budgets, victims []int) Loss {
	l := Loss{Priority: math.MinInt32, Since: math.MaxInt64}
	left := slices.Clone(budgets)
	for _, v := range victims {
		h := &holders[v]
		for _, b := range h.Budgets {
			if left[b]--; left[b] < 0 {
				l.Breaks++
			}
		}
		l.Priority = max(l.Priority, h.Priority)
		l.Units += s.model.Units(h.Uses)
		l.Pods += h.Pods
		l.Since = min(l.Since, h.Since)
	}
	return l
}

// Units are the placement units of devices. A share counts like the smallest partition of its GPU.
func (m *Model) Units(uses []Use) int {
	n := 0
	for _, u := range uses {
		if d := &m.Devices[u.Device]; d.Shared {
			n++
		} else {
			n += d.Size
		}
	}
	return n
}

// mostImproved bounds the victims for which an eviction is improved.
const mostImproved = 8

// Evict finds holders whose release makes room for requests, by their indices, at the least loss that a greedy search finds; false
// if even the release of all of them makes none. Budgets are how many pods each PodDisruptionBudget lets go. The state does not
// change. Without victims the requests fit as it is.
func (s *State) Evict(holders []Holder, budgets []int, requests ...Request) (victims []int, loss Loss, fits bool, err error) {
	free := s.Clone()
	if _, fits, err := free.Fit(requests...); err != nil || fits {
		return nil, s.loss(holders, budgets, nil), fits, err
	}
	allowed, fits, err := free.level(holders, budgets, requests)
	if err != nil || !fits {
		return nil, Loss{}, false, err
	}
	for _, order := range s.orders(holders, budgets, allowed) {
		found, err := free.keep(holders, order, requests)
		if err != nil {
			return nil, Loss{}, false, err
		}
		if l := s.loss(holders, budgets, found); victims == nil || l.Compare(loss) < 0 {
			victims, loss = found, l
		}
	}
	victims, loss, err = s.improve(holders, budgets, victims, loss, requests)
	slices.Sort(victims)
	return victims, loss, true, err
}

// improve spares each victim in turn, as long as that lessens the loss.
func (s *State) improve(holders []Holder, budgets, victims []int, loss Loss, requests []Request) ([]int, Loss, error) {
	for at := 0; at < len(victims) && len(victims) <= mostImproved; {
		free := s.Clone()
		var others []int
		for i := range holders {
			if i != victims[at] {
				free.shift(-1, holders[i].Uses)
				others = append(others, i)
			}
		}
		_, fits, err := free.Fit(requests...)
		if err != nil {
			return nil, Loss{}, err
		}
		better := false
		if fits {
			for _, order := range s.orders(holders, budgets, others)[:2] {
				found, err := free.keep(holders, order, requests)
				if err != nil {
					return nil, Loss{}, err
				}
				if l := s.loss(holders, budgets, found); l.Compare(loss) < 0 {
					victims, loss, better = found, l, true
				}
			}
		}
		if at++; better {
			at = 0
		}
	}
	return victims, loss, nil
}

// level releases the holders of the lowest priorities that suffice: none that breaks budgets, if that suffices. It returns them.
func (s *State) level(holders []Holder, budgets []int, requests []Request) (released []int, fits bool, err error) {
	var order []int
	for i := range holders {
		order = append(order, i)
	}
	compare := func(a, b int) int {
		return cmp.Or(cmp.Compare(holders[a].breaks(budgets), holders[b].breaks(budgets)), cmp.Compare(holders[a].Priority, holders[b].Priority))
	}
	slices.SortStableFunc(order, compare)
	for at, i := range order {
		s.shift(-1, holders[i].Uses)
		released = append(released, i)
		if at+1 < len(order) && compare(i, order[at+1]) == 0 {
			continue
		}
		if _, fits, err := s.Fit(requests...); err != nil || fits {
			return released, fits, err
		}
	}
	return nil, false, nil
}

// breaks is how many evictions of a holder's pods no budget allows, if they are the only ones.
func (h *Holder) breaks(budgets []int) int {
	n := 0
	for i, b := range h.Budgets {
		same := 0
		for _, other := range h.Budgets[:i+1] {
			if other == b {
				same++
			}
		}
		if same > budgets[b] {
			n++
		}
	}
	return n
}

// orders are those in which holders are kept: violations of budgets and high priorities are avoided first, then the loss of units,
// then that of old pods. Each GPU is once the last of which anything is kept, so that what is evicted is on as few as possible.
func (s *State) orders(holders []Holder, budgets, allowed []int) [][]int {
	least := func(last func(h *Holder) int) []int {
		order := slices.Clone(allowed)
		slices.SortStableFunc(order, func(a, b int) int {
			x, y := &holders[a], &holders[b]
			return cmp.Or(cmp.Compare(y.breaks(budgets), x.breaks(budgets)), cmp.Compare(y.Priority, x.Priority), cmp.Compare(last(x), last(y)),
				cmp.Compare(s.model.Units(y.Uses), s.model.Units(x.Uses)), cmp.Compare(y.Pods, x.Pods), cmp.Compare(x.Since, y.Since),
				cmp.Compare(a, b))
		})
		return order
	}
	value := make([]int, len(s.model.GPUs)) // what is lost of a GPU if all of it is evicted
	for _, i := range allowed {
		for _, u := range holders[i].Uses {
			value[s.model.Devices[u.Device].GPU] += s.model.Units([]Use{u})
		}
	}
	on := func(h *Holder, gpu int) bool {
		return slices.ContainsFunc(h.Uses, func(u Use) bool { return s.model.Devices[u.Device].GPU == gpu })
	}
	all := [][]int{
		least(func(*Holder) int { return 0 }),
		least(func(h *Holder) int { // the most valuable GPUs first
			most := 0
			for _, u := range h.Uses {
				most = max(most, value[s.model.Devices[u.Device].GPU])
			}
			return -most
		}),
	}
	for g := range s.model.GPUs {
		all = append(all, least(func(h *Holder) int {
			if on(h, g) {
				return 1
			}
			return 0
		}))
	}
	return all
}

// shift allocates or releases devices of a copy of a state, whose values of GPUs nobody needs.
func (s *State) shift(by int, uses []Use) {
	for _, u := range uses {
		s.change(u, by)
	}
}

// keep allocates released holders again, in order, as long as the requests fit, and returns those that it cannot keep. The state is
// as before when it returns.
func (s *State) keep(holders []Holder, order []int, requests []Request) (victims []int, err error) {
	var kept []int
	defer func() {
		for _, i := range kept {
			s.shift(-1, holders[i].Uses)
		}
	}()
	for _, i := range order {
		s.shift(1, holders[i].Uses)
		_, fits, err := s.Fit(requests...)
		if err != nil || !fits {
			s.shift(-1, holders[i].Uses)
			victims = append(victims, i)
			if err != nil {
				return nil, err
			}
			continue
		}
		kept = append(kept, i)
	}
	return victims, nil
}
