// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// stateClass is the CSS class of a bar: each has its own pattern.
var stateClass = map[inspect.SegmentState]string{
	inspect.SegmentAllocated: "a",
	inspect.SegmentReady:     "r",
	inspect.SegmentChanging:  "c",
	inspect.SegmentUnmanaged: "u",
	inspect.SegmentTainted:   "t",
}

// stateSign is drawn in a bar without a claim.
var stateSign = map[inspect.SegmentState]string{
	inspect.SegmentChanging: "~", inspect.SegmentUnmanaged: "×", inspect.SegmentTainted: "!",
}

// mapWidth is how many columns a slice map has in the style sheet (w1 to w8).
const mapWidth = 8

// miniMap is a GPU's slice map in a row of the list.
func (r *renderer) miniMap(g *fleet.GPU) *html.Node {
	names := []string{"gpu"}
	if len(g.Taints) > 0 {
		names = append(names, "tainted")
	}
	n := el("span", class(names...), attr{"role", "img"}, attr{"aria-label", gpuLabel(g)}, attr{"title", gpuLabel(g)})
	for i := 0; i < len(g.Bars); i++ {
		b, last := &g.Bars[i], i
		for last+1 < len(g.Bars) && b.Claim == "" && g.Bars[last+1].Claim == "" && g.Bars[last+1].State == b.State && b.Label == "" &&
			g.Bars[last+1].Label == "" {
			last++
		}
		units := 0
		for _, same := range g.Bars[i : last+1] {
			units += same.Units
		}
		n.AppendChild(r.bar(b, units, g.Units))
		i = last
	}
	return n
}

// bar is one part of a mini map.
func (r *renderer) bar(b *fleet.Bar, units, of int) *html.Node {
	text := stateSign[b.State]
	if ns := b.Namespace(); ns != "" {
		text = initials(ns)
	}
	return el("i", class(barClasses(r.palette.class(b.Namespace()), b.State, units, of)...), text)
}

func barClasses(colour string, state inspect.SegmentState, units, of int) []string {
	names := []string{"w" + strconv.Itoa(columns(units, of))}
	for _, name := range []string{stateClass[state], colour} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// columns is the width of a bar, at least one column of eight.
func columns(units, of int) int { return min(mapWidth, max(1, (units*mapWidth+of/2)/of)) }

// gpuLabel describes a map.
func gpuLabel(g *fleet.GPU) string {
	parts := []string{g.Name}
	for _, b := range g.Bars {
		switch {
		case b.Claim != "":
			parts = append(parts, strings.TrimSpace(b.Label+" "+b.Claim))
		case b.Label != "":
			parts = append(parts, b.Label+" "+b.Means)
		}
	}
	parts = append(parts, "free: "+g.Free)
	for _, t := range g.Taints {
		parts = append(parts, "taint "+taintText(t))
	}
	return strings.Join(parts, ", ")
}

func taintText(t inspect.Taint) string {
	if t.Value == "" {
		return t.Key
	}
	return t.Key + "=" + t.Value
}

// amounts lists the first free devices.
func amounts(all []inspect.Amount, most int) string {
	var parts []string
	for i, a := range all {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(all)-most))
			break
		}
		if a.Type == "gpu" && a.Count > 1 {
			parts = append(parts, fmt.Sprintf("%d whole", a.Count))
		} else {
			parts = append(parts, a.String())
		}
	}
	return strings.Join(parts, ", ")
}
