// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Tracker makes figures of looks in a row. The caller serialises its calls.
type Tracker struct {
	gpus map[string]*tracked // by name of the whole GPU's device
	used map[Key]*Used
}

// tracked is what the last look at a GPU left.
type tracked struct {
	uuid   string
	at     time.Time
	energy *uint64
	// keys are those of its holdings.
	keys []Key
	// watts is the least mean power that was seen, zero before.
	watts float64
}

// NewTracker returns one that knows nothing yet.
func NewTracker() *Tracker { return &Tracker{gpus: map[string]*tracked{}, used: map[Key]*Used{}} }

// Keep forgets what is no longer held.
func (t *Tracker) Keep(all []Holding) {
	held, gpus := map[Key]bool{}, map[string]bool{}
	for _, h := range all {
		held[h.Key], gpus[h.GPU] = true, true
	}
	maps.DeleteFunc(t.used, func(k Key, _ *Used) bool { return !held[k] })
	for name, g := range t.gpus {
		if !gpus[name] {
			g.keys = nil
		}
	}
}

// Used lists what was seen after a time, by claim and device. What was seen before that says no more than the most that it was.
func (t *Tracker) Used(after time.Time) []Used {
	var all []Used
	for _, u := range t.used {
		one := *u
		if !one.At.After(after) {
			one = Used{Key: u.Key, At: u.At, Seen: u.Seen}
		}
		if one.SM == nil {
			one.LastActive = nil // nobody knows what it does now
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Used) int { return cmp.Or(cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device)) })
	return all
}

// Observe takes a look into account.
func (t *Tracker) Observe(l Look) {
	g := t.gpus[l.GPU]
	if g == nil || g.uuid != l.UUID {
		g = &tracked{uuid: l.UUID}
		t.gpus[l.GPU] = g
	}
	a := attribute(&l)
	keys := make([]Key, 0, len(l.Holdings))
	activities := make([]gpu.Activity, len(l.Holdings))
	for i := range l.Holdings {
		h := &l.Holdings[i]
		keys = append(keys, h.Key)
		// The counters of a device are a claim's if it has had the device, and no other had.
		settled := slices.Contains(g.keys, h.Key) &&
			!slices.ContainsFunc(g.keys, func(k Key) bool { return k.Device == h.Device && k.Claim != h.Claim })
		var source Source
		activities[i], source = l.activity(i, &a.works[i], settled)
		t.note(&l, i, &a.works[i], activities[i], source)
	}
	same := slices.Equal(sorted(g.keys), sorted(keys))
	t.energy(g, &l, &a, activities, same)
	g.at, g.energy, g.keys = l.Reading.At, l.Reading.Energy, keys
}

func sorted(keys []Key) []Key {
	return slices.SortedFunc(slices.Values(keys), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device))
	})
}

// note updates a claim's figures, apart from its energy.
func (t *Tracker) note(l *Look, i int, w *work, a gpu.Activity, source Source) {
	key, at := l.Holdings[i].Key, l.Reading.At
	u := &Used{Key: key, At: at, SM: a.SM, DRAM: a.DRAM, Source: source, LastActive: &at, Seen: Seen{Since: at}}
	if last := t.used[key]; last != nil {
		u.Energy, u.Seen = last.Energy, last.Seen
		if idle := a.SM != nil && *a.SM < activeFrom && (source != SourceProcess || !w.maybeActive); idle {
			u.LastActive = last.LastActive
		}
	}
	if !w.memoryUnknown {
		u.Memory = &w.memory
	}
	u.Seen.add(u.Memory, u.SM)
	t.used[key] = u
}

// energy apportions what a GPU has consumed since the last look, unless its claims have changed.
func (t *Tracker) energy(g *tracked, l *Look, a *attribution, activities []gpu.Activity, same bool) {
	took := l.Reading.At.Sub(g.at)
	joules, ok := consumed(g.energy, l.Reading.Energy, took)
	if !ok {
		return
	}
	if watts := joules / took.Seconds(); g.watts == 0 || watts < g.watts {
		g.watts = watts
	}
	if !same {
		return
	}
	portions, known := portionsOf(l, activities)
	other := a.other
	if l.whole() {
		portions, known, other = []portion{{1, 1}}, true, 0
	}
	if !known {
		return
	}
	for i, part := range apportion(joules, g.watts*took.Seconds(), other, portions) {
		u := t.used[l.Holdings[i].Key]
		if u.Energy != nil {
			part += *u.Energy
		}
		u.Energy = &part
	}
}

// whole reports whether a claim has the whole GPU.
func (l *Look) whole() bool {
	return len(l.Holdings) == 1 && l.Holdings[0].GI == gpu.WholeGPU && l.Holdings[0].Share == ""
}

// portionsOf are those of the holdings of a look; false if the activity of one of them, or of a partition of no claim, is unknown.
func portionsOf(l *Look, activities []gpu.Activity) (all []portion, known bool) {
	for _, p := range l.Reading.Processes {
		if !slices.ContainsFunc(l.Holdings, func(h Holding) bool { return h.GI == p.GI }) {
			return nil, false
		}
	}
	for i := range l.Holdings {
		h, sm := &l.Holdings[i], activities[i].SM
		if sm == nil || h.Part == 0 || h.OfDevice == 0 {
			return nil, false
		}
		all = append(all, portion{part: h.Part, activity: *sm * h.OfDevice})
	}
	return all, true
}
