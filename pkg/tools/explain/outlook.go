// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// passes reports whether a cause that keeps a pod from a node ends without a change of the pod: Kubernetes sets the taints of its own
// domain where a node is not ready, under pressure or cordoned.
func (c *Cause) passes() bool {
	return c.Kind == Cordoned || c.Kind == NodeTaint && strings.HasPrefix(c.Taint.Key, kubernetesTaints)
}

// prospect is a search of nodes where nothing else is allocated, and no taint of devices counts.
type prospect struct {
	*search
	// alone are the requests that some node could serve by itself.
	alone map[*request]bool
	found causes
}

// newProspect prepares the search.
func (s *search) newProspect() *prospect {
	later := &search{Cluster: s.Cluster, question: s.question, fits: map[string]fit{}}
	all := []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	for _, claim := range s.claims {
		claim = claim.DeepCopy()
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil {
				r.Exactly.Tolerations = all
			}
			for j := range r.FirstAvailable {
				r.FirstAvailable[j].Tolerations = all
			}
		}
		later.claims = append(later.claims, claim)
		later.requests = append(later.requests, requestsOf(claim)...)
	}
	return &prospect{search: later, alone: map[*request]bool{}}
}

// outlook says whether a node could serve the claims later, and if not, what the nodes lack.
func (s *search) outlook(ctx context.Context) (Outlook, []Cause) {
	if len(s.claims) == 0 {
		return "", nil
	}
	own := usesOf(nil, s.question.claims...)
	p := s.newProspect()
	seen := map[string]bool{}
	open, unsure := 0, false
	for _, site := range s.sites {
		unsure = unsure || site.plugin
		if site.barred {
			continue
		}
		open++
		empty := s.emptied(site, own)
		if seen[empty.signature] {
			continue
		}
		seen[empty.signature] = true
		f := p.fit(ctx, empty, "all", p.claims...)
		switch {
		case f.ok:
			return NotNow, nil
		case f.err != nil || slices.ContainsFunc(site.pools, func(p *pool) bool { return !p.IsUsable() }):
			unsure = true
		default:
			p.look(ctx, empty)
		}
	}
	published := slices.ContainsFunc(s.sites, func(x *site) bool { return x.publishes(s.Driver) })
	if unsure || ctx.Err() != nil || !published && s.isOurs() {
		return "", nil
	}
	if open == 0 && len(s.sites) > 0 {
		return Never, causes{{Kind: NoNode, want: int64(len(s.sites))}}.finish(0)
	}
	where := "no node"
	if open < len(s.sites) {
		where = "no node that the pod may be on"
	}
	return Never, p.limits(where)
}

// outlookOf is the outlook of what is refused. What does not exist, or fails on any node, does not get better by waiting.
func (s *search) outlookOf(ctx context.Context, e *Explanation) (Outlook, []Cause) {
	wrong := func(c Cause) bool { return c.Kind == ClassMissing || c.Kind == Invalid }
	switch {
	case slices.ContainsFunc(e.Causes, wrong):
		return Never, nil
	case slices.ContainsFunc(e.Groups, func(g Group) bool { return g.Fits }):
		return "", nil // devices are not why it waits
	}
	return s.outlook(ctx)
}

// look adds what an empty node lacks.
func (p *prospect) look(ctx context.Context, empty *site) {
	p.short = map[*request]bool{}
	p.devices(ctx, empty, &p.found)
	for _, r := range p.requests {
		p.alone[r] = p.alone[r] || !p.short[r]
	}
}

// limits are what all nodes lack: of each request that none could serve, what comes closest.
func (p *prospect) limits(where string) []Cause {
	fine := map[string]bool{} // by request: whether an alternative could be served
	base := func(claim, request string) string {
		name, _, _ := strings.Cut(request, "/")
		return claim + " " + name
	}
	for _, r := range p.requests {
		fine[base(r.claim, r.name)] = fine[base(r.claim, r.name)] || p.alone[r]
	}
	closest := map[string]int{}
	var limits, together causes
	for _, c := range p.found {
		switch key := base(c.Claim, c.Request); {
		case c.Request == "":
			together = append(together, c)
		case !fine[key]:
			if least, ok := closest[key]; !ok || c.distance() < least {
				closest[key] = c.distance()
			}
		}
	}
	for _, c := range p.found {
		if least, ok := closest[base(c.Claim, c.Request)]; ok && c.Request != "" && c.distance() == least {
			c.kinds = "" // those of one node
			limits.add(*c)
		}
	}
	if len(limits) == 0 {
		limits = together
	}
	if len(limits) == 0 {
		limits = causes{{Kind: Together, want: int64(len(p.requests))}}
	}
	for _, c := range limits {
		if c.limit = where; c.Kind != ClassSelector {
			continue
		}
		why := p.uncounted(p.offered(c.name))
		for _, err := range why {
			limits.add(Cause{Kind: NotCounted, Claim: c.Claim, Request: c.Request, name: err.Error()})
		}
		if len(why) == 0 {
			c.remedy = p.whyNot(c.name)
		}
	}
	return limits.finish(0)
}

// distance orders what a node lacks: devices that match and are too few are closer than those that do not match.
func (c *Cause) distance() int {
	switch c.Kind {
	case Count:
		return 0
	case ClassSelector:
		return 2
	default:
		return 1
	}
}

// describeLimit says what no node has.
func (c *Cause) describeLimit() {
	switch c.Kind {
	case NoNode:
		c.Message = fmt.Sprintf("the pod's node selector, affinity, tolerations and allocated claims leave it none of %d nodes", c.want)
		c.Remedy = "compare them with kubectl describe node"
	case Count:
		c.Message = fmt.Sprintf("%d devices requested, and %s has more than %d", c.want, c.limit, c.most)
		if c.most == 0 {
			c.Message = fmt.Sprintf("devices that match exclude each other, and %s has %d", c.limit, c.want)
		}
	case TooSmall:
		c.Message = c.limit + " has a device of class " + c.name + " that is large enough"
		if len(c.Missing) > 0 {
			c.Message = fmt.Sprintf("%s %s requested, and %s has a device of class %s with more than %s",
				c.Missing[0].Name, c.Missing[0].Want, c.limit, c.name, c.Missing[0].Most)
			if c.Missing[0].Most == "" {
				c.Message = fmt.Sprintf("%s has a device of class %s with the capacity %s", c.limit, c.name, c.Missing[0].Name)
			}
		}
	case Selector:
		c.Message = fmt.Sprintf("%s has a device of class %s that matches %s%s", c.limit, c.name, c.Selector.text(), c.Selector.values())
	case ClassSelector:
		c.Message, c.Remedy = fmt.Sprintf("%s has a device of class %s", c.limit, c.name), c.remedy
	case Constraint:
		c.Message = fmt.Sprintf("%s has enough devices that together satisfy %s", c.limit, c.name)
	case Together:
		c.Message = c.limit + " has devices for all requests at once"
		if c.want == 1 {
			c.Message = fmt.Sprintf("the devices that match exclude each other, and %s has enough", c.limit)
		}
	default:
		c.describeDevices(0)
	}
}
