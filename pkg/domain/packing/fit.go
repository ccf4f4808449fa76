// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
)

// Request is what a claim asks for: so many devices of those that match.
type Request struct {
	Count int
	Match Bits
	// Tolerated are tainted devices that it takes nevertheless.
	Tolerated Bits
	// Amounts are what it consumes of each shared device's capacities; nil stands for the defaults of all. Devices that
	// cannot give the amount at all must not match.
	Amounts [][]int64
}

// use is that of a device by the request.
func (r *Request) use(device int) Use {
	if r.Amounts == nil {
		return Use{Device: device}
	}
	return Use{Device: device, Amounts: r.Amounts[device]}
}

// searchSteps bound the search: what the allocator may take seconds for is not predicted.
const searchSteps = 5000

// ErrSearch is returned where the search was given up.
var ErrSearch = errors.New("too many combinations of devices to try")

// Fit is what the allocator would allocate for the requests of a pod's claims, in their order: the first devices that fit,
// with backtracking over combinations (k8s.io/dynamic-resource-allocation/structured, allocateOne). The state stays as it
// is. Requests that do not fit give false.
func (s *State) Fit(requests ...Request) ([]Use, bool, error) {
	f := fit{state: s, requests: requests, steps: searchSteps}
	ok := f.try(0, 0, 0)
	for _, u := range f.uses {
		s.change(u, -1)
	}
	if !ok && f.steps <= 0 {
		return nil, false, ErrSearch
	}
	if !ok {
		return nil, false, nil
	}
	return f.uses, true, nil
}

// fit is a search under way. What it tries is in the state; the values of GPUs are not, as nothing asks for them.
type fit struct {
	state    *State
	requests []Request
	uses     []Use
	steps    int
}

// try finds devices for a request of which some are found already, from a device on, and for all requests after it.
func (f *fit) try(request, found, from int) bool {
	if request == len(f.requests) {
		return true
	}
	r := &f.requests[request]
	if found == r.Count {
		return f.try(request+1, 0, 0)
	}
	for i := r.Match.next(from); i >= 0; i = r.Match.next(i + 1) {
		u := r.use(i)
		if f.state.tainted.Has(i) && !r.Tolerated.Has(i) || !f.state.admits(u) {
			continue
		}
		if f.steps--; f.steps <= 0 {
			return false
		}
		f.state.change(u, 1)
		f.uses = append(f.uses, u)
		if f.try(request, found+1, i+1) {
			return true
		}
		if f.steps <= 0 {
			return false // Fit undoes what is in uses
		}
		f.state.change(u, -1)
		f.uses = f.uses[:len(f.uses)-1]
	}
	return false
}
