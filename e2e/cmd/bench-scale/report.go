// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
)

// Names of the numbers.
const (
	landedGPUs          = "GPUs of %d pods, %s"
	fewestGPUs          = "GPUs of %d pods, %s, the fewest possible"
	landedNodes         = "nodes of %d pods, %s"
	podRate             = "%d pods, %s, in a second"
	podProcessor        = "processor time of the scheduler for a pod, %s, ms"
	podProcessorLoaded  = "processor time of the scheduler for a pod, %s, %d claims allocated, ms"
	podRateLoaded       = "%d pods, %s, in a second, %d claims allocated"
	openedGPUs          = "untouched GPUs that %d pods, %s, take, %d claims allocated"
	fewestOpened        = "untouched GPUs that %d pods, %s, take, %d claims allocated, the fewest possible"
	rejected            = "%d mixed pods on %d nodes, %d %% load: compute slices rejected, %%"
	nominatedSeconds    = "%d urgent pods in a full cluster: seconds from creation to a nominated node, p99"
	victimsOf           = "%d urgent pods in a full cluster: victims"
	victimsTwice        = "%d urgent pods in a full cluster: nominated for devices that another is to get"
	ordinaryRate        = "rate of %d ordinary pods while %d urgent ones wait, times the rate before"
	apiServerPublished  = "API server, MB per node, right after all nodes were published at once"
	apiServerHeap       = "API server, MB per node, live heap"
	apiServerMemory     = "API server, MB per node, after the first scheduler's pods"
	schedulerMemoryIdle = "scheduler, MB per node, at its start"
	schedulerMemory     = "scheduler, MB per node"
	commandSeconds      = "cleave %s, %d claims allocated, seconds"
	commandMemory       = "cleave %s, MB"
)

// number is one that was measured, by scheduler.
type number struct {
	Name   string             `json:"name"`
	Values map[string]float64 `json:"values"`
	Goal   *goal              `json:"goal,omitempty"`
}

// report is a whole run.
type report struct {
	Started    time.Time `json:"started"`
	Nodes      int       `json:"nodes"`
	Model      string    `json:"model"`
	Schedulers []string  `json:"schedulers"`
	Numbers    []number  `json:"numbers"`
}

func newReport(o options) *report {
	return &report{Started: time.Now().UTC().Truncate(time.Second), Nodes: o.nodes, Model: o.nodeModel, Schedulers: o.schedulers}
}

// find is the number of a name; nil where it was not measured.
func (r *report) find(name string) *number {
	for i := range r.Numbers {
		if r.Numbers[i].Name == name {
			return &r.Numbers[i]
		}
	}
	return nil
}

// set adds a value of a scheduler, or with "" of all.
func (r *report) set(name, scheduler string, value float64) {
	if n := r.find(name); n != nil {
		n.Values[scheduler] = value
		return
	}
	r.Numbers = append(r.Numbers, number{Name: name, Values: map[string]float64{scheduler: value}})
}

// ratio is how the last scheduler compares with the first; not ok where one of them has no value, or the first has none to
// divide by.
func (r *report) ratio(n number) (ratio float64, ok bool) {
	first, ok := n.Values[r.Schedulers[0]]
	last, also := n.Values[r.Schedulers[len(r.Schedulers)-1]]
	if !ok || !also || len(r.Schedulers) < 2 || first <= 0 {
		return 0, false
	}
	return last / first, true
}

// print writes a table with a column for each scheduler, how the last compares with the first, and the goals.
func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d nodes of %s", r.Nodes, r.Model)
	for _, s := range r.Schedulers {
		fmt.Fprintf(t, "\t%s", s)
	}
	fmt.Fprintln(t, "\tratio\tgoal\t")
	for _, n := range r.Numbers {
		fmt.Fprint(t, n.Name)
		for _, s := range r.Schedulers {
			if all, ok := n.Values[""]; ok && s == r.Schedulers[0] {
				fmt.Fprintf(t, "\t%.2f", all)
			} else if v, ok := n.Values[s]; ok {
				fmt.Fprintf(t, "\t%.2f", v)
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		if ratio, ok := r.ratio(n); ok {
			fmt.Fprintf(t, "\t%.2f", ratio)
		} else {
			fmt.Fprint(t, "\t-")
		}
		fmt.Fprintf(t, "\t%s\t\n", r.verdict(n))
	}
	return t.Flush()
}

// verdict is a number's goal, and whether it is missed.
func (r *report) verdict(n number) string {
	value, ok := r.compared(n)
	switch {
	case !ok:
		return "-"
	case n.Goal.met(value):
		return n.Goal.String()
	default:
		return n.Goal.String() + " MISSED"
	}
}

// write stores the numbers as JSON.
func (r *report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the numbers: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the numbers: %w", err)
	}
	return nil
}
