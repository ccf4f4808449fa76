// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// span is a range of placement units.
type span struct {
	start, size int
	label       string
	fill        fill
}

// fill is the state of a span, by which it is drawn.
type fill int

const (
	fillFree fill = iota
	fillAllocated
	fillReady
	fillChanging
	fillUnmanaged
	fillTainted
)

// fills in order of the legend, drawn with and without Unicode.
var fills = []struct {
	ascii, unicode string
	means          string
}{
	fillFree:      {".", "·", "free"},
	fillAllocated: {"#", "█", "allocated"},
	fillReady:     {"=", "░", "a partition ready for a claim"},
	fillChanging:  {"~", "▒", "a partition being created or destroyed, or missing"},
	fillUnmanaged: {"x", "×", "an unmanaged partition"},
	fillTainted:   {"!", "!", "tainted"},
}

var fillOf = map[PartitionState]fill{
	PartitionAllocated: fillAllocated,
	PartitionReady:     fillReady,
	PartitionPreparing: fillChanging,
	PartitionReleasing: fillChanging,
	PartitionMissing:   fillChanging,
	PartitionIdle:      fillChanging,
	PartitionUnmanaged: fillUnmanaged,
}

// spans divides a GPU's placement units into spans.
func (g *GPU) spans() []span {
	for i := range g.Shapes {
		s := &g.Shapes[i]
		if s.isPartition() || !s.isAllocated() || len(g.Partitions) > 0 {
			continue
		}
		label := "whole"
		if s.isShared() {
			label = s.usedText()
		}
		return []span{{0, g.Slices, label, fillAllocated}}
	}
	var all []span
	for unit := 0; unit < g.Slices; {
		next := span{start: unit, size: 1}
		at := slices.IndexFunc(g.Partitions, func(p Partition) bool { return p.Placement.Start == unit })
		switch {
		case at >= 0:
			p := &g.Partitions[at]
			next.size, next.label, next.fill = min(p.Placement.Size, g.Slices-unit), p.Profile, fillOf[p.State]
		case g.isTainted(unit):
			next.fill = fillTainted
		}
		unit += next.size
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

// cell is the width of a unit in characters, with its left edge: enough for the labels if the terminal is wide enough.
func cell(units int, width int, all [][]span) int {
	const least, empty = 2, 5
	need := empty
	for _, line := range all {
		for _, s := range line {
			if s.label != "" {
				need = max(need, (utf8.RuneCountInString(s.label)+len("| #")+s.size-1)/s.size)
			}
		}
	}
	return max(least, min(need, width/units))
}

// short is the longest form of a profile name that fits: "1g.10gb+me", "1g+me", "1g".
func short(label string, room int) string {
	family, rest, isProfile := strings.Cut(label, ".")
	forms := []string{label}
	if isProfile {
		_, extra, found := strings.Cut(rest, "+")
		if found {
			forms = append(forms, family+"+"+extra)
		}
		forms = append(forms, family)
	}
	for _, form := range forms {
		if utf8.RuneCountInString(form) <= room {
			return form
		}
	}
	return ""
}

// maps prints the placement units of each GPU that can be partitioned.
func (p *printer) maps() {
	drawn := slices.DeleteFunc(slices.Clone(p.view.GPUs), func(g GPU) bool { return g.Slices == 0 })
	if len(drawn) == 0 {
		return
	}
	p.section("Slices (placement units of each GPU):")
	name := 0
	for i := range drawn {
		name = max(name, len(drawn[i].Name))
	}
	used := map[fill]bool{}
	for len(drawn) > 0 {
		same := slices.IndexFunc(drawn, func(g GPU) bool { return g.Slices != drawn[0].Slices })
		if same < 0 {
			same = len(drawn)
		}
		p.board(drawn[:same], name, used)
		drawn = drawn[same:]
	}
	var key []string
	for i, f := range fills {
		if used[fill(i)] {
			key = append(key, p.pick(f.ascii, f.unicode)+" "+f.means)
		}
	}
	p.linef("  %s", strings.Join(key, "   "))
}

// pick chooses the character that the terminal supports.
func (p *printer) pick(ascii, unicode string) string {
	if p.options.ASCII {
		return ascii
	}
	return unicode
}

// board prints GPUs with the same number of units below a common scale.
func (p *printer) board(gpus []GPU, name int, used map[fill]bool) {
	const margin = 4 // before, between and after
	units := gpus[0].Slices
	var all [][]span
	for i := range gpus {
		all = append(all, gpus[i].spans())
	}
	w := cell(units, p.options.Width-name-margin, all)
	scale := strings.Builder{}
	for unit := range units {
		fmt.Fprintf(&scale, "%-*s", w, strconv.Itoa(unit))
	}
	p.linef("  %-*s  %s", name, "", scale.String())
	edge := p.pick("|", "│")
	for i := range gpus {
		line := strings.Builder{}
		for _, s := range all[i] {
			used[s.fill] = true
			room := s.size*w - 1
			label := short(s.label, room-1) // the fill shows the state
			if label != "" && utf8.RuneCountInString(label) < room-1 {
				label += " "
			}
			line.WriteString(edge + label + strings.Repeat(p.pick(fills[s.fill].ascii, fills[s.fill].unicode),
				max(0, room-utf8.RuneCountInString(label))))
		}
		p.linef("  %-*s %s%s", name, gpus[i].Name, line.String(), edge)
	}
}
