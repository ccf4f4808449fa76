// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Reasons of Events about the node's policy.
const (
	reasonInvalidPolicy = "InvalidPolicy" // the policy that the node is to have cannot be used: an earlier one stays active, or none
	reasonPolicyApplied = "PolicyApplied" // another policy is active, or the earlier one can be used again; none of a node's first policy
)

// noPolicy stands for the name of a missing active policy.
const noPolicy = "none"

// Policy is a policy with its name.
type Policy = policy.Active

// rulesOf returns the rules of the active policy; without one, no GPU is offered, but allocations stay.
func rulesOf(active *Policy) *v1alpha1.NodePolicy {
	if active == nil {
		return &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Exclude: true}}}
	}
	return active.Policy
}

// choosePolicy activates the policy that the node's label selects, if it is usable.
func (p *Plan) choosePolicy(o *Observed) {
	m := &p.Memory
	active, err := policy.SelectActive(m.Active, o.Policies, o.PolicyErr, o.Cluster.Node.Policy, func(candidate *v1alpha1.NodePolicy) error {
		return policy.Check(candidate, o.Inventory)
	})
	if unknown := (*policy.UnknownError)(nil); errors.As(err, &unknown) {
		err = fmt.Errorf("label %s: %w", cmp.Or(o.Cluster.Node.PolicyLabel, v1alpha1.PolicyLabel), err)
	}
	reportNotes(p, o.Policies)
	was, wrong := m.Active, m.PolicyErr
	withdrawals{p}.noteBefore(o, was)
	if changed := !was.Equal(active); changed {
		p.startWithdrawal(o, was)
		m.Active = active
	}
	m.PolicyErr = text(err)
	if err != nil {
		reportInvalid(p, err, m.PolicyErr != wrong, o.Changed.Has(Periodic))
		return
	}
	reportApplied(p, !was.Equal(active), was != nil || wrong != "", wrong != "")
	if aside := text(o.PolicyErr); aside != m.PolicyAside {
		m.PolicyAside = aside
		if aside != "" {
			p.report(Report{Log: "Policies that this node does not use are invalid", Err: o.PolicyErr})
		}
	}
}

// reportNotes reports, once, settings of other file formats that were not converted.
func reportNotes(p *Plan, set *policy.Set) {
	if set == nil || slices.Equal(set.Notes(), p.Memory.PolicyNotes) {
		return
	}
	p.Memory.PolicyNotes = set.Notes()
	for _, n := range set.Notes() {
		p.report(Report{Log: "Part of the policy file has no exact equivalent", Values: []any{"note", n}})
	}
}

// reportInvalid reports why the requested policy is not active: when that is new, and periodically.
func reportInvalid(p *Plan, err error, news, again bool) {
	name, effect := noPolicy, "no policy is active, and no GPU is offered"
	if active := p.Memory.Active; active != nil {
		name = active.Name
		effect = fmt.Sprintf("policy %q stays active", name)
	} else {
		p.Status.NoPolicy = err
	}
	p.Status.Policy, p.Status.PolicyInvalid, p.Status.PolicyFailed = name, true, news
	r := Report{}
	if news {
		r.Log, r.Err, r.Values = "The node policy cannot be used", err, []any{"active", name}
	}
	if news || again {
		r.Warning, r.Reason, r.Message = true, reasonInvalidPolicy, fmt.Sprintf("%v; %s", err, effect)
		p.report(r)
	}
}

// reportApplied reports the active policy if it has changed or was in doubt. A node's first policy causes no Event.
func reportApplied(p *Plan, changed, before, doubted bool) {
	name := p.Memory.Active.Name
	p.Status.Policy = name
	if !changed && !doubted {
		return
	}
	r := Report{Log: "The node policy is active", Values: []any{"policy", name, "changed", changed}}
	if before {
		r.Reason, r.Message = reasonPolicyApplied, fmt.Sprintf("policy %q is active", name)
	}
	p.report(r)
}
