// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// run is the life of a container.
type run struct {
	Container
	// started and ended are when it certainly ran: where the runtime could not be watched, from the end of that gap, and up to
	// its beginning.
	started, ended time.Duration
	start          Event
	end            *Event
}

// readContainers finds when containers ran.
func (c *checker) readContainers(events []Event) {
	at := map[string]int{}
	for _, e := range events {
		f, ok := e.Fact.(Container)
		if !ok {
			continue
		}
		i, known := at[f.ID]
		switch {
		case f.State == ContainerStarted && !known:
			at[f.ID] = len(c.containers)
			c.containers = append(c.containers, run{Container: f, started: e.At, ended: never, start: e})
		case f.State == ContainerEnded && known && c.containers[i].end == nil:
			c.containers[i].end = &e
			c.containers[i].ended = max(c.containers[i].started, c.earliest(SourceRuntime, e.At))
		}
	}
	for i := range c.containers { // what still ran at the end
		c.containers[i].ended = min(c.containers[i].ended, c.end)
	}
}

// containerHolds are the starts and ends of containers of a claim's pods in one of its tenures. A container has certainly run until
// eventLag before its event.
func (c *checker) containerHolds(cl *claim, t *tenure) []hold {
	var holds []hold
	within := func(at time.Duration) bool { return at >= t.acquire.to && at <= t.release.to }
	for _, r := range c.containers {
		if !cl.has(r.Pod) {
			continue
		}
		if within(r.started) {
			holds = append(holds, hold{span{r.started, r.started}, r.start})
		}
		if r.end != nil && within(r.ended) {
			ran := max(r.started, t.acquire.to, r.ended-eventLag)
			holds = append(holds, hold{span{ran, ran}, *r.end})
		}
	}
	return holds
}

// eventLag is how much later than a container's end the runtime may date its event: when it sends it, after it has deleted the task
// (containerd, handleContainerExit). The plugin sees in the container's cgroup that it has ended.
const eventLag = 500 * time.Millisecond

// outlives is the last end of a container that ran on with what a tenure of the claim gave it after that was released; nil where
// none did. Nobody else is to have that until then. What the claim was prepared with once more is its own again.
func (c *checker) outlives(cl *claim, t *tenure) *hold {
	until := never
	for _, next := range cl.tenures {
		if next.acquire.from > t.release.from {
			until = min(until, next.acquire.from)
		}
	}
	var last *hold
	for _, r := range c.containers {
		ended := r.ended - eventLag
		if !cl.has(r.Pod) || r.end == nil || r.started < t.acquire.to || r.started > t.release.to || ended <= t.release.to || ended >= until {
			continue
		}
		if last == nil || ended > last.to {
			last = &hold{span{ended, ended}, *r.end}
		}
	}
	return last
}

// checkDevices checks that what claims were prepared with exists, and that running containers keep it.
func (c *checker) checkDevices() []Violation {
	var all []Violation
	for _, cl := range c.claims {
		for _, t := range cl.tenures {
			for _, a := range cl.owned(t) {
				all = append(all, c.checkDevice(cl, t, a.Device)...)
			}
		}
		for _, r := range c.containers {
			if v := c.checkPrepared(cl, r); v != nil {
				all = append(all, *v)
			}
		}
	}
	return all
}

// checkPrepared checks that a container starts only in a tenure of the claims of its pod.
func (c *checker) checkPrepared(cl *claim, r run) *Violation {
	if !cl.has(r.Pod) || len(cl.calls) == 0 {
		return nil
	}
	for _, t := range cl.tenures {
		if c.earliest(SourceKubelet, t.acquire.to) <= r.started && r.started <= t.release.to {
			return nil
		}
	}
	return &Violation{
		Rule: RuleDevice, Events: []Event{r.start},
		Text: fmt.Sprintf("At %s container %s of pod %s started while claim %s was not prepared. It runs without what it was allocated.",
			r.started, r.Name, r.Pod, cl.uid),
	}
}

func (c *checker) checkDevice(cl *claim, t *tenure, device string) []Violation {
	var all []Violation
	answers := []Event{*t.prepared.returned}
	calls := []Event{t.prepared.call}
	for _, h := range t.holds {
		for _, k := range cl.calls {
			if k.returned != nil && k.returned.At == h.event.At {
				answers, calls = append(answers, h.event), append(calls, k.call)
			}
		}
	}
	for i := range answers {
		if v := c.checkExists(cl, device, calls[i], answers[i]); v != nil {
			all = append(all, *v)
		}
	}
	if v := c.checkTenure(cl, t, device); v != nil {
		return append(all, *v)
	}
	for _, r := range c.containers {
		if cl.has(r.Pod) && r.started >= t.acquire.to && r.started <= t.release.to {
			if v := c.checkKept(cl, device, r); v != nil {
				all = append(all, *v)
			}
		}
	}
	return all
}

// checkTenure checks that the plugin does not destroy what a claim has before it is released, but to prepare it again: where
// others have destroyed a part.
func (c *checker) checkTenure(cl *claim, t *tenure, device string) *Violation {
	for _, p := range c.partitions {
		if !p.isOf(device) || p.destroyed == nil || !c.by(*p.destroyed) || p.end() <= t.acquire.to || p.end() >= t.release.from ||
			cl.preparesAt(p.end()) {
			continue
		}
		return &Violation{
			Rule: RuleDevice, Events: []Event{*t.prepared.returned, *p.destroyed},
			Text: fmt.Sprintf("At %s %s destroyed partition %s, which claim %s has. It was prepared at %s, and nobody had released it.",
				p.end(), c.limits.Program, p.name(), cl.uid, t.acquire.to),
		}
	}
	return nil
}

// preparesAt reports whether a call of Prepare may be under way: one without an answer, until the next call has one.
func (cl *claim) preparesAt(at time.Duration) bool {
	for _, k := range cl.calls {
		switch {
		case k.call.At > at:
			return false
		case k.returned == nil && k.method == Prepare:
			if !slices.ContainsFunc(cl.calls, func(o *call) bool { return o.call.At > k.call.At && o.returned != nil && o.returned.At < at }) {
				return true
			}
		case k.method == Prepare && k.returned.At >= at:
			return true
		}
	}
	return false
}

// checkExists checks that a device that Prepare returned is there: unless another program took it away during the call.
func (c *checker) checkExists(cl *claim, device string, call, answer Event) *Violation {
	if !strings.Contains(device, "-mig-") || !c.hardware {
		return nil
	}
	var last *partition
	for _, p := range c.partitions {
		if !p.isOf(device) || p.created.At > answer.At {
			continue
		}
		if p.end() >= answer.At || p.destroyed != nil && !c.by(*p.destroyed) && p.end() >= call.At {
			return nil
		}
		last = p
	}
	v := &Violation{Rule: RuleDevice, Events: []Event{call, answer}}
	since := "It was never created"
	if last != nil {
		since = fmt.Sprintf("It was destroyed at %s by %s", last.destroyed.At, last.destroyed.Fact.(Hardware).By)
		v.Events = append(v.Events, *last.destroyed)
	}
	v.Text = fmt.Sprintf("At %s claim %s was prepared with %s, which did not exist. %s.", answer.At, cl.uid, device, since)
	return v
}

// checkKept checks that the plugin takes nothing away from a container that runs.
func (c *checker) checkKept(cl *claim, device string, r run) *Violation {
	during := func(e Event) bool { return e.At > r.started && e.At < r.ended && c.by(e) }
	gpu, _, _, isPartition := placeOf(device)
	violation := func(e Event, what string) *Violation {
		return &Violation{
			Rule: RuleDevice, Events: []Event{r.start, e},
			Text: fmt.Sprintf("At %s %s %s, which claim %s has. Container %s of pod %s ran with it from %s to %s.",
				e.At, c.limits.Program, what, cl.uid, r.Name, r.Pod, r.started, r.ended),
		}
	}
	for _, p := range c.partitions {
		if isPartition && p.isOf(device) && p.destroyed != nil && p.created.At <= r.started && during(*p.destroyed) {
			return violation(*p.destroyed, "destroyed partition "+p.name())
		}
	}
	for _, m := range c.modes {
		f := m.Fact.(Hardware)
		if f.GPU != gpu || !during(m) {
			continue
		}
		if f.Change == MIGMode && f.Value == fmt.Sprint(!isPartition) {
			return violation(m, "changed the MIG mode of "+gpu)
		}
		if f.Change == ComputeMode && f.Value == defaultMode && device == gpu+"-mps" {
			return violation(m, "took the compute mode of MPS from "+gpu)
		}
	}
	return nil
}
