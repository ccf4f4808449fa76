// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Status is the outcome of a check.
type Status string

// Outcomes.
const (
	Pass Status = "PASS"
	Fail Status = "FAIL"
	// Skip says that something is missing here that the check needs.
	Skip Status = "SKIP"
	// Note is a fact, neither good nor bad.
	Note Status = "NOTE"
)

// Check is one thing that was looked at.
type Check struct {
	Part    string  `json:"part"`
	Name    string  `json:"name"`
	Status  Status  `json:"status"`
	Detail  string  `json:"detail"`
	Seconds float64 `json:"seconds"`
}

// Report is all that a run found.
type Report struct {
	Cleave     string    `json:"cleave"`
	Started    time.Time `json:"started"`
	Seconds    float64   `json:"seconds"`
	DriverRoot string    `json:"driverRoot"`
	Machine    *Machine  `json:"machine,omitempty"`
	Checks     []Check   `json:"checks"`
	// Facts are numbers behind the checks, by name.
	Facts map[string]any `json:"facts"`
}

// Count reports how many checks had an outcome.
func (r *Report) Count(s Status) int {
	n := 0
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// skipError is a reason to pass over a check.
type skipError struct{ reason string }

func (e skipError) Error() string { return e.reason }

func skipf(format string, args ...any) error { return skipError{fmt.Sprintf(format, args...)} }

// reporter writes checks down and prints each at once: a run that is cut short has said what it knew.
type reporter struct {
	report Report
	to     io.Writer
}

// check runs a check and reports whether what comes after can build on it.
func (r *reporter) check(part, name string, do func() (detail string, err error)) bool {
	return r.add(part, name, Pass, do)
}

// note runs a look at something that cannot be wrong.
func (r *reporter) note(part, name string, do func() (detail string, err error)) {
	r.add(part, name, Note, do)
}

func (r *reporter) add(part, name string, good Status, do func() (string, error)) bool {
	began := time.Now()
	detail, err := do()
	c := Check{Part: part, Name: name, Status: good, Detail: detail, Seconds: time.Since(began).Round(time.Millisecond).Seconds()}
	if err != nil {
		c.Status, c.Detail = Fail, err.Error()
		if errors.As(err, &skipError{}) {
			c.Status = Skip
		}
		if detail != "" {
			c.Detail = detail + "; " + c.Detail
		}
	}
	if len(r.report.Checks) == 0 {
		fmt.Fprintf(r.to, row, "PART", "CHECK", "RESULT", "TIME", "WHAT WAS SEEN")
	}
	r.report.Checks = append(r.report.Checks, c)
	fmt.Fprintf(r.to, row, c.Part, c.Name, c.Status, fmt.Sprintf("%.1fs", c.Seconds), strings.Join(strings.Fields(c.Detail), " "))
	return err == nil
}

const row = "%-10s %-22s %-6s %6s  %s\n"

// finish prints the sum.
func (r *reporter) finish() {
	fmt.Fprintf(r.to, "\n%d %s, %d %s, %d %s, %d %s in %.0f s\n", r.report.Count(Pass), Pass, r.report.Count(Fail), Fail,
		r.report.Count(Skip), Skip, r.report.Count(Note), Note, r.report.Seconds)
	for _, c := range r.report.Checks {
		if c.Status == Fail {
			fmt.Fprintf(r.to, "failed: %s %s: %s\n", c.Part, c.Name, c.Detail)
		}
	}
}

// encode gives JSON for people and programs.
func encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}
