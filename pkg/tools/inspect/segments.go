// SPDX-License-Identifier: Apache-2.0

package inspect

import "slices"

// Segment is a range of a GPU's placement units. The segments of a GPU cover all its units in order.
type Segment struct {
	// Start and Size are zero on a GPU whose units are unknown.
	Start, Size int
	// Label names the occupant; empty if there is none.
	Label  string
	State  SegmentState
	Claims []Claim
	// Shape is the whole or shared GPU that covers all units, or the shared partition; nil for another partition and for nothing.
	Shape *Shape
}

// SegmentState is the state of a segment, by which it is drawn.
type SegmentState int

// The states of segments.
const (
	SegmentFree SegmentState = iota
	SegmentAllocated
	// SegmentReady is a partition that is ready for a claim.
	SegmentReady
	// SegmentChanging is a partition that is being created or destroyed, or missing.
	SegmentChanging
	SegmentUnmanaged
	SegmentTainted
	// SegmentRest is what claims leave of a shared GPU or partition, if it is too little for another one.
	SegmentRest
)

// segmentStates in order of the legend, drawn with and without Unicode.
var segmentStates = []struct {
	ascii, unicode string
	means          string
}{
	SegmentFree:      {".", "·", "free"},
	SegmentAllocated: {"#", "█", "allocated"},
	SegmentReady:     {"=", "░", "a partition ready for a claim"},
	SegmentChanging:  {"~", "▒", "a partition being created or destroyed, or missing"},
	SegmentUnmanaged: {"x", "×", "an unmanaged partition"},
	SegmentTainted:   {"!", "!", "tainted"},
	SegmentRest:      {"-", "-", "too little left for another claim"},
}

// String describes the state.
func (s SegmentState) String() string { return segmentStates[s].means }

var segmentOf = map[PartitionState]SegmentState{
	PartitionAllocated: SegmentAllocated,
	PartitionReady:     SegmentReady,
	PartitionPreparing: SegmentChanging,
	PartitionReleasing: SegmentChanging,
	PartitionMissing:   SegmentChanging,
	PartitionIdle:      SegmentChanging,
	PartitionUnmanaged: SegmentUnmanaged,
}

// Segments divides a GPU's placement units.
func (g *GPU) Segments() []Segment {
	for i := range g.Shapes {
		s := &g.Shapes[i]
		if s.isPartition() || !s.isAllocated() || len(g.Partitions) > 0 {
			continue
		}
		label := "whole"
		if s.isShared() {
			label = s.usedText()
		}
		return []Segment{{Size: g.Slices, Label: label, State: SegmentAllocated, Claims: s.Claims, Shape: s}}
	}
	var all []Segment
	for unit := 0; unit < g.Slices; {
		next := Segment{Start: unit, Size: 1}
		at := slices.IndexFunc(g.Partitions, func(p Partition) bool { return p.Placement.Start == unit })
		switch {
		case at >= 0:
			p := &g.Partitions[at]
			next.Size, next.Label, next.State, next.Claims = min(p.Placement.Size, g.Slices-unit), p.Profile, segmentOf[p.State], p.Claims
			next.Shape = g.sharedAt(p.Placement)
		case g.isTainted(unit):
			next.State = SegmentTainted
		}
		unit += next.Size
		all = append(all, next)
	}
	return all
}

// isTainted reports whether all partitions with a unit are tainted.
func (g *GPU) isTainted(unit int) bool {
	tainted := false
	for i := range g.Shapes {
		s := &g.Shapes[i]
		if s.isPartition() && s.Placement.Start <= unit && unit < s.Placement.Start+s.Placement.Size {
			if !s.closed() {
				return false
			}
			tainted = true
		}
	}
	return tainted
}
