// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driver/publisher"
)

// Watcher follows the Node object, the ResourceSlices of the node, and the plugin's DaemonSet with its DeviceClasses.
type Watcher struct {
	client kubernetes.Interface
	node   string

	object *store[Node]
	others *store[[]Device]
	// own are the slices of this driver. ownChanged has a value after they have changed.
	own        *store[publisher.Seen]
	ownChanged chan struct{}

	// daemonSet is the plugin's own, "namespace/name"; empty for none.
	daemonSet string
	installed *store[installation]
	// seenInstalled is set once the DaemonSet was seen.
	seenInstalled atomic.Bool
	// classes are the DeviceClasses that exist. classesChanged has a value after they or the DaemonSet have changed.
	classes        *store[struct{}]
	classesChanged chan struct{}
	// labels of the Node object may have to be written or removed when it has a value; those of clients when clients has one.
	labels, clients chan struct{}
	// clientLabels are those of clients that State has; set before Run.
	clientLabels []string

	// recreated is closed once the Node object is not the one that was read first, whose UID is uid. Both are for noteUID.
	recreated chan struct{}
	uid       types.UID

	mu sync.Mutex
	// last is the last state of the Node object, which holds while the object is briefly gone.
	last Node
}

// NewWatcher returns a watcher of a node; changed is called, and must not block, when State may have changed. daemonSet is the
// plugin's own, "namespace/name"; empty for none. The first of policyLabels that the node has names its policy; without any it is
// v1alpha1.PolicyLabel.
func NewWatcher(client kubernetes.Interface, driver, node, daemonSet string, changed func(), policyLabels ...string) *Watcher {
	if len(policyLabels) == 0 {
		policyLabels = []string{v1alpha1.PolicyLabel}
	}
	w := &Watcher{
		client: client, node: node, daemonSet: daemonSet,
		ownChanged: make(chan struct{}, 1), classesChanged: make(chan struct{}, 1), labels: make(chan struct{}, 1),
		clients: make(chan struct{}, 1), recreated: make(chan struct{}),
		others: newStore(0, changed, func(object any) ([]Device, bool) { return devicesOf(object, driver) }),
	}
	wakeLabels := func() { signals(w.labels)(); signals(w.clients)() }
	w.object = newStore(1, func() { changed(); wakeLabels() }, func(object any) (Node, bool) {
		w.noteUID(object)
		node, ok := nodeOf(object, policyLabels)
		node.Clients = clientsOf(object, w.clientLabels)
		return node, ok
	})
	w.own = newStore(0, signals(w.ownChanged), func(object any) (publisher.Seen, bool) { return publisher.SeenOf(object, driver, node) })
	wakeClasses := signals(w.classesChanged)
	w.installed = newStore(0, func() { wakeClasses(); wakeLabels() }, w.isInstalled)
	w.classes = newStore(0, signals(w.classesChanged), func(any) (struct{}, bool) { return struct{}{}, true })
	return w
}

// signals returns a function that sends to a channel of capacity one, without blocking.
func signals(to chan<- struct{}) func() {
	return func() {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// Run follows the API server until ctx ends, except for the DaemonSet; failed is called with each error of a read.
func (w *Watcher) Run(ctx context.Context, failed func(error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.daemonSet != "" {
		wg.Go(func() { w.followClasses(ctx) })
	}
	wg.Go(func() {
		selector := fields.OneTermEqualSelector("metadata.name", w.node).String()
		follow(ctx, w.object, w.client, w.client.CoreV1().Nodes(), &corev1.Node{}, selector, func(err error) {
			failed(fmt.Errorf("read Node %s: %w", w.node, err))
		})
	})
	wg.Go(func() {
		selector := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, w.node).String()
		follow(ctx, both{w.others, w.own}, w.client, w.client.ResourceV1().ResourceSlices(),
			&resourceapi.ResourceSlice{}, selector, func(err error) {
				failed(fmt.Errorf("read the ResourceSlices of node %s: %w", w.node, err))
			})
	})
}

// Wait returns once the Node and the ResourceSlices were read, or ctx ends.
func (w *Watcher) Wait(ctx context.Context) error {
	for _, known := range []chan struct{}{w.object.known, w.others.known} {
		select {
		case <-known:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Known reports whether the Node and the ResourceSlices were read.
func (w *Watcher) Known() bool {
	for _, known := range []chan struct{}{w.object.known, w.others.known} {
		select {
		case <-known:
		default:
			return false
		}
	}
	return true
}

// State is the last known state.
func (w *Watcher) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.object.all(); len(now) > 0 {
		w.last = now[0]
	}
	return State{Node: w.last, Others: slices.Concat(w.others.all()...)}
}

// Recreated is closed once the Node object was deleted and recreated. The garbage collector then deletes the ResourceSlices, which
// the first one owns, and the helper keeps rewriting them with that owner (k8s.io/dynamic-resource-allocation/resourceslice,
// Controller.syncPool: the UID of the owner is cached and expected not to change).
func (w *Watcher) Recreated() <-chan struct{} { return w.recreated }

// noteUID compares a Node object with the first one. The store of the Node calls it with its lock held, which State takes after mu:
// it must not take mu.
func (w *Watcher) noteUID(object any) {
	node, ok := object.(*corev1.Node)
	if !ok || node.UID == "" {
		return
	}
	switch {
	case w.uid == "":
		w.uid = node.UID
	case w.uid != node.UID:
		select {
		case <-w.recreated:
		default:
			close(w.recreated)
		}
	}
}

// OwnSlices are the ResourceSlices of this driver and node.
func (w *Watcher) OwnSlices() []publisher.Seen { return w.own.all() }

// OwnDevices are the names of their devices.
func (w *Watcher) OwnDevices() []string {
	var names []string
	for _, slice := range w.OwnSlices() {
		names = append(names, slice.Devices...)
	}
	return names
}

// OwnSlicesChanged has a value after OwnSlices has changed; others may send to it to wake its reader.
func (w *Watcher) OwnSlicesChanged() chan struct{} { return w.ownChanged }
