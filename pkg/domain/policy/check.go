// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Check validates a policy against the boards of a node: unknown profiles, layouts that do not fit, partitions of a board that
// cannot be partitioned. A rule that matches no GPU of the node is no error. The error is v1alpha1.Problems, each with the rule and
// field.
func Check(p *v1alpha1.NodePolicy, node *gpu.Node) error {
	var problems v1alpha1.Problems
	said := map[string]bool{}
	for i := range node.GPUs {
		at, rule := find(p, &node.GPUs[i])
		for _, err := range check(rule, &node.GPUs[i]) {
			if err = fmt.Errorf("rules[%d].%w", at, err); !said[err.Error()] { // boards of one model have the same error
				said[err.Error()] = true
				problems = append(problems, err)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// CheckOffers finds the rules under which a GPU of the node offers nothing, as the shares that they want do not fit it. Partitions are up
// to Check: a GPU may have to be reset for them. The error is v1alpha1.Problems, each with the rule and field.
func CheckOffers(p *v1alpha1.NodePolicy, node *gpu.Node, caps Capabilities) error {
	var problems v1alpha1.Problems
	said := map[string]bool{}
	for i, offer := range Apply(p, node, caps).Offers {
		g := &node.GPUs[i]
		if offer.Excluded || offer.Whole || offer.Partitions != nil || offer.NoPartitions != "" || offer.TimeSlice != nil || offer.MPS != nil {
			continue
		}
		at, _ := find(p, g)
		for _, tier := range []struct{ field, why string }{{"timeSlice", offer.NoTimeSlice}, {"mps", offer.NoMPS}} {
			err := fmt.Errorf("rules[%d].%s: %s: no tier of the rule offers %s", at, tier.field, tier.why, g.ProductName)
			if tier.why != "" && !said[err.Error()] { // boards of one model have the same error
				said[err.Error()] = true
				problems = append(problems, err)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// check validates a rule against a board that it matches. The errors start with the field.
func check(r *v1alpha1.Rule, g *gpu.GPU) []error {
	if r.MIG.ModeOfUse() == v1alpha1.MIGExisting {
		if len(g.MIG.Catalog()) == 0 {
			return nil // no requirement: a board without partitions offers none
		}
		return checkShares(r, g)
	}
	if r.MIG.ChangesMode() && !slices.Contains(r.OfferedTiers(), v1alpha1.TierMIG) {
		return nil // a board without MIG is out of MIG mode, as the rule wants
	}
	if wants := wantsMIG(r, g); wants != nil && *wants && unlisted(g) {
		return nil // it is checked once the mode has changed
	}
	if why := noPartitions(g, MIGMode(r.MIG.ModeOfUse())); why != "" {
		// Another driver may report placements: without any, only fields that cannot be checked are rejected.
		tier := slices.Index(r.Tiers, v1alpha1.TierMIG)
		switch {
		case r.MIG != nil && (!g.MIG.Capable || r.MIG.Layout != nil || r.MIG.Profiles != nil || r.MIG.Share != nil):
			return []error{fmt.Errorf("mig: %s: %s", why, remedy(g))}
		case tier >= 0 && !g.MIG.Capable:
			return []error{fmt.Errorf("tiers[%d]: %s: leave mig out, or match only GPUs that can be", tier, why)}
		default:
			return nil
		}
	}
	var errs []error
	for i, name := range omittedProfiles(r) {
		if name != v1alpha1.MediaProfiles && profile(g, name) == nil {
			errs = append(errs, fmt.Errorf("publish.omitProfiles[%d]: %s", i, lacks(g, name)))
		}
	}
	if _, why := profiles(r, g); why == allOmitted {
		errs = append(errs, errors.New(allOmitted))
	}
	errs = append(errs, checkShares(r, g)...)
	if r.MIG == nil {
		return errs
	}
	if r.MIG.DisableWhenIdle && g.MIG.NeedsReset {
		errs = append(errs, fmt.Errorf("mig.disableWhenIdle: %s changes MIG mode only with a reset: match only GPUs that need none",
			g.ProductName))
	}
	for i, name := range r.MIG.Profiles {
		if profile(g, name) == nil {
			errs = append(errs, fmt.Errorf("mig.profiles[%d]: %s", i, lacks(g, name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.MIG.Layout)) {
		if profile(g, name) == nil {
			errs = append(errs, fmt.Errorf("mig.layout[%s]: %s", name, lacks(g, name)))
		}
	}
	if want, err := layout(r.MIG.Layout, g); err == nil {
		if _, err := g.Fit(want, nil); err != nil {
			errs = append(errs, fmt.Errorf("mig.layout: %w", err))
		}
	}
	return errs
}

// remedy is the remedy for a rule that wants partitions of a board without any.
func remedy(g *gpu.GPU) string {
	if !unlisted(g) {
		return "match only GPUs that can be"
	}
	return "use a newer driver, or " + gpu.SwitchMIG(g, "<GPU>", true)
}
