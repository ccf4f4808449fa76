// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Print writes an explanation for people; for those who know how devices are published, with counters.
func (e *Explanation) Print(w io.Writer, verbose bool) error {
	var b strings.Builder
	line := func(format string, args ...any) {
		format, gap := strings.CutPrefix(format, "\n")
		if gap {
			b.WriteString("\n")
		}
		b.WriteString(inspect.Printable(fmt.Sprintf(format, args...)) + "\n")
	}
	cause := func(c *Cause, indent string, several bool) {
		c.print(line, indent, several)
		if verbose && c.Kind == Counter {
			line("%s  (counters %s are used up)", indent, c.counters())
		}
	}
	line("%s", e.Headline())
	e.print(line, cause)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the explanation: %w", err)
	}
	return nil
}

// Headline is the answer in one line.
func (e *Explanation) Headline() string {
	switch {
	case e.State == NoClaims:
		return fmt.Sprintf("%s uses no ResourceClaim, and no extended resource that a DeviceClass serves.", e.Subject)
	case e.State == Scheduled && len(e.Devices) > 0:
		return fmt.Sprintf("%s is scheduled to node %s:", e.Subject, e.Node)
	case e.State == Scheduled:
		return fmt.Sprintf("%s is scheduled to node %s.", e.Subject, e.Node)
	case e.State == Waits && e.Node != "":
		return fmt.Sprintf("%s is scheduled to node %s, and cannot start:", e.Subject, e.Node)
	case e.State == Waits && len(e.Requests)+len(e.Devices) == 0:
		return fmt.Sprintf("%s waits, and not for devices:", e.Subject)
	case e.State == Waits && len(e.Requests) == 0:
		return fmt.Sprintf("%s has all its devices, and yet waits:", e.Subject)
	case e.State == Waits:
		return fmt.Sprintf("%s fits, and yet waits:", e.Subject)
	case e.State == Allocated:
		return fmt.Sprintf("%s: all claims are allocated.", e.Subject)
	case e.State == Fits:
		return fmt.Sprintf("%s fits:", e.Subject)
	case len(e.Causes) > 0:
		return fmt.Sprintf("%s cannot be scheduled:", e.Subject)
	case e.Outlook == Never:
		return fmt.Sprintf("%s never fits the nodes of this cluster:", e.Subject)
	default:
		return fmt.Sprintf("%s fits no node now:", e.Subject)
	}
}

// print writes what the headline announces.
func (e *Explanation) print(line func(string, ...any), cause func(c *Cause, indent string, several bool)) {
	several := e.Several()
	for i := range e.Devices {
		line("  %s", e.Devices[i].text())
	}
	for _, a := range e.Requests {
		line("  %s", a.text())
	}
	for i := range e.Limits {
		cause(&e.Limits[i], "", several)
	}
	for i := range e.Causes {
		cause(&e.Causes[i], "", several)
	}
	for _, g := range e.Told() {
		if g.Fits {
			line("\n%s: enough devices are free", nodesText(g.Nodes))
			continue
		}
		line("\n%s:", nodesText(g.Nodes))
		for i := range g.Causes {
			cause(&g.Causes[i], "  ", several)
		}
	}
	if len(e.Alternatives) > 0 {
		line("\nWhat would fit now:")
	}
	for _, a := range e.Alternatives {
		line("  %s", a)
	}
	if e.Eviction != nil {
		e.Eviction.lines(line)
	}
	starts := e.State == Scheduled && !e.over
	if len(e.Notes) > 0 || starts {
		line("")
	}
	if starts {
		line("If it does not start, its Events and those of its claims say why.")
	}
	for _, note := range e.Notes {
		line("%s", note)
	}
}

// Several reports whether a cause has to name its request.
func (e *Explanation) Several() bool { return len(e.Requests) > 1 }

// Told are the groups that people are told of; what is said of others is said elsewhere.
func (e *Explanation) Told() []Group {
	var told []Group
	for _, g := range e.Groups {
		switch {
		case g.Fits && len(e.Requests) == 0:
		case !g.Fits && (e.State == Allocated || e.State == Waits && len(e.Requests) == 0 || len(g.Causes) == 1 && e.everywhere(&g.Causes[0])):
		default:
			told = append(told, g)
		}
	}
	return told
}

// everywhere reports whether a cause of nodes keeps the pod from all others, too.
func (e *Explanation) everywhere(c *Cause) bool {
	return c.Kind == Invalid || slices.ContainsFunc(e.Causes, func(all Cause) bool { return all.Message == c.Message })
}

// text describes a request.
func (a Ask) text() string {
	count := fmt.Sprint(a.Count)
	if a.Count == 0 {
		count = "all"
	}
	text := fmt.Sprintf("claim %s, request %s: %s of class %s", a.Claim, a.Request, count, a.Class)
	if len(a.Capacity) > 0 {
		text += " with " + strings.Join(a.Capacity, ", ")
	}
	return text
}

// String is the alternative for people.
func (a Alternative) String() string {
	text := fmt.Sprintf("%d of class %s", a.Count, a.Class)
	if len(a.Capacity) > 0 {
		text += " with up to " + strings.Join(a.Capacity, ", ")
	}
	if a.WithoutSelectors {
		text += " without the selectors"
	}
	return text + " on " + list(a.Nodes, mostNames)
}

// Text is the message; with the name of its request where there are several.
func (c *Cause) Text(several bool) string {
	if several && c.Request != "" {
		return c.Request + ": " + c.Message
	}
	return c.Message
}

// print writes a cause; with the name of its request where there are several.
func (c *Cause) print(line func(string, ...any), indent string, several bool) {
	line("%s- %s", indent, c.Text(several))
	if c.Remedy != "" {
		line("%s  (%s)", indent, c.Remedy)
	}
}

func nodesText(nodes []string) string {
	if len(nodes) == 1 {
		return "Node " + nodes[0]
	}
	return fmt.Sprintf("%d nodes (%s)", len(nodes), list(nodes, mostNames))
}
