// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// partitions are those that a GPU offers by a rule, or why it offers none.
func partitions(r *v1alpha1.Rule, g *gpu.GPU, caps Capabilities) (*PartitionOffer, string) {
	offer := &PartitionOffer{Mode: MIGMode(r.MIG.ModeOfUse())}
	if why := noPartitions(g, offer.Mode); why != "" && asksForPartitions(r) {
		return nil, why
	}
	switch offer.Mode {
	case Existing:
		offer.Places = caps.partitions(g)
	case Layout:
		want, err := layout(r.MIG.Layout, g)
		if err == nil {
			offer.Places, err = g.Fit(want, placesInUse(g, caps), caps.layout(g)...)
		}
		if err != nil {
			return nil, err.Error()
		}
	default:
		offer.DisableWhenIdle = r.MIG != nil && r.MIG.DisableWhenIdle && !g.MIG.NeedsReset
		var why string
		if offer.Profiles, why = profiles(r, g); why != "" {
			return nil, why
		}
	}
	if wants := wantsMIG(r, g); wants != nil && *wants && !g.MIG.Enabled {
		return offer, "MIG mode is off: it is changed, with a reset, once no claim and no process uses the GPU"
	}
	if asksForPartitions(r) && g.MIG.NeedsReset && !g.MIG.Enabled {
		return offer, "MIG mode is off, and this board changes it only with a reset: " + gpu.SwitchMIG(g, "<GPU>", true)
	}
	return offer, ""
}

// placesInUse are those of the partitions that exist, and of those that are allocated.
func placesInUse(g *gpu.GPU, caps Capabilities) []gpu.Place {
	allocated := caps.allocated(g)
	return append(caps.partitions(g), allocated.AllPlaces()...)
}

// profiles are the IDs of those that a rule offers on demand, nil for the whole catalog, or why it offers none.
func profiles(r *v1alpha1.Rule, g *gpu.GPU) (ids []int, why string) {
	if r.MIG != nil && r.MIG.Profiles != nil {
		for _, name := range r.MIG.Profiles {
			if p := profile(g, name); p != nil {
				ids = append(ids, p.ID)
			}
		}
		if ids == nil {
			return nil, lacks(g, strings.Join(r.MIG.Profiles, ", "))
		}
		return ids, ""
	}
	omitted := omittedProfiles(r)
	if len(omitted) == 0 {
		return nil, ""
	}
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		media := strings.HasSuffix(p.Name, v1alpha1.MediaProfiles) && slices.Contains(omitted, v1alpha1.MediaProfiles)
		if p.InCatalog() && !media && !slices.Contains(omitted, p.Name) {
			ids = append(ids, p.ID)
		}
	}
	if ids == nil {
		return nil, allOmitted
	}
	return ids, ""
}

// allOmitted is why a GPU offers no partitions of a catalog of which nothing is left.
const allOmitted = "publish.omitProfiles names every profile: leave mig out of tiers"

// omittedProfiles are the names of those that a rule does not offer on demand.
func omittedProfiles(r *v1alpha1.Rule) []string {
	if r.Publish == nil {
		return nil
	}
	return r.Publish.OmitProfiles
}

// wantsMIG is the MIG mode for which an idle GPU is reset by a rule, nil where its mode is taken as found. The rule wants
// partitions or whole GPUs: one that wants both is no valid rule. A guest can often not reset a GPU that is passed through to it
// ("reset not supported": NVIDIA/gpu-operator#1606); from Hopper on it has no need to.
func wantsMIG(r *v1alpha1.Rule, g *gpu.GPU) *bool {
	if !r.MIG.ChangesMode() || !g.MIG.Capable || !g.MIG.NeedsReset || g.MIG.Fixed || g.Virtualization == gpu.PassThrough {
		return nil
	}
	wants := slices.Contains(r.OfferedTiers(), v1alpha1.TierMIG)
	return &wants
}

// InMIGMode is a node as it has to be for a policy: GPUs that offer partitions alone are in MIG mode where changing that needs a
// reset. devices are the names of those that are not yet, and that their admin has to change.
func InMIGMode(p *v1alpha1.NodePolicy, node *gpu.Node) (made *gpu.Node, devices []string) {
	c := *node
	c.GPUs = slices.Clone(node.GPUs)
	for i := range c.GPUs {
		g := &c.GPUs[i]
		_, rule := find(p, g)
		if wants := wantsMIG(rule, g); wants != nil {
			g.MIG.Enabled, g.MIG.Pending = *wants, *wants
			continue
		}
		if g.MIG.NeedsReset && !g.MIG.Enabled && slices.Equal(rule.OfferedTiers(), []v1alpha1.Tier{v1alpha1.TierMIG}) {
			g.MIG.Enabled, g.MIG.Pending = true, true
			devices = append(devices, g.PCI.DeviceName())
		}
	}
	return &c, devices
}

// asksForPartitions reports whether a rule asks for partitions in so many words, and not for all there is.
func asksForPartitions(r *v1alpha1.Rule) bool {
	return slices.Contains(r.Tiers, v1alpha1.TierMIG) || r.MIG != nil
}

// unlisted reports whether a driver may list the partitions of a board once it is in MIG mode: older ones list none before.
func unlisted(g *gpu.GPU) bool {
	return g.MIG.Capable && g.MIG.NeedsReset && !g.MIG.Enabled && !g.MIG.Fixed && len(g.MIG.Catalog()) == 0
}

// noPartitions says why a board can have no partitions; empty where it can.
func noPartitions(g *gpu.GPU, mode MIGMode) string {
	switch {
	case !g.MIG.Capable:
		return g.ProductName + " cannot be partitioned"
	case unlisted(g):
		return "MIG mode of " + g.ProductName + " is off, and its driver lists partitions only in MIG mode"
	case len(g.MIG.Catalog()) == 0:
		return g.ProductName + " cannot be partitioned: its driver reports no placements of partitions; one too old for the board reports none"
	case g.MIG.Fixed && mode != Existing:
		return "the GPU is a vGPU, whose partitions are its host's: those that are there can be offered by mode existing"
	default:
		return ""
	}
}

// layout is a policy's layout with the profile IDs of a board.
func layout(counts map[string]int32, g *gpu.GPU) ([]gpu.ProfileCount, error) {
	var want []gpu.ProfileCount
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		p := profile(g, name)
		if p == nil {
			return nil, errors.New(lacks(g, name))
		}
		want = append(want, gpu.ProfileCount{ProfileID: p.ID, Count: int(counts[name])})
	}
	return want, nil
}

// profile is the one of a board's catalog that has a name, or nil.
func profile(g *gpu.GPU, name string) *gpu.Profile {
	for i := range g.MIG.Profiles {
		if p := &g.MIG.Profiles[i]; p.Name == name && p.InCatalog() {
			return p
		}
	}
	return nil
}

// lacks says that a board has no profile of a name, and which it has.
func lacks(g *gpu.GPU, name string) string {
	return fmt.Sprintf("%s has no profile %s: it has %s", g.ProductName, name, strings.Join(g.MIG.Catalog(), ", "))
}
