// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"sync"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
)

// Interner replaces equal strings and maps of ResourceSlices by one of them. Nodes of one kind publish nearly the same, and
// decoded attributes and capacities are most of what a scheduler of thousands of GPU nodes has in memory. Objects of informers
// are never changed, so what is shared stays equal.
type Interner struct {
	mutex      sync.Mutex
	attributes interned[string, map[resourceapi.QualifiedName]resourceapi.DeviceAttribute]
	capacities interned[string, map[resourceapi.QualifiedName]resourceapi.DeviceCapacity]
	counters   interned[string, map[string]resourceapi.Counter]
	texts      interned[string, *string]
	numbers    interned[int64, *int64]
	flags      interned[bool, *bool]
}

// Transform is run on each slice before it is stored (client-go/tools/cache, TransformFunc).
func (in *Interner) Transform(object any) (any, error) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok {
		return object, nil
	}
	in.mutex.Lock()
	defer in.mutex.Unlock()
	slice.ManagedFields = nil
	slice.Spec.Driver, slice.Spec.Pool.Name = intern(slice.Spec.Driver), intern(slice.Spec.Pool.Name)
	for i := range slice.Spec.SharedCounters {
		set := &slice.Spec.SharedCounters[i]
		set.Name, set.Counters = intern(set.Name), in.consumed(set.Counters)
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.Name = intern(d.Name)
		d.Attributes = shareMap(&in.attributes, d.Attributes, &resourceapi.Device{Attributes: d.Attributes}, in.smallAttribute)
		d.Capacity = shareMap(&in.capacities, d.Capacity, &resourceapi.Device{Capacity: d.Capacity}, same)
		for j := range d.ConsumesCounters {
			c := &d.ConsumesCounters[j]
			c.CounterSet, c.Counters = intern(c.CounterSet), in.consumed(c.Counters)
		}
	}
	return slice, nil
}

func (in *Interner) consumed(m map[string]resourceapi.Counter) map[string]resourceapi.Counter {
	return shareMap(&in.counters, m, &resourceapi.CounterSet{Counters: m}, same)
}

// smallAttribute shares the values.
func (in *Interner) smallAttribute(a resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	a.StringValue, a.VersionValue = share(&in.texts, a.StringValue), share(&in.texts, a.VersionValue)
	a.IntValue, a.BoolValue = share(&in.numbers, a.IntValue), share(&in.flags, a.BoolValue)
	return a
}

// interned are values that are there once. The zero value is empty.
type interned[K comparable, V any] map[K]V

// maxInterned bounds the values. Beyond it they start anew; what was shared before stays so.
const maxInterned = 50_000

// get returns the value of a key, and makes one if there is none.
func (known *interned[K, V]) get(key K, value func() V) V {
	found, ok := (*known)[key]
	if ok {
		return found
	}
	if *known == nil || len(*known) >= maxInterned {
		*known = interned[K, V]{}
	}
	found = value()
	(*known)[key] = found
	return found
}

func intern(s string) string { return unique.Make(s).Value() }

func same[V any](v V) V { return v }

// share is a pointer to the same value that others have.
func share[T comparable](known *interned[T, *T], value *T) *T {
	if value == nil {
		return nil
	}
	return known.get(*value, func() *T { return value })
}

// shareMap returns the map that is known by the encoding of an object that has only the map, else one with the same entries, with
// keys and values made small.
func shareMap[K ~string, V any](
	known *interned[string, map[K]V], m map[K]V, object interface{ Marshal() ([]byte, error) }, small func(V) V,
) map[K]V {
	if len(m) == 0 {
		return m
	}
	key, err := object.Marshal() // entries in order of keys
	if err != nil {
		return m // it was decoded, so it can be encoded
	}
	return known.get(string(key), func() map[K]V {
		own := make(map[K]V, len(m))
		for k, v := range m {
			own[K(intern(string(k)))] = small(v)
		}
		return own
	})
}
