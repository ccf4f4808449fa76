// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Measures of a picture, in pixels.
const (
	svgWidth, svgMargin    = 760, 60
	panelHeight, panelStep = 130, 190
	svgTop                 = 80
)

// looks of strategies: a color and a dash, so that they differ in print, too.
var looks = map[string]struct{ color, dash string }{
	Default:  {"#b3261e", "6 3"},
	"pack":   {"#00639b", ""},
	"spread": {"#6a6a6a", "2 3"},
	Preempt:  {"#1b7837", "8 2 2 2"},
}

// SVG draws the curves, one above the other, with time from left to right.
func (r *Report) SVG(w io.Writer, title string) error {
	var b strings.Builder
	panels := curves
	if r.queued() {
		panels = nil // all GPUs are in use, and nothing is rejected
	}
	height := svgTop + max(1, len(panels))*panelStep
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="13">`+"\n", svgWidth, height, svgWidth, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	svgText(&b, svgMargin, 24, "start", title)
	pool := fmt.Sprintf("%d nodes of %s, %d GPUs; load %.0f %%; seed %d", r.Nodes, r.Model, r.GPUs, 100*r.Load, r.Seed)
	for i := range r.Results {
		if n := r.Results[i].GivenUp; n > 0 {
			pool += fmt.Sprintf("; %s gave up %d of %d requests", r.Results[i].Strategy, n, r.Results[i].Requests)
		}
	}
	svgText(&b, svgMargin, 44, "start", pool)
	x := svgMargin
	for i := range r.Results {
		look := looks[r.Results[i].Strategy]
		fmt.Fprintf(&b, `<line x1="%d" y1="60" x2="%d" y2="60" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n",
			x, x+30, look.color, look.dash)
		svgText(&b, x+36, 64, "start", r.Results[i].Strategy)
		x += 120
	}
	for i, c := range panels {
		r.panel(&b, c, svgTop+i*panelStep)
	}
	if r.queued() {
		r.bars(&b, svgTop)
	}
	b.WriteString("</svg>\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// panel draws one curve of all strategies.
func (r *Report) panel(b *strings.Builder, c curve, y int) {
	top, right, bottom := r.top(c), svgWidth-svgMargin/2, y+30+panelHeight
	svgText(b, svgMargin, y+20, "start", c.title)
	// What is not counted is shaded.
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f0f0f0"/>`+"\n", svgMargin, y+30, (right-svgMargin)/warmUp, panelHeight)
	for _, part := range []float64{0, 0.5, 1} {
		at := bottom - int(part*panelHeight)
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#cccccc"/>`+"\n", svgMargin, at, right, at)
		svgText(b, svgMargin-6, at+4, "end", c.text(part*top))
	}
	svgText(b, svgMargin, bottom+16, "start", "0h")
	svgText(b, right, bottom+16, "end", hours(r.Duration))
	for i := range r.Results {
		look := looks[r.Results[i].Strategy]
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5" stroke-dasharray="%s" points="`, look.color, look.dash)
		for n, s := range r.Results[i].Samples {
			x := svgMargin + float64(n+1)*float64(right-svgMargin)/float64(len(r.Results[i].Samples))
			fmt.Fprintf(b, "%.1f,%.1f ", x, float64(bottom)-c.of(s)/top*panelHeight)
		}
		b.WriteString(`"/>` + "\n")
	}
}

func svgText(b *strings.Builder, x, y int, anchor, text string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s">`, x, y, anchor)
	_ = xml.EscapeText(b, []byte(text)) // a Builder never fails
	b.WriteString("</text>\n")
}
