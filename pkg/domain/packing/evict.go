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

// Plus is the loss of two evictions at once.
func (l Loss) Plus(o Loss) Loss {
	if l.Pods == 0 || o.Pods == 0 {
		if l.Pods == 0 {
			return o
		}
		return l
	}
	return Loss{Breaks: l.Breaks + o.Breaks, Priority: max(l.Priority, o.Priority), Units: l.Units + o.Units, Pods: l.Pods + o.Pods,
		Since: min(l.Since, o.Since)}
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
	e := &eviction{model: s.model, state: s, holders: holders, budgets: budgets, requests: requests}
	free := s.Clone()
	if _, fits, err := free.Fit(requests...); err != nil || fits {
		return nil, e.loss(nil), fits, err
	}
	allowed, fits, err := e.level(free)
	if err != nil || !fits {
		return nil, Loss{}, false, err
	}
	for _, order := range e.orders(allowed) {
		found, err := e.keep(free, order)
		if err != nil {
			return nil, Loss{}, false, err
		}
		if l := e.loss(found); victims == nil || l.Compare(loss) < 0 {
			victims, loss = found, l
		}
	}
	victims, loss, err = e.improve(victims, loss)
	slices.Sort(victims)
	return victims, loss, true, err
}

// eviction is a search for victims.
type eviction struct {
	model    *Model
	state    *State
	holders  []Holder
	budgets  []int
	requests []Request
}

// loss of evicting some of the holders, by their indices.
func (e *eviction) loss(victims []int) Loss {
	l := Loss{Priority: math.MinInt32, Since: math.MaxInt64}
	left := slices.Clone(e.budgets)
	for _, v := range victims {
		h := &e.holders[v]
		for _, b := range h.Budgets {
			if left[b]--; left[b] < 0 {
				l.Breaks++
			}
		}
		l.Priority = max(l.Priority, h.Priority)
		l.Units += e.model.Units(h.Uses)
		l.Pods += h.Pods
		l.Since = min(l.Since, h.Since)
	}
	return l
}

// improve spares each victim in turn, as long as that lessens the loss.
func (e *eviction) improve(victims []int, loss Loss) ([]int, Loss, error) {
	for at := 0; at < len(victims) && len(victims) <= mostImproved; {
		free := e.state.Clone()
		var others []int
		for i := range e.holders {
			if i != victims[at] {
				shift(free, -1, e.holders[i].Uses)
				others = append(others, i)
			}
		}
		_, fits, err := free.Fit(e.requests...)
		if err != nil {
			return nil, Loss{}, err
		}
		better := false
		if fits {
			for _, order := range e.orders(others)[:2] {
				found, err := e.keep(free, order)
				if err != nil {
					return nil, Loss{}, err
				}
				if l := e.loss(found); l.Compare(loss) < 0 {
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
func (e *eviction) level(free *State) (released []int, fits bool, err error) {
	var order []int
	for i := range e.holders {
		order = append(order, i)
	}
	compare := func(a, b int) int {
		x, y := &e.holders[a], &e.holders[b]
		return cmp.Or(cmp.Compare(x.breaks(e.budgets), y.breaks(e.budgets)), cmp.Compare(x.Priority, y.Priority))
	}
	slices.SortStableFunc(order, compare)
	for at, i := range order {
		shift(free, -1, e.holders[i].Uses)
		released = append(released, i)
		if at+1 < len(order) && compare(i, order[at+1]) == 0 {
			continue
		}
		if _, fits, err := free.Fit(e.requests...); err != nil || fits {
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
func (e *eviction) orders(allowed []int) [][]int {
	least := func(last func(h *Holder) int) []int {
		order := slices.Clone(allowed)
		slices.SortStableFunc(order, func(a, b int) int {
			x, y := &e.holders[a], &e.holders[b]
			return cmp.Or(cmp.Compare(y.breaks(e.budgets), x.breaks(e.budgets)), cmp.Compare(y.Priority, x.Priority), cmp.Compare(last(x), last(y)),
				cmp.Compare(e.model.Units(y.Uses), e.model.Units(x.Uses)), cmp.Compare(y.Pods, x.Pods), cmp.Compare(x.Since, y.Since),
				cmp.Compare(a, b))
		})
		return order
	}
	value := make([]int, len(e.model.GPUs)) // what is lost of a GPU if all of it is evicted
	for _, i := range allowed {
		for _, u := range e.holders[i].Uses {
			value[e.model.Devices[u.Device].GPU] += e.model.Units([]Use{u})
		}
	}
	on := func(h *Holder, gpu int) bool {
		return slices.ContainsFunc(h.Uses, func(u Use) bool { return e.model.Devices[u.Device].GPU == gpu })
	}
	all := [][]int{
		least(func(*Holder) int { return 0 }),
		least(func(h *Holder) int { // the most valuable GPUs first
			most := 0
			for _, u := range h.Uses {
				most = max(most, value[e.model.Devices[u.Device].GPU])
			}
			return -most
		}),
	}
	for g := range e.model.GPUs {
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
func shift(s *State, by int, uses []Use) {
	for _, u := range uses {
		s.change(u, by)
	}
}

// keep allocates released holders again, in order, as long as the requests fit, and returns those that it cannot keep. The state is
// as before when it returns.
func (e *eviction) keep(s *State, order []int) (victims []int, err error) {
	var kept []int
	defer func() {
		for _, i := range kept {
			shift(s, -1, e.holders[i].Uses)
		}
	}()
	for _, i := range order {
		shift(s, 1, e.holders[i].Uses)
		_, fits, err := s.Fit(e.requests...)
		if err != nil || !fits {
			shift(s, -1, e.holders[i].Uses)
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
