// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strings"
)

// checkAnswers checks that Prepare returns what the claim was allocated, and the same each time.
func (c *checker) checkAnswers() []Violation {
	var all []Violation
	for _, cl := range c.claims {
		for _, k := range cl.calls {
			if v := cl.checkAllocated(k); v != nil {
				all = append(all, *v)
			}
		}
		for _, t := range cl.tenures {
			all = append(all, cl.checkRepeated(t)...)
		}
	}
	return all
}

// checkAllocated checks an answer against the claim's allocations. Which of them was the active one cannot be said: the
// kubelet may have seen it before the recorder did.
func (cl *claim) checkAllocated(k *call) *Violation {
	if !k.ok() || k.method != Prepare || len(cl.seen) == 0 {
		return nil
	}
	got := deviceNames(k.answer.Devices)
	slices.Sort(got)
	var wanted []string
	for _, e := range cl.seen {
		if e.Fact.(Claim).State != ClaimAllocated {
			continue
		}
		var want []string
		for _, d := range e.Fact.(Claim).Devices {
			want = append(want, d.Device)
		}
		slices.Sort(want)
		if slices.Equal(want, got) {
			return nil
		}
		wanted = append(wanted, strings.Join(want, ", "))
	}
	return &Violation{
		Rule: RuleAnswer, Events: []Event{cl.seen[0], *k.returned},
		Text: fmt.Sprintf("At %s claim %s was prepared with %s. It was allocated %s.",
			k.returned.At, cl.uid, listOr(got, "no device"), listOr(slices.Compact(wanted), "nothing")),
	}
}

func listOr(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, ", ")
}

// checkRepeated checks that a claim that is prepared again gets the same.
func (cl *claim) checkRepeated(t *tenure) []Violation {
	var all []Violation
	for _, h := range t.holds {
		again := h.event.Fact.(Return)
		if !slices.EqualFunc(t.prepared.answer.Devices, again.Devices, samePrepared) {
			all = append(all, Violation{
				Rule: RuleAnswer, Events: []Event{*t.prepared.returned, h.event},
				Text: fmt.Sprintf("At %s claim %s was prepared again and got %v. At %s it had got %v, and it was not unprepared since.",
					h.event.At, cl.uid, again.Devices, t.prepared.returned.At, t.prepared.answer.Devices),
			})
		}
	}
	return all
}

func samePrepared(a, b Prepared) bool { return a.Device == b.Device && slices.Equal(a.CDI, b.CDI) }
