// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"math"
	"slices"
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
	inspect.SegmentRest:      "l",
}

// stateSign is drawn in a bar without a claim.
var stateSign = map[inspect.SegmentState]string{
	inspect.SegmentChanging: "~", inspect.SegmentUnmanaged: "×", inspect.SegmentTainted: "!",
}

// mapWidth is how many columns a slice map has in the style sheet (w1 to w40): five for each of eight placement units.
const mapWidth = 40

// Columns that texts of a row's bars need.
const (
	initialsWidth = mapWidth / 10
	nameWidth     = mapWidth / 3
)

// miniMap is a GPU's number and slice map in a row of the list.
func (r *renderer) miniMap(g *fleet.GPU) *html.Node {
	names, number := []string{"gpu"}, strings.TrimPrefix(g.Name, "GPU")
	if len(g.Taints) > 0 {
		names, number = append(names, "tainted"), "!"+number
	}
	bars := el("span", class("bar"))
	merged := mergeFree(g.Bars)
	for i, width := range columns(merged) {
		bars.AppendChild(r.bar(&merged[i], width))
	}
	label := gpuLabel(g)
	return el("span", class(names...), attr{"role", "img"}, attr{"aria-label", label}, attr{"title", label}, el("b", number), bars)
}

// mergeFree makes one bar of neighbours without a claim or a label.
func mergeFree(all []fleet.Bar) []fleet.Bar {
	var merged []fleet.Bar
	empty := func(b *fleet.Bar) bool { return b.Claim == "" && b.Label == "" }
	for i := range all {
		b := &all[i]
		if last := len(merged) - 1; last >= 0 && empty(b) && empty(&merged[last]) && merged[last].State == b.State {
			merged[last].Units += b.Units
			merged[last].Part += b.Part
			continue
		}
		merged = append(merged, *b)
	}
	return merged
}

// bar is one part of a mini map.
func (r *renderer) bar(b *fleet.Bar, width int) *html.Node {
	text := []any{stateSign[b.State]}
	if ns := b.Namespace(); ns != "" {
		text = []any{}
		if width >= initialsWidth {
			text = append(text, el("b", r.palette.initials(ns)))
		}
		if width >= nameWidth {
			text = append(text, el("span", user(b)))
		}
	}
	return el("i", class(barClasses(r.palette.class(b.Namespace()), b.State, width)...), text)
}

// user is who has a bar: the first pod, or the claim without its namespace.
func user(b *fleet.Bar) string {
	if len(b.Pods) == 1 {
		return b.Pods[0]
	}
	if len(b.Pods) > 1 {
		return fmt.Sprintf("%s +%d", b.Pods[0], len(b.Pods)-1)
	}
	_, name, _ := strings.Cut(b.Claim, "/")
	return name
}

func barClasses(colour string, state inspect.SegmentState, width int) []string {
	names := []string{"w" + strconv.Itoa(width)}
	for _, name := range []string{stateClass[state], colour} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// columns are the widths of bars: they add up to mapWidth, and each is at least 1. With more bars than columns the last ones are not
// drawn.
func columns(bars []fleet.Bar) []int {
	widths := make([]int, min(len(bars), mapWidth))
	covered, drawn := 0.0, 0
	for i := range widths {
		covered += bars[i].Part
		widths[i] = max(1, int(math.Round(covered*mapWidth))-drawn)
		drawn += widths[i]
	}
	for ; drawn > mapWidth; drawn-- { // those of less than a column take from the widest
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		widths[widest]--
	}
	if n := len(widths); n > 0 && drawn < mapWidth {
		widths[n-1] += mapWidth - drawn
	}
	return widths
}

// gpuLabel describes a map.
func gpuLabel(g *fleet.GPU) string {
	parts := []string{g.Name}
	for i := range g.Bars {
		switch b := &g.Bars[i]; {
		case b.Claim != "":
			parts = append(parts, b.Label+" "+barText(b))
		case b.Label != "":
			parts = append(parts, b.Label+" "+b.Means)
		}
	}
	parts = append(parts, "free: "+g.Free)
	for _, t := range g.Taints {
		parts = append(parts, "taint "+taintText(t))
	}
	return strings.TrimSpace(strings.Join(parts, ", "))
}

// barText is who has a bar, in words: "team/chat (pod chat-0; 1 share, 50% cores)".
func barText(b *fleet.Bar) string {
	var more []string
	switch len(b.Pods) {
	case 0:
	case 1:
		more = append(more, "pod "+b.Pods[0])
	default:
		more = append(more, "pods "+strings.Join(b.Pods, ", "))
	}
	if b.Details != "" {
		more = append(more, b.Details)
	}
	if more == nil {
		return b.Claim
	}
	return b.Claim + " (" + strings.Join(more, "; ") + ")"
}

// gpuName is the name of the GPU that a device is, or is a part of; empty if it is not known.
func gpuName(shot *fleet.Snapshot, d *fleet.Device) string {
	at, found := slices.BinarySearchFunc(shot.Nodes, d.Node, func(n *fleet.Node, name string) int { return strings.Compare(n.Name, name) })
	if !found {
		return ""
	}
	for i := range shot.Nodes[at].GPUs {
		g := &shot.Nodes[at].GPUs[i]
		if rest, ok := strings.CutPrefix(d.Device, g.Device); ok && (rest == "" || rest[0] == '-') {
			return g.Name
		}
	}
	return ""
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
