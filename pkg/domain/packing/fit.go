// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"slices"
)

// Request is a claim's request: a number of matching devices, or the first of some alternatives that can be had.
type Request struct {
	Count int
	Match Bits
	// Tolerated are tainted devices that it accepts.
	Tolerated Bits
	// Amounts are its consumption of each shared device's capacities; nil stands for all defaults. Devices that cannot give the
	// amount at all must not match.
	Amounts [][]int64
	// Constraints are those that its devices are under.
	Constraints []*Constraint
	// Alternatives are requests of which one is enough, the preferred first (KEP-4816). If there are any, the rest is unused.
	Alternatives []Request
}

// Constraint is one on an attribute of all devices of some requests: each of them must have it.
type Constraint struct {
	// Values are those of the attribute by device: equal ones have equal numbers, and 0 stands for none.
	Values []int
	// Distinct: no two devices may have the same value. Otherwise all must have the same.
	Distinct bool
}

// Any reports whether any device matches, whether or not it is free.
func (r *Request) Any() bool {
	return r.Match.Count() > 0 || slices.ContainsFunc(r.Alternatives, func(a Request) bool { return a.Any() })
}

// Matches reports whether a device matches, or one alternative.
func (r *Request) Matches(device int) bool {
	return r.Match.Has(device) || slices.ContainsFunc(r.Alternatives, func(a Request) bool { return a.Matches(device) })
}

// use is the request's use of a device.
func (r *Request) use(device int) Use {
	if r.Amounts == nil {
		return Use{Device: device}
	}
	return Use{Device: device, Amounts: r.Amounts[device]}
}

// searchSteps bounds the search: searches that may take the allocator seconds are not predicted.
const searchSteps = 5000

// ErrSearch is returned if the search was abandoned.
var ErrSearch = errors.New("too many combinations of devices to try")

// Fit returns the devices that the allocator would allocate for the requests of a pod's claims, in order: the first devices that
// fit, with backtracking over combinations (k8s.io/dynamic-resource-allocation/structured, allocateOne). The state does not change.
// The result is false if the requests do not fit.
func (s *State) Fit(requests ...Request) ([]Use, bool, error) {
	uses, _, ok, err := s.FitRanked(requests...)
	return uses, ok, err
}

// FitRanked is Fit. It also returns how many alternatives were passed over, for all requests together: kube-scheduler's score of
// a node is higher the fewer there are (pkg/scheduler/framework/plugins/dynamicresources, computeScore).
func (s *State) FitRanked(requests ...Request) (uses []Use, rank int, ok bool, err error) {
	f := fit{state: s, requests: requests, steps: searchSteps}
	ok = f.request(0)
	for _, u := range f.uses {
		s.change(u, -1)
	}
	switch {
	case ok:
		return f.uses, f.rank, true, nil
	case f.steps <= 0:
		return nil, 0, false, ErrSearch
	}
	return nil, 0, false, nil
}

// fit is a search in progress. It changes the state as it tries devices, but not the values of GPUs, which it does not need.
type fit struct {
	state    *State
	requests []Request
	uses     []Use
	rank     int
	steps    int
	// values are those of the devices that are under a constraint.
	values map[*Constraint][]int
}

// request completes a request, and all after it.
func (f *fit) request(n int) bool {
	if n == len(f.requests) {
		return true
	}
	r := &f.requests[n]
	if len(r.Alternatives) == 0 {
		return f.devices(n, r, 0, 0)
	}
	for i := range r.Alternatives {
		f.rank += i
		if f.devices(n, &r.Alternatives[i], 0, 0) {
			return true
		}
		f.rank -= i
		if f.steps <= 0 {
			return false
		}
	}
	return false
}

// devices completes a request, or the alternative of one, that has found some devices, starting at a device, and all requests after it.
func (f *fit) devices(n int, r *Request, found, from int) bool {
	if found == r.Count {
		return f.request(n + 1)
	}
	for i := r.Match.next(from); i >= 0; i = r.Match.next(i + 1) {
		u := r.use(i)
		if f.state.tainted.Has(i) && !r.Tolerated.Has(i) || !f.state.admits(u) || !f.allows(r, i) {
			continue
		}
		if f.steps--; f.steps <= 0 {
			return false
		}
		f.state.change(u, 1)
		f.uses = append(f.uses, u)
		f.constrain(r, i)
		if f.devices(n, r, found+1, i+1) {
			return true
		}
		if f.steps <= 0 {
			return false // FitRanked undoes what is in uses
		}
		f.state.change(u, -1)
		f.uses = f.uses[:len(f.uses)-1]
		for _, c := range r.Constraints {
			f.values[c] = f.values[c][:len(f.values[c])-1]
		}
	}
	return false
}

// allows reports whether constraints let a device join those of a request.
func (f *fit) allows(r *Request, device int) bool {
	for _, c := range r.Constraints {
		value, others := c.Values[device], f.values[c]
		if value == 0 || c.Distinct && slices.Contains(others, value) || !c.Distinct && len(others) > 0 && others[0] != value {
			return false
		}
	}
	return true
}

func (f *fit) constrain(r *Request, device int) {
	for _, c := range r.Constraints {
		if f.values == nil {
			f.values = map[*Constraint][]int{}
		}
		f.values[c] = append(f.values[c], c.Values[device])
	}
}
