// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// PartitionSharing is how the partitions of a profile are shared in one way.
type PartitionSharing struct {
	ProfileID int
	Share     gpu.Share
	Sharing   Sharing
	// Withdrawn reports that the policy no longer has it: only Kept places use it.
	Withdrawn bool
}

// sharing returns the sharing of a profile in one way, or nil.
func (o *PartitionOffer) sharing(profileID int, by gpu.Share) *PartitionSharing {
	i := slices.IndexFunc(o.Shared, func(s PartitionSharing) bool { return s.ProfileID == profileID && s.Share == by })
	if i < 0 {
		return nil
	}
	return &o.Shared[i]
}

// HasShared reports whether the policy has a shared partition at a place.
func (o *PartitionOffer) HasShared(at gpu.SharedPlace) bool {
	s := o.sharing(at.ProfileID, at.Share)
	return s != nil && !s.Withdrawn && (o.Mode == OnDemand || slices.Contains(o.Places, at.Place))
}

// KeepShared offers a shared partition as withdrawn, unless the policy has it. sharing applies if the policy does not define it.
func (o *PartitionOffer) KeepShared(at gpu.SharedPlace, sharing *Sharing) {
	if sharing == nil || o.HasShared(at) || slices.Contains(o.KeptShared, at) {
		return
	}
	o.KeptShared = append(o.KeptShared, at)
	if o.sharing(at.ProfileID, at.Share) == nil {
		o.Shared = append(o.Shared, PartitionSharing{at.ProfileID, at.Share, *sharing, true})
	}
}

// partitionSharing returns how a rule shares the partitions of a GPU, in order of the rule and of gpu.Shares, and why some are not
// shared.
func partitionSharing(r *v1alpha1.Rule, node *gpu.Node, g *gpu.GPU, caps Capabilities) (all []PartitionSharing, problems []string) {
	if r.MIG == nil {
		return nil, nil
	}
	for i := range r.MIG.Share {
		s := &r.MIG.Share[i]
		p := profile(g, s.Profile)
		if p == nil {
			continue // reported by Check
		}
		if s.TimeSlice != nil {
			sharing, why := timeSlice(s.TimeSlice, target{g, p}, caps)
			all, problems = appendSharing(all, problems, p, gpu.TimeSlice, sharing, why)
		}
		if s.MPS != nil {
			sharing, why := mps(s.MPS, node, target{g, p}, caps)
			all, problems = appendSharing(all, problems, p, gpu.MPS, sharing, why)
		}
	}
	return all, problems
}

func appendSharing(all []PartitionSharing, problems []string, p *gpu.Profile, by gpu.Share, sharing *Sharing, why string) (
	[]PartitionSharing, []string) {
	if why != "" {
		return all, append(problems, fmt.Sprintf("partitions %s are not shared (%s): %s", p.Name, by, why))
	}
	return append(all, PartitionSharing{ProfileID: p.ID, Share: by, Sharing: *sharing}), problems
}

// keepShared offers allocated shared partitions that the policy no longer has.
func (o *Offer) keepShared(all []gpu.SharedPlace, node *gpu.Node, g *gpu.GPU) {
	for _, at := range all {
		p := g.MIG.Profile(at.ProfileID)
		if p == nil {
			continue
		}
		var sharing *Sharing
		if t := (target{g, p}); at.Share == gpu.MPS {
			sharing, _ = mps(nil, node, t, Capabilities{})
		} else {
			sharing, _ = timeSlice(nil, t, Capabilities{})
		}
		o.Partitions.KeepShared(at, sharing)
	}
}

// checkShares validates a rule's shared partitions against a board. The errors start with the field.
func checkShares(r *v1alpha1.Rule, g *gpu.GPU) []error {
	if r.MIG == nil {
		return nil
	}
	var errs []error
	for i := range r.MIG.Share {
		s := &r.MIG.Share[i]
		at := fmt.Sprintf("mig.share[%d]", i)
		p := profile(g, s.Profile)
		if p == nil {
			errs = append(errs, fmt.Errorf("%s.profile: %s", at, lacks(g, s.Profile)))
			continue
		}
		if err := checkCores(s.MPS, p); err != nil {
			errs = append(errs, fmt.Errorf("%s.mps.%w", at, err))
		}
		if s.MPS != nil {
			if _, why := memory(s.MPS.Memory, target{g, p}, or(s.MPS.Shares, v1alpha1.DefaultMPSShares)); why != "" {
				errs = append(errs, fmt.Errorf("%s.mps.memory: %s: %s: lower it", at, p.Name, why))
			}
		}
		if s.TimeSlice != nil {
			if _, why := memory(s.TimeSlice.Memory, target{g, p}, or(s.TimeSlice.Shares, v1alpha1.DefaultTimeSliceShares)); why != "" {
				errs = append(errs, fmt.Errorf("%s.timeSlice.memory: %s: %s: lower it", at, p.Name, why))
			}
		}
	}
	return errs
}

// checkCores rejects shares of a partition that are less than one multiprocessor, which MPS cannot divide.
func checkCores(p *v1alpha1.MPSPolicy, profile *gpu.Profile) error {
	if p == nil || profile.Multiprocessors == 0 {
		return nil
	}
	if p.Shares != nil && int(*p.Shares) > profile.Multiprocessors {
		return fmt.Errorf("shares: with %d shares, a share of a %s partition is less than one of its %d multiprocessors: use %d at most",
			*p.Shares, profile.Name, profile.Multiprocessors, profile.Multiprocessors)
	}
	if p.Cores == nil {
		return nil
	}
	for _, c := range []struct {
		name  string
		value *int32
	}{{"minimum", p.Cores.Minimum}, {"default", p.Cores.Default}} {
		if least := profile.LeastCores(); c.value != nil && int64(*c.value) < least {
			return fmt.Errorf("cores.%s: %d percent of a %s partition is less than one of its %d multiprocessors: use %d or more",
				c.name, *c.value, profile.Name, profile.Multiprocessors, least)
		}
	}
	return nil
}
