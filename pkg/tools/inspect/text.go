// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Options of Print.
type Options struct {
	// ASCII avoids characters that old terminals lack.
	ASCII bool
	// Width of the terminal in characters; 0 for none, such as a pipe: slice maps then have 100, and a row of a table is a line.
	Width int
	// Wide adds UUIDs, and all shapes with their states.
	Wide bool
}

const defaultWidth = 100

// Print writes a view for people.
func (v *View) Print(w io.Writer, o Options) error {
	fit := o.Width
	if o.Width <= 0 {
		o.Width = defaultWidth
	}
	p := &printer{view: v, options: o, fit: fit}
	p.title()
	p.overview()
	p.claims()
	p.taints()
	p.maps()
	p.topology()
	p.notes()
	if o.Wide {
		p.shapes()
	}
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("print the GPUs: %w", err)
	}
	return nil
}

// printer writes the sections of a view.
type printer struct {
	strings.Builder
	view    *View
	options Options
	// fit is the width that tables are broken for; 0 for none.
	fit int
}

func (p *printer) linef(format string, args ...any) {
	fmt.Fprintln(p, strings.TrimRight(Printable(fmt.Sprintf(format, args...)), " "))
}

// section begins a section.
func (p *printer) section(title string) {
	p.linef("")
	p.linef("%s", title)
}

// Printable replaces line breaks and control characters, because attributes, selectors and owners are untrusted: they must not forge lines,
// nor act on a terminal.
func Printable(s string) string {
	s = strings.ReplaceAll(s, "\n", "; ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// table writes rows in columns.
func (p *printer) table(rows [][]string) {
	rows = fitted(rows, p.fit)
	width := widths(rows)
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(Printable(cell))+gap))
		}
		p.linef("%s", line.String())
	}
}

func (p *printer) title() {
	v := p.view
	var what string
	switch v.Source {
	case Cluster:
		what = fmt.Sprintf("Node %s, from its ResourceSlices of driver %s", v.Node, v.Driver)
	case Model:
		what = "Model " + v.Node
	case Machine:
		what = "This machine"
	}
	facts := []string{count(int64(len(v.GPUs)), "GPU", "GPUs")}
	if v.DriverVersion != "" {
		facts = append(facts, "NVIDIA driver "+v.DriverVersion)
	}
	if v.CUDAVersion != "" {
		facts = append(facts, "CUDA "+v.CUDAVersion)
	}
	if v.ConfidentialComputing {
		facts = append(facts, "confidential computing")
	}
	p.linef("%s: %s", what, strings.Join(facts, ", "))
	for _, problem := range v.Problems {
		p.linef("PROBLEM: %s", problem)
	}
}

// count formats a number with its noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}

func orDash(s string) string { return cmp.Or(s, "-") }

// gibibytes formats an amount of memory.
func gibibytes(n int64) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + "Gi"
}

func (p *printer) overview() {
	if len(p.view.GPUs) == 0 {
		return
	}
	header := []string{"GPU", "DEVICE", "PRODUCT", "MEMORY", "MIG", "ALLOCATED", "FREE"}
	if p.options.Wide {
		header = slices.Insert(header, 2, "UUID")
	}
	rows := [][]string{header}
	for i := range p.view.GPUs {
		g := &p.view.GPUs[i]
		row := []string{g.Name, g.Device, orDash(g.Product), orDash(gibibytes(g.MemoryBytes)), orDash(g.MIG), g.AllocatedText(), g.FreeText()}
		if p.options.Wide {
			row = slices.Insert(row, 2, orDash(g.UUID))
		}
		rows = append(rows, row)
	}
	p.linef("")
	p.table(rows)
}

// AllocatedText summarises allocations, followed by partitions without a claim.
func (g *GPU) AllocatedText() string {
	var parts []string
	for i := range g.Shapes {
		switch s := &g.Shapes[i]; {
		case !s.isAllocated() || s.isPartition() && !s.isShared():
		case s.isShared():
			parts = append(parts, s.usedText())
		default:
			parts = append(parts, "whole")
		}
	}
	var allocated, other []Amount
	for _, part := range g.Partitions {
		if part.State == PartitionAllocated && g.sharedAt(part.Placement) != nil {
			continue // its shares say so
		}
		if part.State == PartitionAllocated {
			allocated = increment(allocated, part.Profile)
		} else {
			other = increment(other, part.State.String())
		}
	}
	for _, a := range allocated {
		parts = append(parts, a.String())
	}
	for _, a := range other {
		parts = append(parts, fmt.Sprintf("%d %s", a.Count, a.Profile))
	}
	return orDash(strings.Join(parts, ", "))
}

// sharedAt is the shape of the partition at a placement if claims share it, or nil.
func (g *GPU) sharedAt(at gpu.Placement) *Shape {
	i := slices.IndexFunc(g.Shapes, func(s Shape) bool {
		return s.isPartition() && s.isShared() && s.isAllocated() && *s.Placement == at
	})
	if i < 0 {
		return nil
	}
	return &g.Shapes[i]
}

// increment counts a name among partitions.
func increment(amounts []Amount, name string) []Amount {
	at := slices.IndexFunc(amounts, func(a Amount) bool { return a.Profile == name })
	if at < 0 {
		return append(amounts, Amount{Type: typeMIG, Profile: name, Count: 1})
	}
	amounts[at].Count++
	return amounts
}

// usedText is how many shares of a shared GPU are allocated, and of how many if that is known.
func (s *Shape) usedText() string {
	all := Amount{Type: s.Type, Profile: s.Profile, Count: max(s.Total.Shares, s.Used.Shares)}.String()
	if s.Used.Shares >= s.Total.Shares {
		return all
	}
	return fmt.Sprintf("%d of %s", s.Used.Shares, all)
}

// FreeText summarises the available devices.
func (g *GPU) FreeText() string {
	switch {
	case len(g.Shapes) == 0:
		return "not offered"
	case len(g.Free) == 0:
		return "nothing"
	case slices.Equal(g.Free, g.Offers):
		return "all"
	default:
		var parts []string
		for _, a := range g.Free {
			parts = append(parts, a.String())
		}
		return strings.Join(parts, ", ")
	}
}

// String is the amount for people: "2x 1g.10gb", "whole".
func (a Amount) String() string {
	switch a.Type {
	case typeGPU:
		return "whole"
	case typeTimeSlice:
		return count(a.Count, "time slice", "time slices")
	case typeMPS:
		return count(a.Count, "MPS share", "MPS shares")
	case typeMIGTimeSlice:
		return count(a.Count, "time slice", "time slices") + " of " + a.Profile
	case typeMIGMPS:
		return count(a.Count, "MPS share", "MPS shares") + " of " + a.Profile
	}
	name := a.Profile
	if name == "" {
		name = a.Type
	}
	if a.Count == 1 {
		return name
	}
	return fmt.Sprintf("%dx %s", a.Count, name)
}

// partitionWords are the states of partitions for people.
var partitionWords = map[PartitionState]string{
	PartitionAllocated: "allocated",
	PartitionPreparing: "creating",
	PartitionReleasing: "releasing",
	PartitionMissing:   "missing",
	PartitionReady:     "ready",
	PartitionIdle:      "of another layout",
	PartitionUnmanaged: "unmanaged",
}

// String is the state for people.
func (s PartitionState) String() string { return cmp.Or(partitionWords[s], string(s)) }

// claims prints a line for each allocation and each partition.
func (p *printer) claims() {
	rows := [][]string{{"GPU", "SHAPE", "STATE", "CLAIM", "DETAILS"}}
	var used []string // by row
	for i := range p.view.GPUs {
		g := &p.view.GPUs[i]
		for j := range g.Shapes {
			s := &g.Shapes[j]
			for _, h := range s.Claims {
				if !s.isPartition() || s.isShared() || h.AdminAccess {
					rows = append(rows, []string{g.Name, s.String(), stateOf(h), claimText(h), orDash(h.Details())})
					used = append(used, h.Used.String())
				}
			}
		}
		for _, part := range g.Partitions {
			by, uses := "-", ""
			for _, h := range part.Claims {
				if !h.AdminAccess {
					by, uses = claimText(h), h.Used.String()
				}
			}
			if g.sharedAt(part.Placement) != nil {
				by = count(int64(len(part.Claims)), "claim", "claims")
				uses = "" // of each claim, above
			}
			used = append(used, uses)
			rows = append(rows, []string{g.Name, partitionText(part.Profile, part.Placement), part.State.String(),
				by, orDash(part.details())})
		}
	}
	if len(rows) > 1 {
		p.linef("")
		p.table(p.view.withUsed(rows, used))
	}
}

func stateOf(h Claim) string {
	if h.AdminAccess {
		return "admin access"
	}
	return "allocated"
}

// String names the shape: "1g.10gb at 3", "whole".
func (s *Shape) String() string {
	switch {
	case s.isPartition() && s.isShared():
		return fmt.Sprintf("%s (%s)", partitionText(s.Profile, *s.Placement), s.Type)
	case s.isPartition():
		return partitionText(s.Profile, *s.Placement)
	case s.Type == typeGPU:
		return "whole"
	default:
		return s.Type
	}
}

// partitionText names a partition by its profile and placement.
func partitionText(profile string, at gpu.Placement) string {
	if at.Size == 1 {
		return fmt.Sprintf("%s at %d", profile, at.Start)
	}
	return fmt.Sprintf("%s at %d-%d", profile, at.Start, at.Start+at.Size-1)
}

func claimText(h Claim) string {
	switch len(h.Pods) {
	case 0:
		return h.Claim
	case 1:
		return fmt.Sprintf("%s (pod %s)", h.Claim, h.Pods[0])
	default:
		return fmt.Sprintf("%s (pods %s)", h.Claim, strings.Join(h.Pods, ", "))
	}
}

// Details are the amounts of a claim on a shared GPU or partition, in words.
func (h *Claim) Details() string {
	var parts []string
	if a := h.Has; a != nil {
		parts = append(parts, count(a.Shares, "share", "shares"))
		if a.MemoryBytes > 0 {
			parts = append(parts, strconv.FormatInt(a.MemoryBytes>>20, 10)+" MiB")
		}
		if a.CoresPercent > 0 {
			parts = append(parts, strconv.FormatInt(a.CoresPercent, 10)+"% cores")
		}
	}
	if h.Interval != "" {
		parts = append(parts, "interval "+h.Interval)
	}
	return strings.Join(parts, ", ")
}

func (p *Partition) details() string {
	var parts []string
	if p.GI != nil {
		parts = append(parts, "GI "+strconv.Itoa(*p.GI))
	}
	if p.UUID != "" {
		parts = append(parts, p.UUID)
	}
	return strings.Join(parts, ", ")
}
