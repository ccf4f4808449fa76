// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

// published reports the counter sets and devices of a node's pool.
type published struct {
	api      API
	recorder *history.Recorder
	seen     map[string]history.Fact // what was reported last, by kind and name
	slices   map[string]*resourceapi.ResourceSlice
	devices  []string // of the last complete pool
}

func (p *published) changed(s *resourceapi.ResourceSlice) {
	if s.Spec.Driver != p.api.Driver || s.Spec.Pool.Name != p.api.Node {
		return
	}
	p.slices[s.Name] = s
	p.withdraw()
	p.publish(s)
}

func (p *published) deleted(s *resourceapi.ResourceSlice) {
	delete(p.slices, s.Name)
	p.withdraw()
}

// publish reports the counter sets and devices of a slice that are new or have changed.
func (p *published) publish(s *resourceapi.ResourceSlice) {
	for _, set := range s.Spec.SharedCounters {
		p.report("set "+set.Name, history.Counters{Set: set.Name, Values: countersOf(set.Counters)})
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		fact := history.Device{Name: d.Name, Shared: d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations}
		for _, c := range d.ConsumesCounters {
			fact.Set, fact.Consumes = c.CounterSet, countersOf(c.Counters)
		}
		for name, c := range d.Capacity {
			if fact.Capacity == nil {
				fact.Capacity = map[string]int64{}
			}
			fact.Capacity[unqualified(name)] = c.Value.Value()
		}
		p.report("device "+d.Name, fact)
	}
}

func (p *published) report(name string, fact history.Fact) {
	if !reflect.DeepEqual(p.seen[name], fact) {
		p.seen[name] = fact
		p.recorder.Add(fact)
	}
}

// withdraw reports the devices that a complete pool no longer has. Schedulers use no other (k8s.io/dynamic-resource-allocation,
// Pool.IsIncomplete).
func (p *published) withdraw() {
	devices, complete := p.pool()
	if !complete {
		return
	}
	for _, name := range p.devices {
		if !slices.Contains(devices, name) {
			delete(p.seen, "device "+name) // published again, it is reported again
			p.recorder.Add(history.Withdrawn{Name: name})
		}
	}
	p.devices = devices
}

// pool lists the devices of the slices of the latest generation, and reports whether these are all of the pool. Without slices there is
// no pool, and nothing published.
func (p *published) pool() (devices []string, complete bool) {
	var latest, count, want int64
	for _, name := range slices.Sorted(maps.Keys(p.slices)) {
		s := p.slices[name]
		of := s.Spec.Pool
		if of.Generation > latest || count == 0 {
			latest, count, want, devices = of.Generation, 0, of.ResourceSliceCount, nil
		}
		if of.Generation < latest {
			continue
		}
		count++
		for i := range s.Spec.Devices {
			devices = append(devices, s.Spec.Devices[i].Name)
		}
	}
	return devices, count == want
}

func countersOf(counters map[string]resourceapi.Counter) map[string]int64 {
	values := map[string]int64{}
	for name, c := range counters {
		values[name] = c.Value.Value()
	}
	return values
}
