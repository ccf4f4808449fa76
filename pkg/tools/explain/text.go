// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"strings"
)

// Print writes an explanation for people.
func (e *Explanation) Print(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	switch {
	case e.State == NoClaims:
		line("%s uses no ResourceClaim, and no extended resource that a DeviceClass serves.", e.Subject)
	case e.State == Scheduled:
		line("%s is scheduled to node %s. If it does not start, its Events and those of its claims say why.", e.Subject, e.Node)
	case e.State == Allocated:
		line("%s: all claims are allocated: the devices are not why it waits.", e.Subject)
	case e.State == Fits:
		line("%s fits:", e.Subject)
	case len(e.Causes) > 0:
		line("%s cannot be scheduled:", e.Subject)
	case e.Outlook == Never:
		line("%s never fits the nodes of this cluster:", e.Subject)
	default:
		line("%s fits no node now:", e.Subject)
	}
	for _, a := range e.Requests {
		line("  %s", a.text())
	}
	for _, c := range e.Limits {
		c.print(line, "", len(e.Requests) > 1)
	}
	for _, c := range e.Causes {
		c.print(line, "", len(e.Requests) > 1)
	}
	for _, g := range e.Groups {
		if g.Fits {
			if e.State != Allocated {
				line("\n%s: enough devices are free", nodesText(g.Nodes))
			}
			continue
		}
		if e.State == Allocated || len(g.Causes) == 1 && g.Causes[0].Kind == Invalid {
			continue // it is said above
		}
		line("\n%s:", nodesText(g.Nodes))
		for _, c := range g.Causes {
			c.print(line, "  ", len(e.Requests) > 1)
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
	if len(e.Notes) > 0 {
		line("")
	}
	for _, note := range e.Notes {
		line("%s", note)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the explanation: %w", err)
	}
	return nil
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

// print writes a cause; with the name of its request where there are several.
func (c *Cause) print(line func(string, ...any), indent string, several bool) {
	text := c.Message
	if several && c.Request != "" {
		text = c.Request + ": " + text
	}
	line("%s- %s", indent, text)
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
