// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// uncounted is the offer of a GPU in a cluster that drops counters: the first tier of its rule whose devices can all be allocated
// at once, along with existing allocations. Without counters the scheduler would allocate each of them, regardless of other
// allocations of the GPU. If there is no such tier, only allocated devices are offered, and as withdrawn, so that they are not
// allocated a second time.
func uncounted(r *v1alpha1.Rule, node *gpu.Node, g *gpu.GPU, caps Capabilities, tiers []v1alpha1.Tier) Offer {
	why, all := caps.Counters.Error(), g.Counters()
	for _, tier := range v1alpha1.Tiers() {
		if !slices.Contains(tiers, tier) {
			continue
		}
		alone := caps
		if tier == v1alpha1.TierMIG && alone.Shares == nil {
			alone.Shares = alone.Counters // a partition and its shares exclude each other
		}
		offer := offerTiers(r, node, g, alone, []v1alpha1.Tier{tier})
		if shapes := offer.Shapes(g); len(shapes) > 0 && gpu.Coexist(shapes, all) {
			offer.Uncounted = true
			return offer.without(tiers, tier, why)
		}
	}
	offer := offerTiers(r, node, g, caps, nil)
	offer.Uncounted = true
	return offer.without(tiers, "", why)
}

// without adds the reason why all tiers but the offered one are not offered.
func (o Offer) without(tiers []v1alpha1.Tier, offered v1alpha1.Tier, why string) Offer {
	say := func(tier v1alpha1.Tier, note *string) {
		if tier != offered && slices.Contains(tiers, tier) && *note == "" {
			*note = why
		}
	}
	say(v1alpha1.TierMIG, &o.NoPartitions)
	say(v1alpha1.TierTimeSlice, &o.NoTimeSlice)
	say(v1alpha1.TierMPS, &o.NoMPS)
	return o
}
