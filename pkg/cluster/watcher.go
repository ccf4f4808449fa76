// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/publish"
)

// Watcher follows the Node object, the ResourceSlices of the node and the plugin's DaemonSet.
type Watcher struct {
	client       kubernetes.Interface
	driver, node string

	object *store[Node]
	others *store[[]Device]
	// own are the slices of this driver. ownChanged has a value after they have changed.
	own        *store[publish.Seen]
	ownChanged chan struct{}

	// daemonSet is the plugin's own, "namespace/name"; empty for none.
	daemonSet string
	installed *store[bool]
	// seenInstalled says that the DaemonSet existed once.
	seenInstalled atomic.Bool

	mu sync.Mutex
	// last is what the Node object said last: it holds while the object is gone for a moment.
	last Node
}

// NewWatcher makes a watcher of a node; changed is called, and must not block, when State may have changed. daemonSet is the
// plugin's own, "namespace/name"; empty for none.
func NewWatcher(client kubernetes.Interface, driver, node, daemonSet string, changed func()) *Watcher {
	ownChanged := make(chan struct{}, 1)
	notify := func() {
		select {
		case ownChanged <- struct{}{}:
		default:
		}
	}
	w := &Watcher{
		client: client, driver: driver, node: node, daemonSet: daemonSet,
		own:        newStore(0, notify, func(object any) (publish.Seen, bool) { return publish.SeenOf(object, driver, node) }),
		ownChanged: ownChanged,
		object:     newStore(1, changed, nodeOf),
		others:     newStore(0, changed, func(object any) ([]Device, bool) { return devicesOf(object, driver) }),
	}
	w.installed = newStore(0, func() {}, w.isInstalled)
	return w
}

// Run follows the API server until ctx ends; failed is called with each error of a read.
func (w *Watcher) Run(ctx context.Context, failed func(error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { w.followDaemonSet(ctx) })
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

// followDaemonSet follows the plugin's DaemonSet until ctx ends.
func (w *Watcher) followDaemonSet(ctx context.Context) {
	namespace, name, ok := strings.Cut(w.daemonSet, "/")
	if !ok {
		return
	}
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	follow(ctx, w.installed, w.client, w.client.AppsV1().DaemonSets(namespace), &appsv1.DaemonSet{}, selector, func(err error) {
		klog.FromContext(ctx).V(4).Info("Cannot watch the plugin's DaemonSet", "daemonSet", w.daemonSet, "reason", err.Error())
	})
}

// isInstalled keeps of a DaemonSet that it exists and is not being deleted.
func (w *Watcher) isInstalled(object any) (bool, bool) {
	set, ok := object.(*appsv1.DaemonSet)
	if !ok || set.Namespace+"/"+set.Name != w.daemonSet || set.DeletionTimestamp != nil {
		return false, false
	}
	w.seenInstalled.Store(true)
	return true, true
}

// DaemonSetGone reports whether the plugin's DaemonSet existed and was then deleted. One that could not be read counts as
// existing.
func (w *Watcher) DaemonSetGone() bool {
	return w.seenInstalled.Load() && len(w.installed.all()) == 0
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

// State is what was read last.
func (w *Watcher) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.object.all(); len(now) > 0 {
		w.last = now[0]
	}
	return State{Node: w.last, Others: slices.Concat(w.others.all()...)}
}

// OwnSlices are the ResourceSlices of this driver and node.
func (w *Watcher) OwnSlices() []publish.Seen { return w.own.all() }

// OwnSlicesChanged has a value after OwnSlices has changed; others may send to it to wake its reader.
func (w *Watcher) OwnSlicesChanged() chan struct{} { return w.ownChanged }
