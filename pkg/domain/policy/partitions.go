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

// partitions returns a GPU's offer of partitions under a rule, or why there are none.
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

// placesInUse are the places of existing and of allocated partitions.
func placesInUse(g *gpu.GPU, caps Capabilities) []gpu.Place {
	allocated := caps.allocated(g)
	return append(caps.partitions(g), allocated.AllPlaces()...)
}

// profiles are the IDs of the profiles that a rule offers on demand, nil for all of the board, or why it offers none.
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
	ids = profilesByDefault(g, omitted)
	if len(omitted) > 0 && len(ids) == 0 {
		return nil, allOmitted
	}
	return ids, ""
}

// profilesByDefault are the IDs of the profiles that a board offers on demand, without some, if a policy names none; nil for all of
// the board.
func profilesByDefault(g *gpu.GPU, omitted []string) []int {
	ids, all := []int{}, true
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		media := strings.HasSuffix(p.Name, v1alpha1.MediaProfiles) && slices.Contains(omitted, v1alpha1.MediaProfiles)
		if p.ByDefault() && !media && !slices.Contains(omitted, p.Name) {
			ids = append(ids, p.ID)
		} else if p.InCatalog() {
			all = false
		}
	}
	if all {
		return nil
	}
	return ids
}

// allOmitted is why a GPU offers no partitions if every profile is omitted.
const allOmitted = "publish.omitProfiles names every profile: leave mig out of tiers"

// omittedProfiles are the names of the profiles that a rule does not offer on demand.
func omittedProfiles(r *v1alpha1.Rule) []string {
	if r.Publish == nil {
		return nil
	}
	return r.Publish.OmitProfiles
}

// wantsMIG is the MIG mode to which a rule resets an idle GPU; nil to leave its mode. The rule wants either partitions or whole
// GPUs: both would be invalid. A guest can often not reset a GPU that is passed through to it ("reset not supported":
// NVIDIA/gpu-operator#1606); from Hopper on it need not.
func wantsMIG(r *v1alpha1.Rule, g *gpu.GPU) *bool {
	if !r.MIG.ChangesMode() || !g.MIG.Capable || !g.MIG.NeedsReset || g.MIG.Fixed || g.Virtualization == gpu.PassThrough {
		return nil
	}
	wants := slices.Contains(r.OfferedTiers(), v1alpha1.TierMIG)
	return &wants
}

// InMIGMode returns a node in the MIG modes that a policy requires: GPUs that offer only partitions are in MIG mode, if that needs
// a reset. devices are the names of those that the admin has yet to change.
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

// asksForPartitions reports whether a rule explicitly asks for partitions, rather than for all tiers.
func asksForPartitions(r *v1alpha1.Rule) bool {
	return slices.Contains(r.Tiers, v1alpha1.TierMIG) || r.MIG != nil
}

// unlisted reports whether the driver may list a board's partitions only in MIG mode, as older ones do.
func unlisted(g *gpu.GPU) bool {
	return g.MIG.Capable && g.MIG.NeedsReset && !g.MIG.Enabled && !g.MIG.Fixed && len(g.MIG.Catalog()) == 0
}

// noPartitions returns why a board cannot have partitions; empty if it can.
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

// profile returns the profile with a name from a board's catalog, or nil.
func profile(g *gpu.GPU, name string) *gpu.Profile {
	for i := range g.MIG.Profiles {
		if p := &g.MIG.Profiles[i]; p.Name == name && p.InCatalog() {
			return p
		}
	}
	return nil
}

// lacks reports that a board has no profile of a name, and lists its profiles.
func lacks(g *gpu.GPU, name string) string {
	return fmt.Sprintf("%s has no profile %s: it has %s", g.ProductName, name, strings.Join(g.MIG.Catalog(), ", "))
}
