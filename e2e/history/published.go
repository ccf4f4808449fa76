// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// absence is a time for which a device was not published, though it had been.
type absence struct {
	began Event // Withdrawn
	until time.Duration
}

// readAbsences finds when devices were not published, by their names, in a history that ends at a time.
func readAbsences(events []Event, end time.Duration) map[string][]absence {
	absences := map[string][]absence{}
	for _, e := range events {
		switch f := e.Fact.(type) {
		case Withdrawn:
			absences[f.Name] = append(absences[f.Name], absence{e, end})
		case Device:
			if all := absences[f.Name]; len(all) > 0 && all[len(all)-1].until == end {
				all[len(all)-1].until = e.At
			}
		}
	}
	return absences
}

// checkPublished checks that what a claim has allocated stays published: a scheduler that does not see the device counts nothing for it,
// and gives away what it lies on. Where the device was withdrawn just as it was allocated, it has to be there again within the bound.
func checkPublished(c *checker) []Violation {
	var all []Violation
	for _, cl := range c.claims {
		for i, e := range cl.seen {
			for _, device := range e.Fact.(Claim).owned() {
				if i > 0 && slices.Contains(cl.seen[i-1].Fact.(Claim).owned(), device) {
					continue // that is one allocation
				}
				all = append(all, checkAbsences(c, cl, device, e, cl.allocatedUntil(device, i, c.end))...)
			}
		}
	}
	return all
}

// checkAbsences is checkPublished for one allocation of a device.
func checkAbsences(c *checker, cl *claim, device string, allocated Event, until time.Duration) []Violation {
	var all []Violation
	for _, a := range c.absences[device] {
		began, ended := max(allocated.At, a.began.At), min(until, a.until)
		if began >= ended || ended <= c.withdrawing.deadline(began) {
			continue
		}
		all = append(all, Violation{Rule: RulePublished, Events: []Event{allocated, a.began}, Text: fmt.Sprintf(
			"Device %s was withdrawn at %s, and not published again before %s. Claim %s had it allocated from %s to %s.",
			device, a.began.At, a.until, cl.uid, allocated.At, until)})
	}
	return all
}

// allocatedUntil is when the allocation of a device ended that one of the claim's states shows.
func (cl *claim) allocatedUntil(device string, from int, end time.Duration) time.Duration {
	for _, e := range cl.seen[from+1:] {
		if !slices.Contains(e.Fact.(Claim).owned(), device) {
			return e.At
		}
	}
	return end
}

// owned are the devices that are allocated to the claim and not only lent to an admin.
func (f Claim) owned() []string {
	var names []string
	for _, d := range f.Devices {
		if f.State == ClaimAllocated && !d.Admin && !slices.Contains(names, d.Device) {
			names = append(names, d.Device)
		}
	}
	return names
}
