// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// queued reports whether pods waited.
func (r *Report) queued() bool {
	return slices.ContainsFunc(r.Results, func(r Result) bool {
		return slices.ContainsFunc(r.Kinds, func(k KindResult) bool { return k.Waited != nil })
	})
}

// bars draw how long 95 of 100 pods of each kind waited at most, one bar for each strategy.
func (r *Report) bars(b *strings.Builder, y int) {
	svgText(b, svgMargin, y+20, "start", "95 % of pods waited no longer than")
	most := time.Minute
	for i := range r.Results {
		for _, k := range r.Results[i].Kinds {
			if k.Waited != nil {
				most = max(most, k.Waited.Most)
			}
		}
	}
	const label, height = 110, 9
	at := y + 34
	step := (panelHeight - 10) / max(1, len(r.Results[0].Kinds))
	for k := range r.Results[0].Kinds {
		svgText(b, svgMargin, at+height, "start", r.Results[0].Kinds[k].Name)
		for i := range r.Results {
			waited := time.Duration(0)
			if w := r.Results[i].Kinds[k].Waited; w != nil {
				waited = w.Most
			}
			width := int(int64(waited) * int64(svgWidth-2*svgMargin-label-80) / int64(most))
			top := at + i*height
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", svgMargin+label, top, max(1, width), height-2,
				looks[r.Results[i].Strategy].color)
			fmt.Fprintf(b, `<text x="%d" y="%d" font-size="9">%s</text>`+"\n", svgMargin+label+max(1, width)+4, top+height-2, minutes(waited))
		}
		at += max(step, len(r.Results)*height+4)
	}
}
