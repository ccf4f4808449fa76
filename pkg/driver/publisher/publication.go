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

// publication is how far slices are on their way to the API server.
type publication struct {
	// published is what the helper was given last; nil before the first time.
	published []nodeslices.Slice
	contents  []content
	// arriving is the index, plus one, of the slice that was changed last and that the API server may not have yet; zero where
	// none was. since is when it was changed.
	arriving int
	since    time.Time
	// complete says that the API server had all of published at some time.
	complete bool
	// gone is when slices were first missing from it, restored how often they were published again since.
	gone     time.Time
	restored int
	loss     loss
}

// loss is slices that are missing from the API server and were not taken away by this plugin.
type loss struct {
	at      time.Time
	missing int
}

// step is what is to be done next.
type step struct {
	// slices to hand to the helper; nil for nothing.
	slices []nodeslices.Slice
	// changed is the index, plus one, of the only slice that differs from before; zero where all may.
	changed int
	// missing is how many slices that were published are not there; zero where the slices are new ones.
	missing int
	// arrived says that the API server has all that is wanted.
	arrived bool
	// slow says that a slice was not waited for any longer.
	slow bool
	// again is after what time to ask again though nothing changes; zero for never.
	again time.Duration
}

const (
	// restoreAfter is how long slices must have been missing before they are published again: whoever deletes some may be
	// about to delete more. Left alone, the helper puts them back 30 s after the last change (DefaultSyncDelay of
	// k8s.io/dynamic-resource-allocation/resourceslice v0.37.2).
	restoreAfter = 300 * time.Millisecond
	// restoreEvery is the time to the second attempt, as the helper may learn of a deletion after this plugin does. Each later
	// one takes twice the time, up to restoreAtMost.
	restoreEvery  = time.Second
	restoreAtMost = 30 * time.Second
)

// next decides on the next step towards the wanted slices. It changes nothing but what it knows of the slices that it sees.
//
// Slices change one at a time, each when the one before has reached the API server: a pool of which several slices change gets
// a new generation, and nothing can be allocated from it until all are there. The last one is waited for only once another one
// is to change, so that a change of one slice costs one request.
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
func (p *publication) next(wanted []nodeslices.Slice, seen []Seen, now time.Time) step {
	if wanted == nil {
		return step{}
	}
	missing, exact := p.compare(seen)
	if p.arriving > 0 && hasSlice(seen, p.arriving-1, p.contents[p.arriving-1]) {
		p.arriving = 0
	}
	if p.published == nil || !oneByOne(p.published, wanted) {
		return step{slices: wanted}
	}
	differs := p.firstChange(wanted)
	if differs == 0 {
		s := p.restore(missing, exact, now)
		s.arrived = missing == 0 && exact
		return s
	}
	slow := false
	if p.arriving > 0 && p.arriving != differs {
		left := syncTimeout - now.Sub(p.since)
		if left > 0 {
			return step{again: left}
		}
		slow = true // the helper goes on trying; what is lost is only the pool's staying allocatable meanwhile
	}
	next := slices.Clone(p.published)
	next[differs-1] = wanted[differs-1]
	return step{slices: next, changed: differs, slow: slow}
}

// firstChange is the index, plus one, of a slice that is to change: the one that is on its way, as it need not be waited for,
// or the first; zero where none is.
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

// compare counts the published slices that the API server lacks. exact says that it has nothing but published slices: where
// others are among them, another plugin of a rolling update is publishing, and is not to be opposed.
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

// restore publishes slices again that something else deleted.
func (p *publication) restore(missing int, exact bool, now time.Time) step {
	if missing == 0 || !exact || !p.complete {
		return step{}
	}
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
	if s.missing > 0 {
		if p.restored++; p.restored == 1 && p.loss.missing == 0 {
			p.loss = loss{p.gone, s.missing}
		}
		p.gone = now
		return
	}
	p.published, p.arriving, p.since = s.slices, s.changed, now
	p.complete, p.gone, p.restored = false, time.Time{}, 0
	p.contents = nil
	for i := range s.slices {
		p.contents = append(p.contents, contentOf(s.slices[i].Devices, s.slices[i].SharedCounters))
	}
}

// oneByOne reports whether slices can change one after the other: their number and their counters stay, no device consumes
// others, and none comes to another slice, where it would be twice, or nowhere, for a while.
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

// content is a digest of what a slice publishes: the slices of a node are large, and each is in the helper's memory already.
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

// Seen is what is needed of a ResourceSlice of this driver and node, as the API server has it.
type Seen struct {
	// index is its place among the slices; -1 for a slice that the helper did not name.
	index int
	// count is how many slices it says there are.
	count   int
	content content
	// Devices are the names of its devices.
	Devices []string
}

// SeenOf keeps what is needed of a ResourceSlice; false for one of another driver or node.
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

// hasSlice reports whether a slice is there as it is to be.
func hasSlice(seen []Seen, index int, want content) bool {
	return slices.ContainsFunc(seen, func(s Seen) bool { return s.index == index && s.content == want })
}
