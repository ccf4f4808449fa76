// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strings"
)

// checkClients checks that MPS servers serve programs of pods that have a share, from when it was prepared until their last
// container ended. Only their start is looked at: nobody reports the end of one whose server was killed.
func (c *checker) checkClients() []Violation {
	var all []Violation
	for _, e := range c.served {
		f := e.Fact.(Hardware)
		if slices.ContainsFunc(c.claims, func(cl *claim) bool { return c.serves(cl, e, f) }) {
			continue
		}
		what := f.GPU
		if f.Partition != nil {
			what = fmt.Sprintf("%s-mig-%d-%d", f.GPU, f.Partition.Profile, f.Partition.Start)
		}
		all = append(all, Violation{
			Rule: RuleClient, Events: []Event{e},
			Text: fmt.Sprintf("At %s the MPS server of %s began to serve process %d (%s) of pod %s. No claim of that pod had a share of it.",
				e.At, what, f.PID, f.Program, f.Pod),
		})
	}
	return all
}

// serves reports whether a claim is why a server serves a program.
func (c *checker) serves(cl *claim, e Event, f Hardware) bool {
	if !cl.has(f.Pod) {
		return false
	}
	for _, t := range cl.tenures {
		until := t.release.to
		if h := c.outlives(cl, t); h != nil {
			until = h.to + eventLag
		}
		if e.At < c.earliest(SourceKubelet, t.acquire.to) || e.At > until {
			continue
		}
		if slices.ContainsFunc(cl.owned(t), func(a Allocated) bool { return f.isShareOf(a.Device) }) {
			return true
		}
	}
	return false
}

// isShareOf reports whether a program with an MPS server uses what a device is.
func (f Hardware) isShareOf(device string) bool {
	if strings.HasSuffix(device, "-timeslice") {
		return false
	}
	gpu, profile, start, isPartition := placeOf(device)
	if f.Partition == nil {
		return !isPartition && gpu == f.GPU
	}
	return isPartition && gpu == f.GPU && profile == f.Partition.Profile && start == f.Partition.Start
}
