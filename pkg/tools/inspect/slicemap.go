// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cell is the width of a unit in characters, with its left edge: enough for the labels if the terminal is wide enough.
func cell(units int, width int, all [][]Segment) int {
	const least, empty = 2, 5
	need := empty
	for _, line := range all {
		for _, s := range line {
			if s.Label != "" {
				need = max(need, (utf8.RuneCountInString(s.Label)+len("| #")+s.Size-1)/s.Size)
			}
		}
	}
	return max(least, min(need, width/units))
}

// short is the longest form of a profile name that fits: "1g.10gb+me", "1g+me", "1g"; "1g.24gb-me", "1g-me", "1g".
func short(label string, room int) string {
	family, rest, isProfile := strings.Cut(label, ".")
	forms := []string{label}
	if isProfile {
		if at := strings.IndexAny(rest, "+-"); at >= 0 {
			forms = append(forms, family+rest[at:])
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
	used := map[SegmentState]bool{}
	for len(drawn) > 0 {
		same := slices.IndexFunc(drawn, func(g GPU) bool { return g.Slices != drawn[0].Slices })
		if same < 0 {
			same = len(drawn)
		}
		p.board(drawn[:same], name, used)
		drawn = drawn[same:]
	}
	var key []string
	for i, f := range segmentStates {
		if used[SegmentState(i)] {
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
func (p *printer) board(gpus []GPU, name int, used map[SegmentState]bool) {
	const margin = 4 // before, between and after
	units := gpus[0].Slices
	var all [][]Segment
	for i := range gpus {
		all = append(all, gpus[i].Segments())
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
			used[s.State] = true
			room := s.Size*w - 1
			label := short(s.Label, room-1) // the fill shows the state
			if label != "" && utf8.RuneCountInString(label) < room-1 {
				label += " "
			}
			line.WriteString(edge + label + strings.Repeat(p.pick(segmentStates[s.State].ascii, segmentStates[s.State].unicode),
				max(0, room-utf8.RuneCountInString(label))))
		}
		p.linef("  %-*s %s%s", name, gpus[i].Name, line.String(), edge)
	}
}
