// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
)

// sharing replaces equal strings and maps of ResourceSlices by one of them. Nodes of one kind publish nearly the same, and
// decoded attributes and capacities are most of what a scheduler of thousands of GPU nodes has in memory. Objects of informers
// are never changed, so what is shared stays equal.
type sharing struct {
	mutex      sync.Mutex
	attributes map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacities map[string]map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
	counters   map[string]map[string]resourceapi.Counter
	texts      map[string]*string
	numbers    map[int64]*int64
	flags      map[bool]*bool
}

// maxShared bounds each of the maps. Beyond it they start anew; what was shared before stays so.
const maxShared = 50_000

func newSharing() *sharing {
	return &sharing{
		attributes: map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		capacities: map[string]map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
		counters:   map[string]map[string]resourceapi.Counter{},
		texts:      map[string]*string{}, numbers: map[int64]*int64{}, flags: map[bool]*bool{},
	}
}

// transform is run on each slice before it is stored (client-go/tools/cache, TransformFunc).
func (s *sharing) transform(object any) (any, error) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok {
		return object, nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	slice.ManagedFields = nil
	slice.Spec.Driver, slice.Spec.Pool.Name = intern(slice.Spec.Driver), intern(slice.Spec.Pool.Name)
	for i := range slice.Spec.SharedCounters {
		set := &slice.Spec.SharedCounters[i]
		set.Name = intern(set.Name)
		set.Counters = shareMap(s.counters, set.Counters, counterText, same)
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.Name = intern(d.Name)
		d.Attributes = shareMap(s.attributes, d.Attributes, attributeText, s.smallAttribute)
		d.Capacity = shareMap(s.capacities, d.Capacity, capacityText, same)
		for j := range d.ConsumesCounters {
			c := &d.ConsumesCounters[j]
			c.CounterSet = intern(c.CounterSet)
			c.Counters = shareMap(s.counters, c.Counters, counterText, same)
		}
	}
	return slice, nil
}

func intern(s string) string { return unique.Make(s).Value() }

// shareMap returns the map that is known for the text of all entries, else one with the same entries, with keys and values
// made small.
func shareMap[K ~string, V any](known map[string]map[K]V, m map[K]V, text func(*V) string, small func(V) V) map[K]V {
	if len(m) == 0 {
		return m
	}
	var b []byte
	for _, k := range sortedKeys(m) {
		v := m[k]
		b = append(append(b, k...), 0) // in no name
		t := text(&v)
		b = append(binary.AppendUvarint(b, uint64(len(t))), t...)
	}
	if found, ok := known[string(b)]; ok {
		return found
	}
	if len(known) >= maxShared {
		clear(known)
	}
	own := make(map[K]V, len(m))
	for k, v := range m {
		own[K(intern(string(k)))] = small(v)
	}
	known[string(b)] = own
	return own
}

// marshal is the text of what can be encoded. Encoding fails for no object that was decoded.
func marshal(m interface{ Marshal() ([]byte, error) }) string {
	data, err := m.Marshal()
	if err != nil {
		return fmt.Sprint(m)
	}
	return string(data)
}

func counterText(c *resourceapi.Counter) string           { return c.Value.String() }
func attributeText(a *resourceapi.DeviceAttribute) string { return marshal(a) }
func capacityText(c *resourceapi.DeviceCapacity) string   { return marshal(c) }
func same[V any](v V) V                                   { return v }

// smallAttribute shares the values.
func (s *sharing) smallAttribute(a resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	a.StringValue, a.VersionValue = share(s.texts, a.StringValue), share(s.texts, a.VersionValue)
	a.IntValue, a.BoolValue = share(s.numbers, a.IntValue), share(s.flags, a.BoolValue)
	return a
}

// share is a pointer to the same value that others have.
func share[T comparable](known map[T]*T, value *T) *T {
	if value == nil {
		return nil
	}
	if found, ok := known[*value]; ok {
		return found
	}
	if len(known) >= maxShared {
		clear(known)
	}
	known[*value] = value
	return value
}
