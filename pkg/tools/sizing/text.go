// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

var errAnswer = errors.New("the answer is of another type")

// Print writes a line for each workload, and what would be gained.
func (a *Advice) Print(w io.Writer) error {
	var b strings.Builder
	for _, p := range a.Problems {
		fmt.Fprintf(&b, "PROBLEM: %s\n", inspect.Printable(p))
	}
	if len(a.Workloads) == 0 {
		b.WriteString("No claim has devices.\n")
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.ToUpper(strings.Join(Columns(), "\t")))
		for i := range a.Workloads {
			cells := a.Workloads[i].Cells()
			for j, cell := range cells {
				cells[j] = inspect.Printable(cell)
			}
			fmt.Fprintln(t, strings.Join(cells, "\t"))
		}
		_ = t.Flush() // strings have room
		fmt.Fprintf(&b, "\n%s\n", a.Summary())
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the advice: %w", err)
	}
	return nil
}

// Summary says what would be gained.
func (a *Advice) Summary() string {
	gained := fmt.Sprintf("Now %d of %d GPUs are free and whole, %d if all of this were followed.\nDevices have %.0f%% more memory ",
		a.WholeNow, a.GPUs, a.WholeThen, 100*a.Margin)
	if a.Source == FromPlugins {
		return gained + "and multiprocessors than the most that plugins have seen in use since they first looked at each claim.\n" +
			"They keep no percentiles; Prometheus does (--prometheus)."
	}
	return gained + fmt.Sprintf("than was seen in use in the last %.0f hours, and multiprocessors than were active in 95 %% of it.", a.Since)
}

// Columns are the names of a workload's cells.
func Columns() []string {
	return []string{"Namespace", "Workload", "Claims", "Has", "Seen", "Memory p50", "p95", "max", "SM p50", "p95", "max", "Would do",
		"Because"}
}

// Cells are a workload in words.
func (w *Workload) Cells() []string {
	row := []string{w.Namespace, w.Workload, strconv.Itoa(w.Claims), w.Asked.Shape, strconv.FormatFloat(w.Hours, 'f', 1, 64) + "h"}
	row = append(row, w.Memory.cells(gib)...)
	row = append(row, w.Activity.cells(func(part float64) string { return fmt.Sprintf("%.0f%%", 100*part) })...)
	do := "-"
	if w.Suffices != nil {
		do = w.Suffices.Shape
	}
	because := string(w.Verdict)
	if w.Message != "" {
		because += ": " + w.Message
	}
	return append(row, do, because)
}

// cells are a figure's, or dashes where there is none.
func (f *Figure) cells(format func(float64) string) []string {
	if f == nil {
		return []string{"-", "-", "-"}
	}
	known := func(part *float64) string {
		if part == nil {
			return "-"
		}
		return format(*part)
	}
	return []string{known(f.P50), known(f.P95), format(f.Max)}
}
