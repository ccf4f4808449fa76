// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// result is one measured number and what it is to be at most.
type result struct {
	Name string `json:"name"`
	// Value and Limit in Unit; Limit 0 means that the number is for information.
	Value float64 `json:"value"`
	Limit float64 `json:"limit,omitempty"`
	Unit  string  `json:"unit"`
	// Rule says where the limit comes from.
	Rule string `json:"rule,omitempty"`
}

// report is a whole run.
type report struct {
	Started time.Time `json:"started"`
	Results []result  `json:"results"`
}

func (r *report) add(res result) { r.Results = append(r.Results, res) }

// addSingles adds single operations; their medians have a limit.
func (r *report) addSingles(prefix string, o operations, limit float64, rule string) {
	r.add(result{Name: prefix + "prepare p50", Value: millis(o.prepare.percentile(50)), Limit: limit, Unit: "ms", Rule: rule})
	r.add(result{Name: prefix + "prepare p99", Value: millis(o.prepare.percentile(99)), Unit: "ms"})
	r.add(result{Name: prefix + "unprepare p50", Value: millis(o.unprepare.percentile(50)), Limit: limit, Unit: "ms", Rule: rule})
	r.add(result{Name: prefix + "unprepare p99", Value: millis(o.unprepare.percentile(99)), Unit: "ms"})
}

// addDrifted adds a median that may be 1.3 times that of before, on a machine that may be slower or faster by now.
func (r *report) addDrifted(name string, now, before samples, drift float64, rule string) {
	r.add(result{Name: name, Value: millis(now.percentile(50)), Limit: 1.3 * drift * millis(before.percentile(50)), Unit: "ms", Rule: rule})
}

// millis turns a duration into what the table shows.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// print writes the table.
func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT\tMEASURED\tLIMIT\tRULE\t")
	for _, res := range r.Results {
		limit, mark := "-", ""
		if res.Limit > 0 {
			limit = fmt.Sprintf("%.2f %s", res.Limit, res.Unit)
			if res.Value > res.Limit {
				mark = "MISSED"
			}
		}
		fmt.Fprintf(t, "%s\t%.2f %s\t%s\t%s\t%s\n", res.Name, res.Value, res.Unit, limit, res.Rule, mark)
	}
	return t.Flush()
}

// verdict is an error if a limit is missed.
func (r *report) verdict() error {
	var errs []error
	for _, res := range r.Results {
		if res.Limit > 0 && res.Value > res.Limit {
			errs = append(errs, fmt.Errorf("%s: %.2f %s is above %.2f (%s)", res.Name, res.Value, res.Unit, res.Limit, res.Rule))
		}
	}
	return errors.Join(errs...)
}

// samples are durations of the same operation.
type samples []time.Duration

// percentile of the samples, 0 to 100: the smallest that so many percent do not exceed.
func (s samples) percentile(p int) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, max(0, (len(sorted)*p+99)/100-1))]
}
