// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is what a run of the suite found.
type Report struct {
	Driver     string       `json:"driver"`
	Node       string       `json:"node"`
	Kubernetes string       `json:"kubernetes"`
	Passed     int          `json:"passed"`
	Failed     int          `json:"failed"`
	Skipped    int          `json:"skipped"`
	Cases      []CaseReport `json:"cases"`
}

// CaseReport is what one case found.
type CaseReport struct {
	Name   string `json:"name"`
	Rule   string `json:"rule"`
	Source string `json:"source"`
	Result Result `json:"result"`
	// Reason is what was seen, in one sentence.
	Reason  string  `json:"reason"`
	Seconds float64 `json:"seconds"`
}

func (r *Report) add(c CaseReport) {
	r.Cases = append(r.Cases, c)
	switch c.Result {
	case Pass:
		r.Passed++
	case Fail:
		r.Failed++
	case Skip:
		r.Skipped++
	}
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CASE\tRESULT\tREASON")
	for _, c := range r.Cases {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, c.Result, c.Reason)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, c := range r.Cases {
		if c.Result == Fail {
			fmt.Fprintf(w, "\n%s: %s (%s)\n", c.Name, c.Rule, c.Source)
		}
	}
	_, err := fmt.Fprintf(w, "\nDriver %s on node %s, Kubernetes %s: %d passed, %d failed, %d skipped\n", r.Driver, r.Node, r.Kubernetes,
		r.Passed, r.Failed, r.Skipped)
	return err
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// oneLine makes errors of several lines fit into a table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
