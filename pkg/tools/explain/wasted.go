// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// chance says whether devices are MPS shares.
type chance int

const (
	never chance = iota
	maybe
	always
)

// given are the devices that a container gets by a request of a claim, or as an extended resource.
type given struct {
	// words name them. claim is the pod's name of their claim; empty for an extended resource.
	words, claim string
	// several is set where they are, or can be, more than one.
	several bool
	mps     chance
}

// wasted says what a container gets in vain beside an MPS share; empty for nothing. A CUDA program connects to one MPS server, whose pipes
// have one path in containers, and finds the only device that this server has, with the limits of one share.
func (w *wiring) wasted(c *corev1.Container) string {
	all, most := w.given(c), never
	for _, g := range all {
		most = max(most, g.mps)
	}
	if most == never || len(all) == 1 && !all[0].several {
		return ""
	}
	var shares, others []string
	several, inOneClaim := false, false
	for i, g := range all {
		if g.mps == most {
			shares, several = append(shares, g.words), several || g.several || len(shares) > 0
		} else {
			others = append(others, g.words)
		}
		inOneClaim = inOneClaim || g.claim != "" && slices.ContainsFunc(all[:i], func(o given) bool { return o.claim == g.claim })
	}
	gets, what := "gets", "an MPS share"
	if most == maybe {
		gets = "may get"
	}
	if several {
		what = "several MPS shares"
	}
	what += " (" + strings.Join(shares, ", ") + ")"
	if len(others) > 0 {
		what += " and other devices (" + strings.Join(others, ", ") + ")"
	}
	remedy := "Give each a container of its own"
	switch {
	case len(others) == 0 && len(all) == 1:
		remedy = "Ask for one share, by a claim with more cores or memory"
	case len(others) == 0:
		remedy = "Ask for one share with more cores or memory, or give each a container of its own"
	}
	if inOneClaim {
		remedy += ", which names its request in resources.claims"
	}
	return fmt.Sprintf("container %s %s %s: its CUDA programs find only the device of one MPS server, and the rest is wasted. %s",
		c.Name, gets, what, remedy)
}

// given are the devices of the driver that a container gets, except those with admin access, which others use.
func (w *wiring) given(c *corev1.Container) []given {
	var all []given
	var seen []*resourceapi.DeviceRequest // a pod may have two names for a claim
	for _, use := range c.Resources.Claims {
		spec := w.specs[use.Name]
		if spec == nil {
			continue
		}
		for i := range spec.Devices.Requests {
			r := &spec.Devices.Requests[i]
			if use.Request != "" && use.Request != r.Name || !w.isOurs(r) {
				continue
			}
			if e := r.Exactly; slices.Contains(seen, r) || e != nil && e.AdminAccess != nil && *e.AdminAccess {
				continue
			}
			seen = append(seen, r)
			g := given{words: fmt.Sprintf("request %q of claim %q", r.Name, use.Name), claim: use.Name}
			g.mps, g.several = w.chanceOf(r)
			all = append(all, g)
		}
	}
	for _, resource := range extendedResources([]corev1.Container{*c}) {
		class := classFor(w.Classes, string(resource))
		if !w.isOurClass(class) {
			continue
		}
		g := given{words: string(resource), mps: w.chanceOfClass(class, nil)}
		if count := c.Resources.Requests[resource]; count.Value() > 1 {
			g.words, g.several = fmt.Sprintf("%s of %s", &count, resource), true
		}
		all = append(all, g)
	}
	return all
}

// chanceOf says whether the devices of a request are MPS shares, and whether they can be several.
func (w *wiring) chanceOf(r *resourceapi.DeviceRequest) (mps chance, several bool) {
	if e := r.Exactly; e != nil {
		return w.chanceOfClass(e.DeviceClassName, e.Selectors), e.Count > 1 || e.AllocationMode == resourceapi.DeviceAllocationModeAll
	}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		several = several || s.Count > 1 || s.AllocationMode == resourceapi.DeviceAllocationModeAll
		of := w.chanceOfClass(s.DeviceClassName, s.Selectors)
		if i > 0 && of != mps {
			of = maybe
		}
		mps = of
	}
	return mps, several
}

// chanceOfClass says whether the devices of a class that selectors choose are MPS shares. Where neither says anything of the type, nobody
// meant a share.
func (w *wiring) chanceOfClass(name string, more []resourceapi.DeviceSelector) chance {
	class, err := w.Classes.Get(name)
	if err != nil {
		return never
	}
	kinds := kindsOf(slices.Concat(class.Spec.Selectors, more), w.Driver)
	isShare := func(kind string) bool { return kind == "mps" || kind == "mig-mps" }
	switch {
	case len(kinds) == len(tiers) || !slices.ContainsFunc(kinds, isShare):
		return never
	case slices.ContainsFunc(kinds, func(kind string) bool { return !isShare(kind) }):
		return maybe
	default:
		return always
	}
}
