// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// curve is one number of the samples over time.
type curve struct {
	title string
	// unit follows the number, which has so many digits after the point.
	unit   string
	digits int
	of     func(Sample) float64
}

// curves of a report, in order.
var curves = []curve{
	{"whole GPUs free", "", 0, func(s Sample) float64 { return float64(s.WholeFree) }},
	{"fragmentation of what is free", " %", 0, func(s Sample) float64 { return 100 * s.Fragmentation }},
	{"compute slices rejected", " %", 1, func(s Sample) float64 { return 100 * s.RejectedSlices }},
}

func (c curve) text(v float64) string { return fmt.Sprintf("%.*f%s", c.digits, v, c.unit) }

// top is the highest value of a curve in all results, and at least 1.
func (r *Report) top(c curve) float64 {
	top := 1.0
	for i := range r.Results {
		for _, s := range r.Results[i].Samples {
			top = max(top, c.of(s))
		}
	}
	return top
}

// Print writes a table with a column for each strategy, and the curves, in ASCII alone if
// need be.
func (r *Report) Print(w io.Writer, ascii bool) error {
	fmt.Fprintf(w, "%d nodes of %s, %d GPUs; load %.0f %%; %s, of which the first quarter is not counted; seed %d\n\n",
		r.Nodes, r.Model, r.GPUs, 100*r.Load, hours(r.Duration), r.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(name string, of func(*Result) string) {
		fmt.Fprint(t, name)
		for i := range r.Results {
			fmt.Fprint(t, "\t", of(&r.Results[i]))
		}
		fmt.Fprintln(t)
	}
	row("", func(r *Result) string { return r.Strategy })
	row("requests rejected", func(r *Result) string { return share(r.Rejected, r.Requests) })
	for k := range r.Results[0].Kinds {
		row("  "+r.Results[0].Kinds[k].Name, func(r *Result) string { return share(r.Kinds[k].Rejected, r.Kinds[k].Requests) })
	}
	for k := range r.Results[0].Kinds {
		if name := r.Results[0].Kinds[k].Name; slices.ContainsFunc(r.Results, func(r Result) bool { return r.Kinds[k].Waited != nil }) {
			row("waited for a place, "+name, func(r *Result) string { return r.Kinds[k].waited() })
		}
	}
	if slices.ContainsFunc(r.Results, func(r Result) bool { return r.GivenUp > 0 }) {
		limit := fmt.Sprintf("given up after %s, neither placed nor rejected", hours(SearchLimit))
		row(limit, func(r *Result) string { return share(r.GivenUp, r.Requests) })
	}
	row("compute slices rejected", func(r *Result) string { return percent(r.RejectedSlices, r.Slices) })
	row("compute slices allocated", func(r *Result) string { return fmt.Sprintf("%.1f %%", 100*r.Allocated) })
	row("whole GPUs free", func(r *Result) string { return fmt.Sprintf("%.0f, at least %d", r.WholeFree, r.LeastWholeFree) })
	row("fragmentation of what is free", func(r *Result) string { return fmt.Sprintf("%.0f %%", 100*r.Fragmentation) })
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	for _, c := range curves {
		if err := r.plot(w, c, ascii); err != nil {
			return fmt.Errorf("print the curves: %w", err)
		}
	}
	return nil
}

// waited is how long pods waited, and how often they were evicted.
func (k *KindResult) waited() string {
	if k.Waited == nil {
		return "-"
	}
	text := fmt.Sprintf("half %s, 95 %% %s", minutes(k.Waited.Half), minutes(k.Waited.Most))
	if k.Evicted > 0 {
		text += fmt.Sprintf(", evicted %d times", k.Evicted)
	}
	return text
}

func minutes(d time.Duration) string { return hours(d.Round(time.Minute)) }

// share is a part of a number of requests.
func share(part, of int) string {
	return fmt.Sprintf("%s (%d of %d)", percent(float64(part), float64(of)), part, of)
}

func percent(part, of float64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/of)
}

// hours is a time without "0m0s".
func hours(d time.Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = strings.TrimSuffix(short, "h0")
		if text != short {
			return text + "h"
		}
		return text + "m"
	}
	return text
}

// plotWidth is the characters of a curve.
const plotWidth = 60

// plot draws a curve as one line of bars for each strategy.
func (r *Report) plot(w io.Writer, c curve, ascii bool) error {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	if ascii {
		levels = []rune(" .:-=+*#%")
	}
	top := r.top(c)
	if _, err := fmt.Fprintf(w, "\n%s over time, up to %s\n", c.title, c.text(top)); err != nil {
		return err
	}
	for i := range r.Results {
		var bars strings.Builder
		for x := range plotWidth {
			bars.WriteRune(levels[level(r.Results[i].Samples, c, x, top, len(levels)-1)])
		}
		if _, err := fmt.Fprintf(w, "  %-8s |%s|\n", r.Results[i].Strategy, bars.String()); err != nil {
			return err
		}
	}
	return nil
}

// level is the height of a bar, 0 to highest: that of the average of its samples.
func level(all []Sample, c curve, x int, top float64, highest int) int {
	from, to := x*len(all)/plotWidth, (x+1)*len(all)/plotWidth
	sum := 0.0
	for _, s := range all[from:to] {
		sum += c.of(s)
	}
	average := sum / float64(max(1, to-from))
	return min(highest, int(average/top*float64(highest)+0.5))
}
