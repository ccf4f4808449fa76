// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// publication is the progress of writing slices to the API server.
type publication struct {
	// published are the slices last handed to the helper; nil before the first time.
	published []nodeslices.Slice
	contents  []content
	// arriving is the index, plus one, of the last changed slice, which the API server may not have yet; zero for none. since is
	// when it was changed.
	arriving int
	since    time.Time
	// last is when slices were last handed to the helper, or just before.
	last time.Time
	// moved is when slices were last changed, or seen to arrive: there is how many of published the API server had then.
	moved time.Time
	there int
	// complete is set once the API server had all of published.
	complete bool
	// gone is when slices were first found missing, restored the number of times they were republished since.
	gone     time.Time
	restored int
	loss     loss
}

// loss describes slices that something other than this plugin deleted.
type loss struct {
	at      time.Time
	missing int
}

// step is the next action.
type step struct {
	// slices to hand to the helper; nil for none.
	slices []nodeslices.Slice
	// changed is the index, plus one, of the only changed slice; zero if all may have changed.
	changed int
	// missing is the number of published slices that are missing; zero if the slices are new.
	missing int
	// handed is set if the helper has been given all wanted slices, arrived if the API server has them.
	handed, arrived bool
	// slow is set if the wait for a slice has timed out.
	slow bool
	// again is the time after which to call next again even without changes; zero for never.
	again time.Duration
}

const (
	// restoreAfter is how long slices must have been missing before they are republished: more deletions may follow. By itself, the
	// helper restores them 30 s after the last change (DefaultSyncDelay of k8s.io/dynamic-resource-allocation/resourceslice
	// v0.37.2).
	restoreAfter = 300 * time.Millisecond
	// restoreEvery is the time to the second attempt, as the helper may learn of a deletion after this plugin does. The delay then
	// doubles, up to restoreAtMost.
	restoreEvery  = time.Second
	restoreAtMost = 30 * time.Second
	// rewriteAfter is how long slices are left to the helper that it could not write. After each failure it waits twice as long, up to
	// 1000 s (DefaultTypedControllerRateLimiter of k8s.io/client-go/util/workqueue): after an outage of the API server, a GPU that was
	// lost meanwhile could be allocated for a quarter of an hour.
	rewriteAfter = 30 * time.Second
)

// next decides on the next step towards the wanted slices. It updates only its knowledge of the slices seen. failed is when a write last
// failed, zero for never.
//
// Slices change one at a time, each after the previous one has reached the API server: if several slices change, the pool gets a
// new generation, and nothing can be allocated from it until all have arrived. The last one is awaited only before the next change,
// so that a change of one slice costs one request.
//
// No allocated device is ever missing, nor a counter that it consumes, as the scheduler would allocate them again:
//   - What is published before and after has them: what is allocated is offered whatever the policy says, and a GPU has
//     counters wherever two of its devices exclude each other (countersOf).
//   - Where slices change one at a time, each state in between has the same counters, and each device that is published
//     before and after. That is so only if no device changes its slice and no counters change; see oneByOne.
//   - Else all slices change at once. The helper then removes, changes and creates slices in an order of its own, but
//     from its first write to its last the pool is not whole: slices are fewer than they say that they are, or those of the
//     new generation are. From such a pool the scheduler allocates nothing (GatherPools of
//     k8s.io/dynamic-resource-allocation/structured).
func (p *publication) next(wanted []nodeslices.Slice, seen []Seen, failed, now time.Time) step {
	if wanted == nil {
		return step{}
	}
	missing, exact := p.compare(seen)
	p.noteMoved(seen, now)
	if p.arriving > 0 && hasSlice(seen, p.arriving-1, p.contents[p.arriving-1]) {
		p.arriving = 0
	}
	if p.published == nil || !oneByOne(p.published, wanted) {
		return step{slices: wanted}
	}
	differs := p.firstChange(wanted)
	if differs == 0 {
		s := step{arrived: missing == 0 && exact}
		switch {
		case s.arrived:
		case exact && p.complete:
			s = p.restore(missing, now)
		default:
			s = p.rewrite(failed, now)
		}
		s.handed = true
		return s
	}
	slow := false
	if p.arriving > 0 && p.arriving != differs {
		left := syncTimeout - now.Sub(p.since)
		if left > 0 {
			return step{again: left}
		}
		slow = true // the helper keeps trying; the pool just may not be allocatable meanwhile
	}
	next := slices.Clone(p.published)
	next[differs-1] = wanted[differs-1]
	return step{slices: next, changed: differs, slow: slow}
}

// firstChange is the index, plus one, of a slice to change: the one still arriving, as it need not be awaited, or the first; zero
// for none.
func (p *publication) firstChange(wanted []nodeslices.Slice) int {
	differs := func(i int) bool { return !resourceslice.DevicesDeepEqual(p.published[i].Devices, wanted[i].Devices) }
	if p.arriving > 0 && differs(p.arriving-1) {
		return p.arriving
	}
	for i := range wanted {
		if differs(i) {
			return i + 1
		}
	}
	return 0
}

// compare counts the published slices that the API server lacks. exact reports that it has only published slices: if there are
// others, another plugin of a rolling update is publishing, and must not be fought.
func (p *publication) compare(seen []Seen) (missing int, exact bool) {
	there := map[int]bool{}
	for _, s := range seen {
		if there[s.index] || s.index < 0 || s.index >= len(p.contents) || s.content != p.contents[s.index] || s.count != len(p.contents) {
			return 0, false
		}
		there[s.index] = true
	}
	missing = len(p.contents) - len(there)
	if missing == 0 {
		p.complete, p.gone, p.restored = true, time.Time{}, 0
	}
	return missing, true
}

// noteMoved notes arrivals.
func (p *publication) noteMoved(seen []Seen, now time.Time) {
	there := 0
	for i := range p.contents {
		if hasSlice(seen, i, p.contents[i]) {
			there++
		}
	}
	if there != p.there {
		p.there, p.moved = there, now
	}
}

// rewrite hands slices to the helper again that have not arrived, if a write has failed since: it then tries at once.
func (p *publication) rewrite(failed, now time.Time) step {
	left := rewriteAfter - now.Sub(p.last)
	switch {
	case left > 0:
		return step{again: left}
	case !failed.Before(p.last):
		return step{slices: p.published, changed: p.arriving}
	default:
		return step{again: rewriteAfter}
	}
}

// restore republishes slices that something else deleted.
func (p *publication) restore(missing int, now time.Time) step {
	if p.gone.IsZero() {
		p.gone = now
	}
	wait := restoreAfter
	if p.restored > 0 {
		wait = min(restoreEvery<<min(p.restored-1, 8), restoreAtMost)
	}
	if left := wait - now.Sub(p.gone); left > 0 {
		return step{again: left}
	}
	return step{slices: p.published, missing: missing}
}

// handed notes that the helper has taken a step's slices.
func (p *publication) handed(s step, now time.Time) {
	p.last = now
	if s.missing > 0 {
		if p.restored++; p.restored == 1 && p.loss.missing == 0 {
			p.loss = loss{p.gone, s.missing}
		}
		p.gone = now
		return
	}
	p.published, p.arriving, p.since, p.moved = s.slices, s.changed, now, now
	p.complete, p.gone, p.restored = false, time.Time{}, 0
	p.contents = nil
	for i := range s.slices {
		p.contents = append(p.contents, contentOf(s.slices[i].Devices, s.slices[i].SharedCounters))
	}
}

// oneByOne reports whether slices can change one at a time: their number and counters stay, no device consumes other counters, and
// none moves to another slice, as it would temporarily exist twice or not at all.
func oneByOne(was, want []nodeslices.Slice) bool {
	if len(was) != len(want) {
		return false
	}
	sliceOf, consumes := map[string]int{}, map[string][]resourceapi.DeviceCounterConsumption{}
	for i := range was {
		if !apiequality.Semantic.DeepEqual(was[i].SharedCounters, want[i].SharedCounters) {
			return false
		}
		for _, d := range was[i].Devices {
			sliceOf[d.Name], consumes[d.Name] = i, d.ConsumesCounters
		}
	}
	for i := range want {
		for _, d := range want[i].Devices {
			before, ok := sliceOf[d.Name]
			if ok && (before != i || !apiequality.Semantic.DeepEqual(consumes[d.Name], d.ConsumesCounters)) {
				return false
			}
		}
	}
	return true
}

// content is a digest of a slice: the slices of a node are large, and already in the helper's memory.
type content [sha256.Size]byte

// contentOf leaves out when taints were added, which the API server fills in.
func contentOf(devices []resourceapi.Device, counters []resourceapi.CounterSet) content {
	spec := resourceapi.ResourceSliceSpec{SharedCounters: counters}
	for _, d := range devices {
		d.Taints = slices.Clone(d.Taints)
		for i := range d.Taints {
			d.Taints[i].TimeAdded = nil
		}
		spec.Devices = append(spec.Devices, d)
	}
	data, err := spec.Marshal()
	if err != nil {
		return content{} // cannot happen; an empty digest matches nothing
	}
	return sha256.Sum256(data)
}

// Seen is the needed part of a ResourceSlice of this driver and node in the API server.
type Seen struct {
	// index is its place among the slices; -1 for a slice that the helper did not name.
	index int
	// count is the number of slices that it declares.
	count   int
	content content
	// Devices are the names of its devices.
	Devices []string
}

// SeenOf returns the needed part of a ResourceSlice; false for one of another driver or node.
func SeenOf(object any, driver, node string) (Seen, bool) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok || slice.Spec.Driver != driver || slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return Seen{}, false
	}
	own := Seen{index: -1, count: int(slice.Spec.Pool.ResourceSliceCount), content: contentOf(slice.Spec.Devices, slice.Spec.SharedCounters)}
	// The helper names slices by their index (k8s.io/dynamic-resource-allocation/resourceslice).
	if prefix, _, ok := strings.Cut(slice.Name, "-"); ok {
		if index, err := strconv.ParseInt(prefix, 16, 32); err == nil {
			own.index = int(index)
		}
	}
	for i := range slice.Spec.Devices {
		own.Devices = append(own.Devices, slice.Spec.Devices[i].Name)
	}
	return own, true
}

func hasSlice(seen []Seen, index int, want content) bool {
	return slices.ContainsFunc(seen, func(s Seen) bool { return s.index == index && s.content == want })
}
