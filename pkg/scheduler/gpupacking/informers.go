// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// newCluster makes a cluster that is kept up to date by informers, which must not have been started. All slices that the
// scheduler looks at share what is equal in them from then on.
func newCluster(ctx context.Context, all informers.SharedInformerFactory, api discovery.DiscoveryInterface) (*cluster, error) {
	published := all.Resource().V1().ResourceSlices().Informer()
	claims := all.Resource().V1().ResourceClaims().Informer()
	if err := published.SetTransform(new(resourcepool.Interner).Transform); err != nil {
		return nil, fmt.Errorf("share what is equal in ResourceSlices: %w", err)
	}
	c := &cluster{
		cache: pools.NewCache(), views: map[string][]*view{}, elsewhere: tally{},
		allocated: map[types.UID]*claimState{}, extended: map[types.UID]string{},
		owners: map[poolKey][]*view{}, users: map[poolKey]map[types.UID]bool{},
		ahead: make(chan struct{}), tie: tieOf, changed: func(string) {},
	}
	c.holds = &holds{mutex: &c.mutex, of: map[types.UID]*hold{}, binding: map[types.UID]bool{}, refused: map[types.UID]refusedPod{},
		gone: func(pod *corev1.Pod) { podGone(c, pod) }}
	c.holds.claims = claims.GetIndexer()
	c.slices = newMirror(published.GetIndexer(), c.sliceChanged)
	c.claims = newMirror(claims.GetIndexer(), c.claimChanged)
	if err := c.watch(published, c.slices.follow); err != nil {
		return nil, err
	}
	if err := c.watch(claims, c.claims.follow); err != nil {
		return nil, err
	}
	followed, err := c.holds.watch(all.Core().V1().Pods().Informer())
	if err != nil {
		return nil, err
	}
	c.synced = append(c.synced, followed)
	if !servesRules(ctx, api) {
		c.rules = newMirror(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), c.ruleChanged)
		return c, nil
	}
	rules := all.Resource().V1().DeviceTaintRules().Informer()
	c.rules = newMirror(rules.GetIndexer(), c.ruleChanged)
	return c, c.watch(rules, c.rules.follow)
}

// servesRules reports whether the API server has DeviceTaintRules. Without them, an informer of theirs would keep the
// scheduler from starting, as it waits for all of them. Kubernetes 1.37 has them unless its gate DRADeviceTaintRules is off.
func servesRules(ctx context.Context, api discovery.DiscoveryInterface) bool {
	list, err := api.ServerResourcesForGroupVersion(resourceapi.SchemeGroupVersion.String())
	if err != nil {
		// The informers say it if the API server stays out of reach.
		klog.FromContext(ctx).Error(err, "Discover whether there are DeviceTaintRules", "assumed", !apierrors.IsNotFound(err))
		return !apierrors.IsNotFound(err)
	}
	for i := range list.APIResources {
		if list.APIResources[i].Name == "devicetaintrules" {
			return true
		}
	}
	return false
}

// watch lets a mirror follow an informer.
func (c *cluster) watch(informer cache.SharedIndexInformer, follow func(key string) bool) error {
	look := func(object any) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		if err != nil {
			return // objects of informers have names
		}
		c.mutex.Lock()
		follow(key)
		c.mutex.Unlock()
		c.holds.tellEnded()
	}
	registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, object any) { look(object) }, DeleteFunc: look,
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	c.synced = append(c.synced, registered.HasSyncedChecker())
	return nil
}

// readAhead reads the views of all nodes once, until ctx ends: with a thousand nodes the first pod would wait for that for a second
// and more. A replica that waits for the lease has done it before it leads.
func (c *cluster) readAhead(ctx context.Context) {
	defer close(c.ahead)
	if !cache.WaitFor(ctx, "", c.synced...) {
		return
	}
	c.mutex.Lock()
	nodes := slices.Sorted(maps.Keys(c.views))
	c.mutex.Unlock()
	for _, node := range nodes {
		if ctx.Err() != nil {
			return
		}
		c.mutex.Lock() // for one node at a time, as pods are scheduled meanwhile
		for _, v := range c.views[node] {
			c.refresh(v)
		}
		c.mutex.Unlock()
	}
	klog.FromContext(ctx).V(2).Info("Read what all nodes publish", "nodes", len(nodes))
}

// follow applies what changed of an object of an event. With a slice go the rules, which few clusters have: the event may be
// about those.
func (c *cluster) follow(object metav1.Object) {
	key := cache.MetaObjectToName(object).String()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch object.(type) {
	case *resourceapi.ResourceClaim:
		c.claims.follow(key)
	case *resourceapi.ResourceSlice:
		c.slices.follow(key)
		c.rules.followAll()
	}
}

// followAll applies what the informers have and their handlers have not got to yet. It reports whether there was anything.
func (c *cluster) followAll() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	slices, rules, claims := c.slices.followAll(), c.rules.followAll(), c.claims.followAll()
	return slices || rules || claims
}
