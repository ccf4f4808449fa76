// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"strings"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Bar is a part of a GPU's slice map.
type Bar struct {
	// Units are the placement units that it covers. Shares of a GPU or partition are rounded to them, small ones to none.
	Units int `json:"units"`
	// Part of the GPU that it covers; those of a GPU add up to 1. A share is as wide as the most that it has of clients, memory or
	// cores: what the others lack is what decides whether another claim fits.
	Part float64 `json:"part"`
	// State is the segment's.
	State inspect.SegmentState `json:"-"`
	Means string               `json:"state"`
	Label string               `json:"label,omitempty"`
	// Claim is "namespace/name" of the first claim that is allocated the part, Pods those that it is reserved for.
	Claim string   `json:"claim,omitempty"`
	Pods  []string `json:"pods,omitempty"`
	// Details are the amounts of a share, in words.
	Details string `json:"details,omitempty"`
}

// Namespace of the bar's claim; empty without a claim.
func (b *Bar) Namespace() string {
	namespace, _, _ := strings.Cut(b.Claim, "/")
	return namespace
}

// barsOf draws a segment of a GPU with so many units. A shared GPU or partition is divided by its shares.
func barsOf(s inspect.Segment, units int) []Bar {
	size := max(1, s.Size)
	if s.Shape != nil && s.Shape.Placement == nil {
		size = units
	}
	first := Bar{Units: size, Part: float64(size) / float64(units), State: s.State, Means: s.State.String(), Label: s.Label}
	if s.Shape != nil && s.Shape.Total != nil {
		return shareBars(s, first)
	}
	for i := range s.Claims {
		if c := &s.Claims[i]; !c.AdminAccess {
			first.Claim, first.Pods = c.Claim, c.Pods
			break
		}
	}
	return []Bar{first}
}

// shareBars divides a bar among claims, by what each has of it, and what is left.
func shareBars(s inspect.Segment, all Bar) []Bar {
	var bars []Bar
	taken := 0.0
	for i := range s.Claims {
		c := &s.Claims[i]
		if c.AdminAccess {
			continue
		}
		part := most(c, s.Shape)
		taken += part
		bars = append(bars, Bar{Part: part, State: s.State, Means: s.State.String(), Label: s.Shape.Type, Claim: c.Claim, Pods: c.Pods,
			Details: c.Details()})
	}
	const least = 1e-6 // of rounding
	if left := 1 - taken; left > least || bars == nil {
		rest := restOf(s.Shape)
		bars = append(bars, Bar{State: rest, Means: rest.String(), Part: left})
	}
	scale, covered, drawn := all.Part/max(1, taken), 0.0, 0 // one claim may have most of the memory, and another most of the cores
	for i := range bars {
		b := &bars[i]
		b.Part *= scale
		covered += b.Part
		b.Units = int(math.Round(covered/all.Part*float64(all.Units))) - drawn
		drawn += b.Units
	}
	return bars
}

// most is the greatest part that a claim has of a shape's clients, memory and cores.
func most(c *inspect.Claim, s *inspect.Shape) float64 {
	has := inspect.Amounts{Shares: 1}
	if c.Has != nil {
		has = *c.Has
	}
	part := func(n, of int64) float64 {
		if of <= 0 {
			return 0
		}
		return float64(n) / float64(of)
	}
	shares := s.Total.Shares
	if s.Used != nil {
		shares = max(shares, s.Used.Shares)
	}
	return min(1, max(part(max(1, has.Shares), max(1, shares)), part(has.MemoryBytes, s.Total.MemoryBytes),
		part(has.CoresPercent, s.Total.CoresPercent)))
}

// restOf is the state of what claims leave of a shape.
func restOf(s *inspect.Shape) inspect.SegmentState {
	for _, t := range s.Taints {
		if t.Closes() {
			return inspect.SegmentTainted
		}
	}
	if s.State == inspect.Allocated {
		return inspect.SegmentRest
	}
	return inspect.SegmentFree
}
