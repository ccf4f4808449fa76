// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
)

// Request is a claim's request: a number of matching devices.
type Request struct {
	Count int
	Match Bits
	// Tolerated are tainted devices that it accepts.
	Tolerated Bits
	// Amounts are its consumption of each shared device's capacities; nil stands for all defaults. Devices that cannot give the
	// amount at all must not match.
	Amounts [][]int64
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

// fit is a search in progress. It changes the state as it tries devices, but not the values of GPUs, which it does not need.
type fit struct {
	state    *State
	requests []Request
	uses     []Use
	steps    int
}

// try completes a request that has found some devices, starting at a device, and all requests after it.
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
