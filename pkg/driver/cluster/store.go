// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// store is the store of a reflector that keeps only the needed part of objects: a Node object, for example, is large and changes
// all the time.
type store[T any] struct {
	// keep returns the needed part of an object; false to drop it.
	keep func(object any) (T, bool)
	// changed is called when the kept data has changed.
	changed func()
	// known is closed once the objects were listed and there are at least atLeast.
	known   chan struct{}
	atLeast int

	mu     sync.Mutex
	listed bool
	byName map[string]T
}

func newStore[T any](atLeast int, changed func(), keep func(object any) (T, bool)) *store[T] {
	return &store[T]{keep: keep, changed: changed, known: make(chan struct{}), atLeast: atLeast, byName: map[string]T{}}
}

// lister is the part of a typed client for one kind of objects.
type lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// both are two stores of the same objects.
type both [2]cache.ReflectorStore

func (b both) Add(object any) error    { return errors.Join(b[0].Add(object), b[1].Add(object)) }
func (b both) Update(object any) error { return errors.Join(b[0].Update(object), b[1].Update(object)) }
func (b both) Delete(object any) error { return errors.Join(b[0].Delete(object), b[1].Delete(object)) }
func (b both) Resync() error           { return errors.Join(b[0].Resync(), b[1].Resync()) }

func (b both) Replace(objects []any, version string) error {
	return errors.Join(b[1].Replace(objects, version), b[0].Replace(objects, version))
}

// shortWatch is less than the time that a reflector has an API server watch: five to ten minutes (minWatchTimeout of
// k8s.io/client-go/tools/cache).
const shortWatch = 5 * time.Minute

// errWatchEnded is reported of a watch that was broken off. Where the connection is closed, as by a load balancer in front of an API
// server that is away, watching again is no error (Request.Watch of k8s.io/client-go/rest).
var errWatchEnded = errors.New("the watch was broken off")

// follow keeps a store up to date with the objects that a field selector picks, until ctx ends. Errors are reported and retried.
func follow[L runtime.Object](ctx context.Context, w cache.ReflectorStore, client kubernetes.Interface, api lister[L], like runtime.Object,
	selector string, failed func(error)) {
	var began time.Time
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			list, err := api.List(ctx, options)
			if err != nil {
				failed(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			if time.Since(began) < shortWatch {
				failed(errWatchEnded)
			}
			stream, err := api.Watch(ctx, options)
			if err != nil {
				failed(err)
				return nil, err
			}
			began = time.Now()
			return stream, nil
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), like, w, cache.ReflectorOptions{}).RunWithContext(ctx)
}

// all returns the kept data, in order of the objects' names.
func (w *store[T]) all() []T {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := make([]T, 0, len(w.byName))
	for _, name := range slices.Sorted(maps.Keys(w.byName)) {
		kept = append(kept, w.byName[name])
	}
	return kept
}

// has reports whether an object is kept: "namespace/name", or the name of a cluster-scoped one.
func (w *store[T]) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.byName[name]
	return has
}

// Add enters an object.
func (w *store[T]) Add(object any) error {
	return w.change(func(next map[string]T) error { return w.enter(next, object) })
}

// Update enters an object in place of an earlier one.
func (w *store[T]) Update(object any) error { return w.Add(object) }

// Delete removes an object.
func (w *store[T]) Delete(object any) error {
	return w.change(func(next map[string]T) error {
		name, err := cache.MetaNamespaceKeyFunc(object)
		delete(next, name)
		return err
	})
}

// Replace enters all objects that exist.
func (w *store[T]) Replace(objects []any, _ string) error {
	return w.change(func(next map[string]T) error {
		clear(next)
		for _, o := range objects {
			if err := w.enter(next, o); err != nil {
				return err
			}
		}
		w.listed = true
		return nil
	})
}

// Resync does nothing: listeners read all objects each time.
func (w *store[T]) Resync() error { return nil }

func (w *store[T]) enter(next map[string]T, object any) error {
	name, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return fmt.Errorf("store a watched object: %w", err)
	}
	delete(next, name)
	if kept, ours := w.keep(object); ours {
		next[name] = kept
	}
	return nil
}

// change makes an edit and calls changed if anything differs from before.
func (w *store[T]) change(edit func(next map[string]T) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := maps.Clone(w.byName)
	if err := edit(next); err != nil {
		return err
	}
	same := reflect.DeepEqual(w.byName, next)
	w.byName = next
	if w.listed && len(next) >= w.atLeast {
		select {
		case <-w.known:
		default:
			close(w.known)
		}
	}
	if !same {
		w.changed()
	}
	return nil
}
