// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// checkClients checks that MPS servers serve programs of pods that have a share, from when it was prepared until their last
// container ended. Only their start is looked at: nobody reports the end of one whose server was killed.
func checkClients(c *checker) []Violation {
	var all []Violation
	for _, e := range c.served {
		f := e.Fact.(Hardware)
		owned := slices.ContainsFunc(c.claims, func(cl *claim) bool { return isServed(c, cl, e.At, f) })
		if owned || isUnseen(c, e.At, f.Pod) {
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

// isServed reports whether a claim is why a server serves a program. One without calls was prepared before all that is known.
func isServed(c *checker, cl *claim, at time.Duration, f Hardware) bool {
	if !cl.has(f.Pod) {
		return false
	}
	for _, t := range cl.tenures {
		until := t.release.to
		if h := c.outlives(cl, t); h != nil {
			until = h.to + eventLag
		}
		if at < c.earliest(SourceKubelet, t.acquire.to) || at > until {
			continue
		}
		if slices.ContainsFunc(cl.owned(t), func(a Allocated) bool { return f.isOf(a.Device) }) {
			return true
		}
	}
	return len(cl.calls) == 0
}

// isUnseen reports whether a pod may have had a claim that nobody saw: it came and went while the API server was not watched.
func isUnseen(c *checker, at time.Duration, pod string) bool {
	return c.earliest(SourceAPI, at) < at && !slices.ContainsFunc(c.claims, func(cl *claim) bool { return cl.has(pod) })
}

// isOf reports whether a program that an MPS server serves uses what a device is a share of.
func (f Hardware) isOf(device string) bool {
	gpu, profile, start, isPartition := placeOf(device)
	switch {
	case !strings.HasSuffix(device, "-mps") || gpu != f.GPU:
		return false
	case f.Partition == nil:
		return !isPartition
	default:
		return isPartition && profile == f.Partition.Profile && start == f.Partition.Start
	}
}
