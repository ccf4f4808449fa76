// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
)

// TestClaims_Order: informer and Reserve report in any order, and the informer also twice or late. Each step is checked: which
// of the three nodes, with a GPU each, are free.
func TestClaims_Order(t *testing.T) {
	type step struct {
		what, want string
		do         func(b *bed)
	}
	// on is a claim with the GPU of a node; on none without a node.
	on := func(b *bed, uid types.UID, version, node string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default", UID: uid, ResourceVersion: version}}
		if node != "" {
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: deviceOf(b, node)}}
		}
		return c
	}
	tell := func(uid types.UID, version, node string) func(*bed) {
		return func(b *bed) { c := on(b, uid, version, node); b.storeClaim(c); b.plugin.cluster.follow(c) }
	}
	gone := func(b *bed) {
		c := on(b, "", "", "")
		must(b.t, b.claimStore().Delete(c))
		b.plugin.cluster.follow(c)
	}
	assume := func(uid types.UID, node string) func(*bed) {
		return func(b *bed) { b.plugin.cluster.assume(uid, deviceOf(b, node)) }
	}
	forget := func(uid types.UID) func(*bed) { return func(b *bed) { b.plugin.cluster.forget(uid) } }
	confirm := func(uid types.UID, version string) func(*bed) {
		return func(b *bed) { b.plugin.cluster.confirm(reservedClaim{"default", "claim", uid, uid}, version) }
	}
	for name, steps := range map[string][]step{
		"the informer before Reserve": {
			{"stored", "n2 n3", tell("a", "5", "n1")},
			{"assumed late", "n2 n3", assume("a", "n1")},
			{"bound", "n2 n3", confirm("a", "5")},
			{"gone", "n1 n2 n3", gone},
		},
		"added twice": {
			{"stored", "n2 n3", tell("a", "5", "n1")},
			{"again", "n2 n3", tell("a", "5", "n1")},
			{"gone", "n1 n2 n3", gone},
			{"gone again", "n1 n2 n3", gone},
		},
		"allocated elsewhere than assumed": {
			{"created", "n1 n2 n3", tell("a", "4", "")},
			{"assumed", "n2 n3", assume("a", "n1")},
			{"stored, by another scheduler", "n1 n3", tell("a", "5", "n2")},
			{"not bound", "n1 n3", forget("a")},
			{"gone", "n1 n2 n3", gone},
		},
		"allocated elsewhere later": {
			{"stored", "n2 n3", tell("a", "5", "n1")},
			{"stored anew", "n1 n2", tell("a", "6", "n3")},
			{"gone", "n1 n2 n3", gone},
		},
		"created anew, without an event of the end": {
			{"stored", "n2 n3", tell("a", "5", "n1")},
			{"another of the same name", "n1 n2 n3", tell("b", "6", "")},
			{"assumed", "n1 n3", assume("b", "n2")},
			{"the first is not bound", "n1 n3", forget("a")},
			{"stored", "n1 n3", tell("b", "7", "n2")},
			{"gone", "n1 n2 n3", gone},
		},
		"created anew while the first is bound": {
			{"assumed", "n2 n3", assume("a", "n1")},
			{"another of the same name", "n2", tell("b", "6", "n3")},
			{"bound late", "n1 n2", confirm("a", "5")},
		},
		"two claims with one device": {
			{"assumed", "n2 n3", assume("a", "n1")},
			{"assumed for another", "n2 n3", assume("b", "n1")},
			{"one is not bound", "n2 n3", forget("a")},
			{"nor the other", "n1 n2 n3", forget("b")},
		},
		"an old version after it was bound": {
			{"assumed", "n2 n3", assume("a", "n1")},
			{"the version before", "n2 n3", tell("a", "4", "")},
			{"bound", "n2 n3", confirm("a", "9")},
			{"another old one", "n2 n3", tell("a", "8", "")},
			{"deallocated", "n1 n2 n3", tell("a", "10", "")},
		},
	} {
		b := newBed(t, "")
		b.addNodes("t4", "n1", "n2", "n3")
		for _, s := range steps {
			s.do(b)
			if _, got := b.preFilter(b.pod("next", "gpu")); got != s.want {
				t.Errorf("%s: %s: %s is free, want %s", name, s.what, got, s.want)
			}
		}
	}
}

// deviceOf is the whole GPU of a node with one.
func deviceOf(b *bed, node string) []resourceapi.DeviceRequestAllocationResult {
	b.t.Helper()
	for _, s := range slicesOf(b.t, "t4", node) {
		for _, d := range s.Spec.Devices {
			if *d.Attributes["type"].StringValue == "gpu" {
				return []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: s.Spec.Pool.Name, Device: d.Name}}
			}
		}
	}
	b.t.Fatalf("node %s has no whole GPU", node)
	return nil
}

// TestWatch_Relists: the watch of claims breaks, and what happened meanwhile is only in the next list: a claim is gone, one has
// another device, and one was created anew under the name of another.
func TestWatch_Relists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		device := func(name string) resourceapi.AllocationResult {
			return resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: "n1", Device: name}},
			}}
		}
		claim := func(name string, uid types.UID, has string) *resourceapi.ResourceClaim {
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
			c.Status.Allocation = new(device(has))
			return c
		}
		client := fake.NewClientset(claim("ends", "a", "1"), claim("moves", "b", "2"), claim("again", "c", "3"), claim("stays", "d", "4"))
		broken, again := watch.NewFake(), make(chan struct{})
		opened := 0
		client.PrependWatchReactor("resourceclaims", func(core.Action) (bool, watch.Interface, error) {
			if opened++; opened == 1 {
				return true, broken, nil
			}
			close(again)
			return true, watch.NewFake(), nil
		})
		all := newInformers(client)
		c, err := newCluster(t.Context(), all, client.Discovery())
		must(t, err)
		defer all.Shutdown()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		all.Start(ctx.Done())
		all.WaitForCacheSync(ctx.Done())
		allocated := func() map[types.UID]string {
			synctest.Wait()
			c.mutex.Lock()
			defer c.mutex.Unlock()
			found := map[types.UID]string{}
			for uid, s := range c.allocated {
				found[uid] = s.current()[0].Device
			}
			return found
		}
		if diff := cmp.Diff(map[types.UID]string{"a": "1", "b": "2", "c": "3", "d": "4"}, allocated()); diff != "" {
			t.Errorf("the first list (-want +got):\n%s", diff)
		}
		resources := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
		for _, err := range []error{
			client.Tracker().Delete(resources, "default", "ends"),
			client.Tracker().Update(resources, claim("moves", "b", "5"), "default"),
			client.Tracker().Delete(resources, "default", "again"),
			client.Tracker().Create(resources, claim("again", "e", "6"), "default"),
		} {
			must(t, err)
		}
		if diff := cmp.Diff(map[types.UID]string{"a": "1", "b": "2", "c": "3", "d": "4"}, allocated()); diff != "" {
			t.Errorf("nobody was told (-want +got):\n%s", diff)
		}
		broken.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		<-again // it lists before it watches
		if diff := cmp.Diff(map[types.UID]string{"b": "5", "e": "6", "d": "4"}, allocated()); diff != "" {
			t.Errorf("the next list (-want +got):\n%s", diff)
		}
		if len(c.users) != 1 || len(c.users[poolKey{driver, "n1"}]) != 3 {
			t.Errorf("users of pools: %v", c.users)
		}
	})
}
