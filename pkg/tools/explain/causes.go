// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// causes are distinct causes in order; equal ones are added up.
type causes []*Cause

// key is equal for causes that are added up.
func (c *Cause) key() string {
	parts := []string{string(c.Kind), c.Claim, c.Request, c.name, c.kinds}
	if m := c.Selector; m != nil && c.Kind == Selector {
		parts = append(parts, m.Of, m.Expression, m.Part)
	}
	if t := c.Taint; t != nil {
		parts = append(parts, t.Key, t.Value, t.Effect)
	}
	if c.Kind != Counter {
		for _, m := range c.Missing {
			parts = append(parts, m.Name)
		}
	} else if c.lacksEngines() {
		parts = append(parts, "engines")
	}
	return strings.Join(parts, "\x00")
}

// lacksEngines reports whether nothing but engines is missing: the places of the devices are free.
func (c *Cause) lacksEngines() bool {
	return !slices.ContainsFunc(c.Missing, func(m Shortage) bool {
		_, counter, _ := strings.Cut(m.Name, "/")
		return !gpu.IsEngineCounter(counter)
	})
}

// add adds a cause to an equal one.
func (cs *causes) add(c Cause) {
	key := c.key()
	at := slices.IndexFunc(*cs, func(have *Cause) bool { return have.key() == key })
	if at < 0 {
		*cs = append(*cs, &c)
		return
	}
	have := (*cs)[at]
	have.Devices += c.Devices
	have.most, have.least = max(have.most, c.most), min(have.least, c.least)
	have.Claims = append(have.Claims, c.Claims...)
	if t := have.Taint; t != nil && c.Taint.Since != nil && (t.Since == nil || c.Taint.Since.Before(*t.Since)) {
		t.Since = c.Taint.Since
	}
	if have.Selector != nil && c.Selector != nil {
		have.Selector.add(c.Selector.Attributes)
	}
	for _, m := range c.Missing {
		at := slices.IndexFunc(have.Missing, func(h Shortage) bool { return h.Name == m.Name })
		switch {
		case at < 0:
			have.Missing = append(have.Missing, m)
		case m.most > have.Missing[at].most:
			have.Missing[at].Most, have.Missing[at].most = m.Most, m.most
		}
	}
}

func (m *Mismatch) add(attributes []Values) {
	for _, a := range attributes {
		at := slices.IndexFunc(m.Attributes, func(v Values) bool { return v.Name == a.Name })
		if at < 0 {
			m.Attributes = append(m.Attributes, a)
			continue
		}
		for _, value := range a.Values {
			if !slices.Contains(m.Attributes[at].Values, value) {
				m.Attributes[at].Values = append(m.Attributes[at].Values, value)
			}
		}
	}
}

// rank orders causes of a node: what can pass by itself before what cannot.
func (c *Cause) rank() int {
	return slices.Index([]Kind{Count, Constraint, Together, Timeout, Overdrawn, InUse, Counter, Share, DeviceTaint, Incomplete, Selector,
		TooSmall, InvalidPool, Invalid, DevicePlugin, Elsewhere, Cordoned, NodeTaint, NodeAffinity, ClassSelector, NotPublishing,
		NotLower, SharedClaim, StuckPod, UnusedClaim, ForeignClaim, ElsewhereClaim, NotEnough, EvictionUnknown}, c.Kind)
}

// finish orders the causes and writes their messages.
func (cs causes) finish(nodes int) []Cause {
	var all []Cause
	for _, c := range cs {
		slices.SortFunc(c.Claims, func(a, b Use) int { return strings.Compare(a.Claim, b.Claim) })
		c.Claims = slices.CompactFunc(c.Claims, func(a, b Use) bool { return a.Claim == b.Claim })
		if m := c.Selector; m != nil {
			for i := range m.Attributes {
				slices.Sort(m.Attributes[i].Values)
			}
		}
		c.describe(nodes)
		all = append(all, *c)
	}
	slices.SortStableFunc(all, func(a, b Cause) int { return cmp.Compare(a.rank(), b.rank()) })
	return all
}

// grouped groups nodes with the same causes.
type grouped struct {
	groups []*group
	byKey  map[string]*group
}

type group struct {
	nodes  []string
	fits   bool
	causes causes
}

// add adds a node; no causes mean that the claims fit it.
func (g *grouped) add(node string, found causes) {
	var keys []string
	for _, c := range found {
		keys = append(keys, c.key())
	}
	slices.Sort(keys)
	key := strings.Join(keys, "\x01")
	to := g.byKey[key]
	if to == nil {
		to = &group{fits: len(found) == 0}
		g.byKey[key] = to
		g.groups = append(g.groups, to)
	}
	to.nodes = append(to.nodes, node)
	for _, c := range found {
		to.causes.add(*c)
	}
}

// finish orders the groups: those that fit first, then those where the least is missing.
func (g *grouped) finish() []Group {
	var all []Group
	for _, from := range g.groups {
		slices.Sort(from.nodes)
		all = append(all, Group{Nodes: from.nodes, Fits: from.fits, Causes: from.causes.finish(len(from.nodes))})
	}
	best := func(g Group) int {
		if len(g.Causes) == 0 {
			return -1
		}
		return g.Causes[0].rank()
	}
	slices.SortStableFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(best(a), best(b)), cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Nodes[0], b.Nodes[0]))
	})
	return all
}
