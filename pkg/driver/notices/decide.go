// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Policy is the reaction to notices.
type Policy struct {
	// Lead is how long before its time a notice takes effect.
	Lead time.Duration
	// EvictBefore is how long before that time pods are evicted; zero for never.
	EvictBefore time.Duration
}

// Decision is what follows from the notices that stand; the zero value if nothing does.
type Decision struct {
	// Source, ID, Kind and Text are those of the notice that decides.
	Source, ID string
	Kind       Kind
	Text       string
	// Since is when that notice was first seen, Deadline when what it announces happens; zero if unknown.
	Since, Deadline time.Time
	// EvictAt is when pods are evicted; zero for never. Evict is set from then on.
	EvictAt time.Time
	Evict   bool
}

// Holds reports whether a notice is in force.
func (d *Decision) Holds() bool { return d.Source != "" }

// Same reports whether two decisions follow from the same notice.
func (d *Decision) Same(other *Decision) bool { return d.Source == other.Source && d.ID == other.ID }

// overdue is how long after its time a notice is in force: the machine is still there.
const overdue = time.Hour

// Decide returns what follows from the notices that stand, and when that can change by itself; zero for never. The notice with the
// earliest time decides; those without a time are last. An eviction that has begun is not taken back while its notice is in force:
// a later deadline would let pods in that are evicted again. It is pure.
func Decide(was Decision, standing []Standing, p Policy, now time.Time) (Decision, time.Time) {
	var next time.Time
	look := func(at time.Time) {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	var inForce []Standing
	for _, s := range standing {
		if at := s.Deadline(); !at.IsZero() {
			look(at.Add(-p.Lead))
			look(at.Add(overdue))
			if now.Before(at.Add(-p.Lead)) || !now.Before(at.Add(overdue)) {
				continue
			}
		}
		inForce = append(inForce, s)
	}
	if len(inForce) == 0 {
		return Decision{}, next
	}
	s := slices.MinFunc(inForce, earlier)
	d := Decision{Source: s.Source, ID: s.ID, Kind: s.Kind, Text: s.Text, Since: s.Since, Deadline: s.Deadline()}
	if p.EvictBefore > 0 && !d.Deadline.IsZero() {
		d.EvictAt = d.Deadline.Add(-p.EvictBefore)
		if d.EvictAt.Before(d.Since) {
			d.EvictAt = d.Since // less notice than that
		}
		look(d.EvictAt)
		d.Evict = !now.Before(d.EvictAt)
	}
	same := func(s Standing) bool { return s.Source == was.Source && s.ID == was.ID }
	if was.Evict && p.EvictBefore > 0 && slices.ContainsFunc(inForce, same) {
		d.Evict = true
	}
	return d, next
}

// earlier orders notices by their time.
func earlier(a, b Standing) int {
	at, bt := a.Deadline(), b.Deadline()
	switch {
	case at.IsZero() != bt.IsZero():
		return map[bool]int{true: 1, false: -1}[at.IsZero()]
	case !at.Equal(bt):
		return at.Compare(bt)
	}
	return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ID, b.ID)) // reclaim first
}

// String says what happens, and when.
func (d *Decision) String() string {
	what := map[Kind]string{Reclaim: "The node's machine is taken away", Maintenance: "The node's machine is stopped or restarted"}[d.Kind]
	if !d.Deadline.IsZero() {
		what += " at " + clock(d.Deadline)
	}
	return fmt.Sprintf("%s (%s: %s)", what, d.Source, d.Text)
}

// Advice says what happens, how much time is left, and what becomes of pods that have devices of the node.
func (d *Decision) Advice(now time.Time) string {
	said := d.String()
	if !d.Deadline.IsZero() {
		said += fmt.Sprintf(", %s left", max(0, d.Deadline.Sub(now)).Round(time.Second))
	}
	switch {
	case d.Evict:
		said += ". Pods with devices of the node are evicted now, with their own grace period, unless their claims tolerate that"
	case !d.EvictAt.IsZero():
		said += fmt.Sprintf(". Pods with devices of the node are evicted at %s, unless their claims tolerate that", clock(d.EvictAt))
	default:
		said += ". Cleave evicts no pods: those with devices of the node run until they are drained or the machine goes"
	}
	return said + ". New claims get no devices of the node"
}

// clock formats a time.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
