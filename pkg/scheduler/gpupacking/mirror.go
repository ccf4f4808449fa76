// SPDX-License-Identifier: Apache-2.0

package gpupacking

import "k8s.io/client-go/tools/cache"

// mirror is what of an informer's objects has been applied. It follows the informer's store, and events only say which object
// to look at. So they may come from several sources, late or twice, and in any order among each other: what is applied is
// never older than an event of which somebody was told.
type mirror[T comparable] struct {
	store   cache.Indexer
	applied map[string]T // by key
	// apply receives each change; the zero value stands for an object that was not there before, or is not anymore.
	apply func(before, after T)
	// scanned is the version of the store at the last look at all of it.
	scanned string
}

func newMirror[T comparable](store cache.Indexer, apply func(before, after T)) *mirror[T] {
	return &mirror[T]{store: store, applied: map[string]T{}, apply: apply}
}

// follow applies what changed of an object.
func (m *mirror[T]) follow(key string) (changed bool) {
	var none, after T
	if object, ok, err := m.store.GetByKey(key); err == nil && ok {
		after, _ = object.(T)
	}
	before := m.applied[key]
	if before == after {
		return false
	}
	if after == none {
		delete(m.applied, key)
	} else {
		m.applied[key] = after
	}
	m.apply(before, after)
	return true
}

// followAll applies what changed of any object. It does nothing where the store is at the version that it had last time.
func (m *mirror[T]) followAll() (changed bool) {
	version := m.store.LastStoreSyncResourceVersion() // before the look, which then sees this version at least
	if version != "" && version == m.scanned {
		return false
	}
	keys := m.store.ListKeys()
	for _, key := range keys {
		changed = m.follow(key) || changed
	}
	if len(m.applied) > len(keys) {
		for key := range m.applied {
			changed = m.follow(key) || changed
		}
	}
	m.scanned = version
	return changed
}
