// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// Explain answers a question. The context bounds the search: nodes that it does not reach are in a group of their own.
func (c *Cluster) Explain(ctx context.Context, q *Question) (*Explanation, error) {
	if c.brokenBy != nil {
		return nil, c.brokenBy
	}
	e := &Explanation{Subject: q.subject, State: Refused, Devices: q.has, Notes: slices.Concat(q.notes, c.otherDriver()), over: q.over}
	fixed := c.fixed(q)
	if q.scheduled != "" {
		e.State, e.Node, e.Causes = Scheduled, q.scheduled, fixed.finish(0)
		if len(e.Causes) > 0 {
			e.State = Waits
		}
		return e, nil
	}
	if q.over {
		e.Causes = fixed.finish(0)
		return e, nil
	}
	s := &search{Cluster: c, question: q, fits: map[string]fit{}, short: map[*request]bool{}, unlimited: q.uncounted()}
	for _, claim := range q.claims {
		if claim.Status.Allocation != nil {
			continue
		}
		s.claims = append(s.claims, claim)
		for _, r := range requestsOf(claim) {
			r.uncounted = s.unlimited
			s.requests = append(s.requests, r)
			e.Requests = append(e.Requests, r.ask())
			if c.class(r.class) == nil {
				fixed.add(Cause{Kind: ClassMissing, Claim: r.claim, Request: r.name, name: r.class, Suggestions: c.likeClass(r.class)})
			}
		}
	}
	if len(q.claims) > 0 && !slices.ContainsFunc(fixed, func(c *Cause) bool { return c.Kind == ClassMissing }) {
		fit, err := s.nodes(ctx, e, &fixed)
		if err != nil {
			return nil, err
		}
		if fit {
			s.fitting(ctx, e, &fixed)
			e.Notes = append(slices.Clip(e.Notes), q.scarce(s.fitted)...)
		}
	}
	switch {
	case len(q.claims)+len(fixed) == 0:
		e.State = NoClaims
	case len(q.claims) == 0:
		s.fitting(ctx, e, &fixed)
	}
	if e.State == Refused && q.says != "" {
		e.Notes = append(slices.Clip(e.Notes), "The scheduler says: "+q.says)
	}
	e.Notes = append(append(slices.Clip(e.Notes), s.foreignParameters()...), q.unknownScheduler(c.Running)...)
	e.Causes = fixed.finish(0)
	if e.State == Refused {
		e.Outlook, e.Limits = s.outlookOf(ctx, e)
		if e.Outlook == Never {
			s.explainNames(e)
		}
		e.Notes = append(slices.Clip(e.Notes), c.uncountedNotes(e.Limits)...)
		e.Alternatives = s.alternatives(ctx)
		if len(fixed) == 0 {
			e.Eviction = s.eviction(ctx)
		}
	}
	if e.Eviction != nil && e.Eviction.Node != "" && s.Running.BudgetsUnread != nil {
		e.Notes = append(slices.Clip(e.Notes), fmt.Sprintf("PodDisruptionBudgets are not considered: %v", s.Running.BudgetsUnread))
	}
	return e, nil
}

// fixed are the causes that are known from the question, with the names that may be meant.
func (c *Cluster) fixed(q *Question) (fixed causes) {
	for _, cause := range q.causes {
		switch cause.Kind {
		case NoScheduler:
			cause.known = c.Running.schedulers()
			cause.Suggestions = suggestions(suggest.Nearest(cause.name, cause.known))
		case ClassMissing:
			cause.Suggestions = c.likeResource(cause.name)
		}
		fixed.add(cause)
	}
	return fixed
}

// fitting answers for claims that a node serves, or that have their devices.
func (s *search) fitting(ctx context.Context, e *Explanation, fixed *causes) {
	if slices.ContainsFunc(*fixed, func(c *Cause) bool { return !c.isWait() }) {
		return
	}
	e.Notes = append(slices.Clip(e.Notes), verdict{s}.add(ctx, fixed)...)
	switch {
	case len(*fixed) > 0:
		e.State = Waits
	case len(s.claims) == 0:
		e.State = Allocated
	default:
		e.State = Fits
	}
}

// search is one question under way.
type search struct {
	*Cluster
	question *Question
	// claims without an allocation, with their requests.
	claims   []*resourceapi.ResourceClaim
	requests []*request
	// fits are answers of the allocator, by question and state of the node.
	fits map[string]fit
	// sites are all nodes.
	sites []*site
	// fitted are the nodes that serve the claims.
	fitted []*corev1.Node
	// open are the nodes that the pod may run on, without a fit.
	open []*site
	// short are the requests that a node could not serve by itself.
	short map[*request]bool
	// unlimited: counters refuse nothing.
	unlimited bool
}

// nodes looks at every node. It reports whether one fits.
func (s *search) nodes(ctx context.Context, e *Explanation, fixed *causes) (found bool, err error) {
	g := &grouped{byKey: map[string]*group{}}
	for _, node := range s.Nodes {
		site, err := s.site(node)
		if err != nil {
			return false, err
		}
		s.sites = append(s.sites, site)
		causes := s.on(ctx, site)
		for _, c := range causes {
			if c.Kind == Invalid || s.wantsAll() && (c.Kind == Incomplete || c.Kind == InvalidPool) {
				fixed.add(*c)
			}
		}
		if len(causes) == 0 {
			found, s.fitted = true, append(s.fitted, node)
		}
		g.add(node.Name, causes)
	}
	e.Groups = g.finish()
	return found, nil
}

// on finds what refuses the claims on a node; nothing where they fit.
func (s *search) on(ctx context.Context, site *site) (found causes) {
	for _, c := range s.question.onNode(site.node) {
		found.add(c)
		site.barred = site.barred || !c.passes()
		site.plugin = site.plugin || c.Kind == DevicePlugin
	}
	if len(found) > 0 && len(site.pools) > 0 || site.plugin || len(s.claims) == 0 {
		return found
	}
	f := s.fit(ctx, site, "all", s.claims...)
	if f.ok {
		return found
	}
	found = nil // a node that has no device is no better without its taint
	if f.err != nil {
		found.add(s.failure(ctx, f.err))
		if found[0].Kind == Timeout {
			s.open = append(s.open, site)
		} else if unusable := site.unusable(); s.wantsAll() && len(unusable) > 0 {
			return unusable
		}
		return found
	}
	if len(site.pools) > 0 {
		s.open = append(s.open, site)
	}
	if found = site.unusable(); len(found) < max(1, len(site.pools)) {
		s.devices(ctx, site, &found)
	}
	if ctx.Err() != nil { // what was found may be wrong
		return causes{new(s.failure(ctx, ctx.Err()))}
	}
	if !site.publishes(s.Driver) && s.isOurs() && !slices.ContainsFunc(found, func(c *Cause) bool { return c.Kind != ClassSelector }) {
		return causes{{Kind: NotPublishing, name: s.Driver}}
	}
	return found
}

// wantsAll reports whether a request asks for all devices that match: a pool that is not usable is then an error of the allocator, which
// keeps the pod from all nodes (validateDeviceRequest in structured/internal/incubating/allocator_incubating.go).
func (s *search) wantsAll() bool { return slices.ContainsFunc(s.requests, (*request).all) }

// isOurs reports whether a request is for a device of the driver: whether its class names it.
func (s *search) isOurs() bool {
	return slices.ContainsFunc(s.requests, func(r *request) bool {
		class := s.class(r.class)
		return class != nil && resourcepool.SelectsDriver(class, s.Driver)
	})
}

// failure is an error of the allocator.
func (s *search) failure(ctx context.Context, err error) Cause {
	if ctx.Err() != nil {
		return Cause{Kind: Timeout, name: "not checked: the search of the nodes before took too long"}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Cause{Kind: Timeout}
	}
	return Cause{Kind: Invalid, name: err.Error()}
}

// devices adds what refuses the devices of a node, and what refuses the choice of them.
func (s *search) devices(ctx context.Context, site *site, found *causes) {
	enough := map[string]bool{} // by request: whether an alternative has enough devices
	for _, r := range s.requests {
		v := s.judge(ctx, site, r)
		if v.ofClass == 0 {
			found.add(Cause{Kind: ClassSelector, Claim: r.claim, Request: r.name, name: r.class, Selector: v.classMiss,
				kinds: offers(v.kinds.order)})
		}
		for _, c := range v.causes {
			found.add(*c)
		}
		alone, err := s.alone(ctx, site, v)
		var most int64
		if err == nil && !alone && v.free > 0 && !r.all() {
			most, err = s.most(ctx, site, v)
		}
		if err != nil {
			found.add(s.failure(ctx, err))
			return
		}
		name, _, _ := strings.Cut(r.name, "/")
		enough[r.claim+" "+name] = enough[r.claim+" "+name] || alone
		if alone {
			continue
		}
		if s.short[r] = true; v.free > 0 && !r.all() {
			found.add(Cause{Kind: Count, Claim: r.claim, Request: r.name, most: most, want: r.count, name: r.class})
		}
	}
	for _, ok := range enough {
		if !ok {
			return
		}
	}
	s.together(ctx, site, found)
}

// alone reports whether a request fits a node without all others.
func (s *search) alone(ctx context.Context, site *site, v *verdicts) (bool, error) {
	r := v.request
	if v.free == 0 || r.all() && v.free < v.matching {
		return false, nil
	}
	f := s.fit(ctx, site, "alone "+r.claim+" "+r.name, s.onlyClaim(r, r.count))
	return f.ok, f.err
}

// most is how many devices of a request that does not fit a node would.
func (s *search) most(ctx context.Context, site *site, v *verdicts) (int64, error) {
	r := v.request
	most := min(int64(v.free), r.count-1)
	for ; most > 0; most-- {
		if f := s.fit(ctx, site, fmt.Sprintf("%d of %s %s", most, r.claim, r.name), s.onlyClaim(r, most)); f.ok || f.err != nil {
			return most, f.err
		}
	}
	return 0, nil
}

// onlyClaim is a claim with the request alone.
func (s *search) onlyClaim(r *request, count int64) *resourceapi.ResourceClaim {
	return claimFor(r.exactly(), count)
}

// together finds what refuses requests that each fit: it leaves out one constraint after the other.
func (s *search) together(ctx context.Context, site *site, found *causes) {
	var all []*resourceapi.ResourceClaim
	constrained := false
	for i, claim := range s.claims {
		for j, constraint := range claim.Spec.Devices.Constraints {
			without := slices.Clone(s.claims)
			without[i] = claim.DeepCopy()
			without[i].Spec.Devices.Constraints = slices.Delete(without[i].Spec.Devices.Constraints, j, j+1)
			f := s.fit(ctx, site, fmt.Sprintf("without constraint %d of %s", j, nameOf(claim)), without...)
			if f.err != nil {
				found.add(s.failure(ctx, f.err))
				return
			}
			if f.ok {
				constrained = true
				found.add(Cause{Kind: Constraint, Claim: nameOf(claim), name: constraintText(constraint)})
			}
		}
		free := claim.DeepCopy()
		free.Spec.Devices.Constraints = nil
		all = append(all, free)
	}
	if constrained {
		return
	}
	switch f := s.fit(ctx, site, "without constraints", all...); {
	case f.err != nil:
		found.add(s.failure(ctx, f.err))
	case f.ok:
		found.add(Cause{Kind: Constraint, name: "all constraints"})
	default:
		found.add(Cause{Kind: Together, want: int64(len(s.requests))})
	}
}

func constraintText(c resourceapi.DeviceConstraint) string {
	switch {
	case c.MatchAttribute != nil:
		return "matchAttribute " + string(*c.MatchAttribute)
	case c.DistinctAttribute != nil:
		return "distinctAttribute " + string(*c.DistinctAttribute)
	default:
		return "an unknown constraint"
	}
}
