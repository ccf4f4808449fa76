// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Print writes the steps, what they gain, and how many pods are not advised; all of these by name if it is wide.
func (a *Advice) Print(w io.Writer, wide bool) error {
	b := &strings.Builder{}
	for _, problem := range a.Problems {
		fmt.Fprintf(b, "PROBLEM: %s\n", inspect.Printable(problem))
	}
	pods := 0
	for _, s := range a.Steps {
		pods += len(s.Pods)
	}
	fmt.Fprintf(b, "Now %d of %d GPUs are free and whole; fragmentation %s.\n", a.WholeNow, a.GPUs, percent(a.FragmentationNow))
	if pods == 0 {
		b.WriteString("No restart of pods would free another one.\n")
	} else {
		fmt.Fprintf(b, "%d after restarts of %s; fragmentation %s.\n\n", a.WholeThen, count(pods, "pod"), percent(a.FragmentationThen))
		b.WriteString(table(a.stepRows()))
		b.WriteString("\nRestart one pod after the other, each once the replacement of the one before runs. Each step frees its GPU by\n" +
			"itself; where it says so, cordon the node before the step, and uncordon it after.\n" +
			"The places are those that cleave-scheduler chooses with the strategy pack; another scheduler may choose others.\n")
	}
	for _, note := range a.Notes {
		fmt.Fprintln(b, inspect.Printable(note))
	}
	if len(a.Kept) > 0 {
		b.WriteString("\nNot advised, on partly allocated GPUs:\n")
		b.WriteString(table(a.keptRows(wide)))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the advice: %w", err)
	}
	return nil
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// table aligns columns. Owners and annotations of pods are untrusted.
func table(rows [][]string) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = inspect.Printable(cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // strings have room
	return b.String()
}

func percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 0, 64) + "%" }

func (a *Advice) stepRows() [][]string {
	rows := [][]string{{"STEP", "NAMESPACE", "POD", "CONTROLLER", "NOW ON", "WOULD FIT ON", "FREES", "CORDON FIRST"}}
	for i, s := range a.Steps {
		for j, m := range s.Pods {
			frees := "-"
			if j == len(s.Pods)-1 {
				frees = s.Freed()
			}
			controller := m.Controller
			if m.Budget != "" {
				controller += " (PodDisruptionBudget " + m.Budget + ")"
			}
			rows = append(rows, []string{
				strconv.Itoa(i + 1), m.Namespace, m.Pod, controller, m.From.String(), m.Where(), frees, cmp.Or(s.Cordon, "-"),
			})
		}
	}
	return rows
}

// Freed names the GPUs that a step frees.
func (s *Step) Freed() string {
	var names []string
	for _, g := range s.Frees {
		names = append(names, g.Node+" "+g.Name)
	}
	return strings.Join(names, ", ")
}

// Where says where a replacement would be: on one node, one of two, or one of many.
func (m *Move) Where() string {
	switch len(m.Or) {
	case 0:
		return m.To.String()
	case 1:
		return m.To.String() + " or " + m.Or[0].String()
	}
	return m.To.String() + " or " + strconv.Itoa(len(m.Or)) + " other nodes"
}

// String is "node device, device".
func (p Place) String() string {
	return strings.TrimSpace(p.Node + " " + strings.Join(p.Devices, ", "))
}

// keptRows count the pods that are not advised by reason, or name them.
func (a *Advice) keptRows(wide bool) [][]string {
	if wide {
		rows := [][]string{{"NAMESPACE", "POD", "NODE", "REASON", "BECAUSE"}}
		for _, k := range a.Kept {
			rows = append(rows, []string{k.Namespace, cmp.Or(k.Pod, "claim "+k.Claim), k.Node, string(k.Reason), k.Message})
		}
		return rows
	}
	byReason := map[Reason][]string{}
	for _, k := range a.Kept {
		byReason[k.Reason] = append(byReason[k.Reason], k.Namespace+"/"+cmp.Or(k.Pod, k.Claim))
	}
	rows := [][]string{{"REASON", "PODS", ""}}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		rows = append(rows, []string{string(reason), strconv.Itoa(len(byReason[reason])), some(byReason[reason])})
	}
	return rows
}

// some are the first names of a list.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
