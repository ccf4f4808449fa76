// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// Shape is a form in which a GPU can be offered: the whole GPU or a partition of a profile at a placement, either of them for one
// claim or shared by many.
type Shape struct {
	GPU *GPU
	// Profile and Placement of a partition; nil and zero for others.
	Profile   *Profile
	Placement Placement
	// Share is the way in which many claims share the GPU or partition; empty for exclusive ones.
	Share Share
}

// Whole is the shape of the whole GPU.
func (g *GPU) Whole() Shape { return Shape{GPU: g} }

// IsPartition distinguishes a partition, shared or not, from a whole GPU.
func (s Shape) IsPartition() bool { return s.Profile != nil }

// Name is the name of the shape's device: "gpu-0000-1b-00-0", for a partition with the profile ID and the start of the placement
// "gpu-0000-1b-00-0-mig-19-6", and for shared ones with the way of sharing at the end: "gpu-0000-1b-00-0-timeslice",
// "gpu-0000-1b-00-0-mig-9-4-mps". Profile names are not part of it: they change with the driver.
func (s Shape) Name() string {
	name := s.GPU.PCI.DeviceName()
	if s.IsPartition() {
		name = s.Place().DeviceName(name)
	}
	if s.IsShare() {
		name += "-" + string(s.Share)
	}
	return name
}

// Unshared is the GPU or partition of a shape, for one claim.
func (s Shape) Unshared() Shape {
	s.Share = ""
	return s
}

// Shared is the GPU or partition of a shape, shared by many claims.
func (s Shape) Shared(by Share) Shape {
	s.Share = by
	return s
}

// ParsePartitionName reads the profile ID and the start of the placement from the name of the device of a partition, shared
// or not, see Shape.Name.
func ParsePartitionName(name string) (profileID, start int, ok bool) {
	if _, err := ParseDeviceName(name); err != nil {
		return 0, 0, false
	}
	parts := strings.Split(name, "-")
	if len(parts) == 9 && slices.Contains(Shares(), Share(parts[8])) {
		parts = parts[:8]
	}
	if len(parts) != 8 || parts[5] != "mig" {
		return 0, 0, false
	}
	profileID, err := strconv.Atoi(parts[6])
	start, err2 := strconv.Atoi(parts[7])
	return profileID, start, err == nil && err2 == nil && profileID >= 0 && start >= 0
}

// Overlaps reports whether two shapes exclude each other because they unintentionally share hardware. It ignores engines, which
// counters track.
func (s Shape) Overlaps(t Shape) bool {
	if s.GPU.PCI != t.GPU.PCI || s.IsShare() && s.Name() == t.Name() {
		return false
	}
	return !s.IsPartition() || !t.IsPartition() || s.Placement.Overlaps(t.Placement)
}

// Shapes are all exclusive shapes that a GPU supports in its current mode: the whole GPU, then partitions in order of size, profile
// ID and start. If the MIG mode changes without a reset, these are all.
func (g *GPU) Shapes() []Shape {
	var shapes []Shape
	if g.CanBeWhole() {
		shapes = append(shapes, g.Whole())
	}
	if g.MIG.Fixed {
		return shapes
	}
	return append(shapes, g.PartitionShapes()...)
}

// CanBeWhole reports whether the GPU can be used as a whole without a reset, by one claim or shared.
func (g *GPU) CanBeWhole() bool {
	return g.MIG.Fixed || !g.MIG.NeedsReset || !g.MIG.Enabled
}

// CanBe reports whether some policy can offer the GPU as a device of a name.
func (g *GPU) CanBe(device string) bool {
	_, ok := g.ShapeNamed(device)
	return ok
}

// ShapeNamed is the shape with a device name that some policy can offer the GPU as.
func (g *GPU) ShapeNamed(device string) (Shape, bool) {
	shapes := g.PartitionShapes()
	if g.CanBeWhole() {
		shapes = append(shapes, g.Whole())
	}
	for _, s := range shapes {
		if s.Name() == device {
			return s, true
		}
		for _, by := range Shares() {
			if shared := s.Shared(by); shared.Name() == device {
				return shared, true
			}
		}
	}
	return Shape{}, false
}

// PartitionShapes are all partitions that a policy can offer, in order of size, profile ID and start; none if they need a reset.
func (g *GPU) PartitionShapes() []Shape {
	if g.MIG.NeedsReset && !g.MIG.Enabled {
		return nil
	}
	var shapes []Shape
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		if !p.InCatalog() {
			continue
		}
		for _, at := range p.Placements {
			shapes = append(shapes, Shape{GPU: g, Profile: p, Placement: at})
		}
	}
	return shapes
}

// variants are the known ends of names of profiles, by whether partitions of them are offered without being named by a policy. nvml.h
// says what they have, at NVML_GPU_INSTANCE_PROFILE_*; the names are those of nvidia-smi and of go-nvlib (mig_profile.go).
var variants = map[string]bool{
	"":        true,
	"+me":     true,  // _REV1: at least one of each kind of media engine: decoder, encoder, JPEG, OFA
	"+me.all": false, // _ALL_ME: all of them, which "prevents allocation of all but _NO_ME profiles"
	"-me":     false, // _NO_ME: none
	"+gfx":    false, // _GFX: graphics APIs work
}

// variant is the end of the profile's name, after "1g.24gb"; not ok for profiles without a name.
func (p *Profile) variant() (end string, ok bool) {
	at := strings.IndexAny(p.Name, "+-")
	if at < 0 {
		at = len(p.Name)
	}
	return p.Name[at:], at > 0
}

// InCatalog reports whether a policy can offer partitions of the profile.
func (p *Profile) InCatalog() bool {
	end, ok := p.variant()
	_, known := variants[end]
	return ok && known
}

// ByDefault reports whether partitions of the profile are offered without being named by a policy: plain ones and those with media
// engines (+me). Others are for few workloads, and would nearly triple the devices of a board that has them: 30 instead of 11.
func (p *Profile) ByDefault() bool {
	end, ok := p.variant()
	return ok && variants[end]
}

// FitsAlongside reports whether a shape can be created while others exist, of any creator and profile.
func (s Shape) FitsAlongside(others []Shape) bool {
	if len(others) == 0 {
		return true // any offered shape fits an empty board
	}
	return Coexist(append(slices.Clone(others), s), s.GPU.Counters()) && !slices.ContainsFunc(others, s.Overlaps)
}

// FillsGPU reports whether nothing else of its GPU can be allocated alongside the shape.
func (s Shape) FillsGPU() bool {
	return !s.IsPartition() || s.Placement.Size == s.GPU.MIG.Slices
}
