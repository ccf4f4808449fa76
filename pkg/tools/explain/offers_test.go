// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

func TestOffers(t *testing.T) {
	for want, kinds := range map[string][]string{
		"":           nil,
		"whole GPUs": {"gpu"},
		"whole GPUs, partitions (1g.10gb, 2g.20gb), MPS shares": {"mps", "mig 2g.20gb", "gpu", "mig 1g.10gb"},
		"MPS shares of partitions (3g.40gb), other devices":     {"", "mig-mps 3g.40gb"},
	} {
		if got := offers(kinds); got != want {
			t.Errorf("%q: got %q, want %q", kinds, got, want)
		}
	}
}

// A class of shared partitions that no policy offers says so, and what nodes offer.
func TestExplain_Policies(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.node("node-2", "hgx-h100", &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}})
	checkGolden(t, "policy-shares-no-partitions", b.explain(AboutClaim(claim("c", asks("mig-mps.cleave.dev", 1)))))
	checkGolden(t, "policy-offers-no-tier", newBed(t).only(v1alpha1.TierExclusive).explain(AboutClaim(claim("c", asks("mps.cleave.dev", 1)))))
}

// only gives the bed a node of one tier.
func (b *bed) only(tier v1alpha1.Tier) *bed {
	b.node("node-1", "hgx-h100", &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{tier}}}})
	return b
}
