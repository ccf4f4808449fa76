// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/policy/live"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Reasons of Events about the node's policy.
const (
	reasonInvalidPolicy = "InvalidPolicy"
	reasonPolicyApplied = "PolicyApplied"
)

// noPolicy stands for the name of the policy in force where there is none.
const noPolicy = "none"

// livePolicy is the policy of the node while files and label change. Only the goroutine that keeps things in line
// touches it.
type livePolicy struct {
	load  func() (*policy.Set, error)
	store *live.Store
	// now is in force; nil while no policy could be used yet.
	now *live.InForce
	// err is why the policy that is asked for is not in force; empty if it is.
	err string
	// aside is what is wrong with policies that the node does not use.
	aside string
	// notes are what was not taken over of a file of a foreign format.
	notes []string
}

// openPolicy takes up the policy that was in force when the plugin ended.
func (s *service) openPolicy(ctx context.Context) {
	s.policy.load = func() (*policy.Set, error) { return policy.Load(s.config.PolicyFile, s.config.PolicyFormat) }
	s.policy.store = live.NewStore(records.Disk{}, filepath.Join(s.config.pluginDir(), live.File))
	var err error
	if s.policy.now, err = s.policy.store.Load(); err != nil && !live.Missing(err) {
		klog.FromContext(ctx).Error(err, "The policy that was in force is forgotten")
	}
}

// rules are those of the policy in force; without one, no GPU is handed out, and what claims hold stays theirs.
func (l *livePolicy) rules() *v1alpha1.NodePolicy {
	if l.now == nil {
		return &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Exclude: true}}}
	}
	return l.now.Policy
}

// lookAtPolicy reads the policies again and puts the one that the node's label picks in force, if it can be used, and tells
// whether it is another than before. Trouble is told when it is new, and again where that is asked for.
func (s *service) lookAtPolicy(ctx context.Context, hw *hardware, again bool) (changed bool) {
	l := &s.policy
	set, loadErr := l.load()
	now, err := live.Decide(l.now, set, loadErr, s.around.facts().policy, func(p *v1alpha1.NodePolicy) error {
		return policy.Check(p, hw.Session.Node())
	})
	l.tellNotes(ctx, set)
	was, wrong := l.now, l.err
	l.now, l.err = now, text(err)
	if changed = !live.Same(was, now); changed {
		hw.change(l.rules())
	}
	if now != nil {
		if err := l.store.Keep(now); err != nil {
			klog.FromContext(ctx).Error(err, "A restart would not know the policy in force; it is tried again")
		}
	}
	if err != nil {
		s.reportInvalid(ctx, err, l.err != wrong, again)
	} else {
		s.reportApplied(ctx, changed, was != nil || wrong != "", wrong != "")
	}
	if aside := text(loadErr); err == nil && aside != l.aside {
		l.aside = aside
		if aside != "" {
			klog.FromContext(ctx).Error(loadErr, "Policies that this node does not use are wrong")
		}
	}
	return changed
}

// tellNotes logs what was not taken over of files of a foreign format, once.
func (l *livePolicy) tellNotes(ctx context.Context, set *policy.Set) {
	if set == nil || slices.Equal(set.Notes(), l.notes) {
		return
	}
	l.notes = set.Notes()
	for _, n := range l.notes {
		klog.FromContext(ctx).Info("Not taken over from the policy file as it is", "note", n)
	}
}

// reportInvalid tells why the policy that is asked for is not in force.
func (s *service) reportInvalid(ctx context.Context, err error, news, again bool) {
	name, goesOn := noPolicy, "no policy is in force, and no GPU is handed out"
	s.ready.policy(err)
	if s.policy.now != nil {
		name = s.policy.now.Name
		goesOn = fmt.Sprintf("policy %q stays in force", name)
		s.ready.policy(nil)
	}
	s.metrics.policyIs(name, true)
	if news {
		s.metrics.policyFailures.Inc()
		klog.FromContext(ctx).Error(err, "The node policy cannot be used", "inForce", name)
	}
	if news || again {
		s.events.warn(reasonInvalidPolicy, fmt.Sprintf("%v; %s", err, goesOn))
	}
}

// reportApplied tells which policy is in force, where that is another than before or was in doubt. The first one that a node
// ever has is no event.
func (s *service) reportApplied(ctx context.Context, changed, before, doubted bool) {
	name := s.policy.now.Name
	s.ready.policy(nil)
	s.metrics.policyIs(name, false)
	if !changed && !doubted {
		return
	}
	klog.FromContext(ctx).Info("The node policy is in force", "policy", name, "changed", changed)
	if before {
		s.events.note(reasonPolicyApplied, fmt.Sprintf("policy %q is in force", name))
	}
}

// text of an error; empty where there is none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
