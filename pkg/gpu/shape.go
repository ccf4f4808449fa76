// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is one of the forms a GPU can be handed out in: the whole GPU, a partition of a profile at a placement, or the
// GPU shared by many claims.
type Shape struct {
	GPU *GPU
	// Profile and Placement of a partition; nil and zero for others.
	Profile   *Profile
	Placement Placement
	// Share of a shared GPU; empty for others.
	Share Share
}

// Whole is the shape of the whole GPU.
func (g *GPU) Whole() Shape { return Shape{GPU: g} }

// IsPartition tells a partition from what takes the whole GPU.
func (s Shape) IsPartition() bool { return s.Profile != nil }

// Name is the name of the shape's device: "gpu-0000-1b-00-0", for a shared GPU "gpu-0000-1b-00-0-timeslice", and for a
// partition with the profile ID and the start of the placement "gpu-0000-1b-00-0-mig-19-6". Profile names are no part
// of it: they change with the driver.
func (s Shape) Name() string {
	name := s.GPU.PCI.DeviceName()
	switch {
	case s.IsShare():
		name += "-" + string(s.Share)
	case s.IsPartition():
		name += fmt.Sprintf("-mig-%d-%d", s.Profile.ID, s.Placement.Start)
	}
	return name
}

// Overlaps tells whether the two shapes cannot be handed out at the same time because they share hardware, and not by
// intent. It says nothing of engines, which the counters keep.
func (s Shape) Overlaps(t Shape) bool {
	if s.GPU.PCI != t.GPU.PCI || s.IsShare() && s.Share == t.Share {
		return false
	}
	return !s.IsPartition() || !t.IsPartition() || s.Placement.Overlaps(t.Placement)
}

// Shapes are all that a GPU offers now: the whole GPU, then shared devices, then partitions in order of size, profile ID
// and start.
//
// Where the MIG mode changes without a reset, a GPU offers everything and the mode follows what is claimed. Where it
// needs a reset, which is the admin's to do, the mode that is found decides: partitions or the whole GPU.
func (g *GPU) Shapes() []Shape {
	var shapes []Shape
	offer := g.offer()
	if g.MIG.Fixed || !g.MIG.NeedsReset || !g.MIG.Enabled {
		if g.offersWhole() {
			shapes = append(shapes, g.Whole())
		}
		for _, share := range Shares() {
			if g.Sharing(share) != nil {
				shapes = append(shapes, Shape{GPU: g, Share: share})
			}
		}
	}
	if g.MIG.NeedsReset && !g.MIG.Enabled || offer.Partitions == nil || g.MIG.Fixed && offer.Partitions.Mode != Existing {
		return shapes
	}
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		if !p.InCatalog() {
			continue
		}
		for _, at := range p.Placements {
			if offer.Partitions.offers(Place{p.ID, at}) {
				shapes = append(shapes, Shape{GPU: g, Profile: p, Placement: at})
			}
		}
	}
	return shapes
}

// offersWhole tells whether the whole GPU is among its shapes.
func (g *GPU) offersWhole() bool {
	return g.offer().Whole && (g.MIG.Fixed || !g.MIG.NeedsReset || !g.MIG.Enabled)
}

// InCatalog tells whether partitions of the profile are offered: all plain ones and those with media engines (+me).
// The graphics variants (+gfx) and those that take all or none of the media engines are not.
func (p *Profile) InCatalog() bool {
	plain, extra, found := strings.Cut(p.Name, "+")
	return plain != "" && !strings.Contains(plain, "-") && (!found || extra == "me")
}

// FindShape returns what a GPU of the node offers under a device name.
func (n *Node) FindShape(device string) (Shape, bool) {
	for i := range n.GPUs {
		name := n.GPUs[i].PCI.DeviceName()
		if !strings.HasPrefix(device, name) {
			continue
		}
		if device == name {
			return n.GPUs[i].Whole(), n.GPUs[i].offersWhole()
		}
		for _, s := range n.GPUs[i].Shapes() {
			if s.Name() == device {
				return s, true
			}
		}
	}
	return Shape{}, false
}

// FitsBeside tells whether a shape can be made while others, made by whomever and of any profile, are there.
func (s Shape) FitsBeside(others []Shape) bool {
	if len(others) == 0 {
		return true // whatever a board offers fits an empty one
	}
	left := map[string]int64{}
	all := s.GPU.Counters()
	for _, c := range all {
		left[c.Name] = c.Value
	}
	for _, t := range append(slices.Clone(others), s) {
		for _, c := range t.ConsumesOf(all) {
			left[c.Name] -= c.Value
			if left[c.Name] < 0 {
				return false
			}
		}
	}
	return !slices.ContainsFunc(others, s.Overlaps)
}

// fillsGPU tells whether nothing else of its GPU can be handed out beside the shape.
func (s Shape) fillsGPU() bool {
	return !s.IsPartition() || s.Placement.Size == s.GPU.MIG.Slices
}
