// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watches are the informers. Those that may not be read are nil.
type watches struct {
	driver string

	slices, claims, nodes, rules, classes, pods, templates, quotas cache.SharedIndexInformer
}

func (w *watches) all() []cache.SharedIndexInformer {
	var all []cache.SharedIndexInformer
	for _, i := range []cache.SharedIndexInformer{w.slices, w.claims, w.nodes, w.rules, w.classes, w.pods, w.templates, w.quotas} {
		if i != nil {
			all = append(all, i)
		}
	}
	return all
}

// Indexes.
const (
	byNode = "node"
	byPool = "pool"
	// byClaim is for pods.
	byClaim = "claim"
)

// resource is a watched kind of objects.
type resource struct {
	kind      string
	informer  *cache.SharedIndexInformer
	example   runtime.Object
	list      func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch     func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	transform cache.TransformFunc
	indexers  cache.Indexers
	handler   cache.ResourceEventHandler
	// missing says what the pictures lack if the kind cannot be read; empty if nothing can be shown without it.
	missing string
}

// typed are the methods of a typed client.
type typed[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

func lister[L runtime.Object](client typed[L]) func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) }
}

// watch sets up the informers of what may be read.
func (s *Source) watch(ctx context.Context) error {
	for _, r := range s.resources() {
		if _, err := r.list(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			err = fmt.Errorf("list %s: %w", r.kind, err)
			if r.missing == "" || !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) { // older releases have no DeviceTaintRules
				return err
			}
			s.notices = append(s.notices, fmt.Sprintf("%s: %v", r.missing, err))
			continue
		}
		// The wrapper knows that fake clients cannot stream lists.
		lw := cache.ToListWatcherWithWatchListSemantics(
			&cache.ListWatch{ListWithContextFunc: r.list, WatchFuncWithContext: r.watch}, s.config.Client)
		i := cache.NewSharedIndexInformer(lw, r.example, 0, r.indexers)
		handled, err := i.AddEventHandler(r.handler)
		if err = errors.Join(err, i.SetTransform(r.transform)); err != nil {
			return fmt.Errorf("watch %s: %w", r.kind, err)
		}
		*r.informer, s.synced = i, append(s.synced, handled.HasSynced)
	}
	return nil
}

func (s *Source) resources() []resource {
	r := s.config.Client.ResourceV1()
	slices, claims := r.ResourceSlices(), r.ResourceClaims(metav1.NamespaceAll)
	rules, classes, nodes := r.DeviceTaintRules(), r.DeviceClasses(), s.config.Client.CoreV1().Nodes()
	all := []resource{{
		kind: "ResourceSlices", informer: &s.watches.slices, example: &resourceapi.ResourceSlice{}, transform: pack,
		list: lister(slices), watch: slices.Watch,
		indexers: cache.Indexers{
			byNode: func(o any) ([]string, error) { return s.watches.own(o.(*packedSlice), o.(*packedSlice).node), nil },
			byPool: func(o any) ([]string, error) { return s.watches.own(o.(*packedSlice), o.(*packedSlice).pool), nil },
		},
		handler: onChange(func(d *dirty, o *packedSlice) {
			if o.driver == s.config.Driver {
				d.nodes[o.node] = true
			}
		}, s.mark),
	}, {
		kind: "ResourceClaims", informer: &s.watches.claims, example: &resourceapi.ResourceClaim{}, transform: shrinkClaim,
		list: lister(claims), watch: claims.Watch,
		indexers: cache.Indexers{byPool: func(o any) ([]string, error) { return s.watches.pools(o.(*resourceapi.ResourceClaim)), nil }},
		handler:  onChange(s.claimChanged, s.mark),
	}, {
		kind: "Nodes", informer: &s.watches.nodes, example: &corev1.Node{}, transform: shrinkNode,
		list: lister(nodes), watch: nodes.Watch, indexers: cache.Indexers{},
		handler: onChange(func(d *dirty, o *machine) { d.nodes[o.Name], d.reasons = true, true }, s.mark),
		missing: "States of nodes are not shown, and claims are explained without taints, node selectors and affinity",
	}, {
		kind: "DeviceTaintRules", informer: &s.watches.rules, example: &resourceapi.DeviceTaintRule{}, transform: bare,
		list: lister(rules), watch: rules.Watch, indexers: cache.Indexers{},
		handler: onChange(s.ruleChanged, s.mark), missing: "Taints of DeviceTaintRules are not shown",
	}, {
		kind: "DeviceClasses", informer: &s.watches.classes, example: &resourceapi.DeviceClass{}, transform: bare,
		list: lister(classes), watch: classes.Watch, indexers: cache.Indexers{},
		handler: onChange(func(d *dirty, _ *resourceapi.DeviceClass) { d.all, d.reasons = true, true }, s.mark),
		missing: "Pending claims of other drivers are listed, too",
	}}
	if s.config.Pods {
		all = append(append(all, s.pendingPods()), aboutMissing(s)...)
	}
	return all
}

func bare(object any) (any, error) { return object, nil }

// own is the key of a slice in an index, which has the driver's own. Those of other drivers are kept to explain claims.
func (w *watches) own(slice *packedSlice, key string) []string {
	if key == "" || slice.driver != w.driver {
		return nil
	}
	return []string{key}
}

// onChange calls note for an object before and after a change.
func onChange[T any](note func(*dirty, T), mark func(func(*dirty))) cache.ResourceEventHandler {
	noteAll := func(objects ...any) {
		mark(func(d *dirty) {
			for _, o := range objects {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				if object, ok := o.(T); ok {
					note(d, object)
				}
			}
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { noteAll(o) },
		UpdateFunc: func(before, after any) {
			if a, ok := after.(*machine); ok && a.same(before) {
				return // a node's heartbeat
			}
			noteAll(before, after)
		},
		DeleteFunc: func(o any) { noteAll(o) },
	}
}

// pools are those in which a claim is allocated devices of the driver.
func (w *watches) pools(c *resourceapi.ResourceClaim) []string {
	if c.Status.Allocation == nil {
		return nil
	}
	var pools []string
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == w.driver {
			pools = append(pools, r.Pool)
		}
	}
	return pools
}

func (w *watches) nodesOf(pool string) []string {
	var nodes []string
	objects, err := w.slices.GetIndexer().ByIndex(byPool, pool)
	if err != nil {
		return nil // there is such an index
	}
	for _, o := range objects {
		nodes = append(nodes, o.(*packedSlice).node)
	}
	return nodes
}

func (s *Source) claimChanged(d *dirty, c *resourceapi.ResourceClaim) {
	d.claims[c.Namespace+"/"+c.Name] = true
	for _, pool := range s.watches.pools(c) {
		for _, node := range s.watches.nodesOf(pool) {
			d.nodes[node] = true
		}
	}
}

func (s *Source) ruleChanged(d *dirty, r *resourceapi.DeviceTaintRule) {
	selector := r.Spec.DeviceSelector
	if selector == nil || selector.Driver != nil && *selector.Driver != s.config.Driver {
		return
	}
	d.reasons = true
	if selector.Pool == nil {
		d.all = true
		return
	}
	for _, node := range s.watches.nodesOf(*selector.Pool) {
		d.nodes[node] = true
	}
}
