// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/e2e/history"
)

// API is the API server: the claims that are allocated devices of a driver on a node, and the devices that it publishes.
type API struct {
	Kube         kubernetes.Interface
	Driver, Node string
}

// Run reports until ctx ends.
func (a API) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var listed sync.WaitGroup
	listed.Add(1)
	slicesReady := sync.OnceFunc(listed.Done)
	devices := published{api: a, recorder: r, seen: map[string]history.Fact{}, slices: map[string]*resourceapi.ResourceSlice{}}
	ofSlices := follower{
		recorder: r, list: a.slices, watch: a.watchSlices,
		changed: func(o runtime.Object) { devices.changed(o.(*resourceapi.ResourceSlice)) },
		deleted: func(o runtime.Object) { devices.deleted(o.(*resourceapi.ResourceSlice)) },
	}
	claims := newClaimStates(r, a)
	ofClaims := follower{
		recorder: r, list: a.claims, watch: a.watchClaims, changed: claims.changed, deleted: claims.deleted,
	}
	ofNode := Pods{Kube: a.Kube, Node: a.Node}
	ofPods := follower{
		recorder: r, list: ofNode.list, watch: ofNode.watch, changed: claims.used, deleted: func(runtime.Object) {},
	}
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() {
		defer slicesReady()
		defer cancel()
		errs[0] = ofSlices.run(ctx, slicesReady)
	})
	all.Go(func() {
		defer cancel()
		listed.Wait()
		errs[1] = ofClaims.run(ctx, ready)
	})
	all.Go(func() {
		defer cancel()
		errs[2] = ofPods.run(ctx, func() {})
	})
	all.Wait()
	return errors.Join(errs...)
}

// unqualified is the name of a capacity without its domain, which one side may have and the other not.
func unqualified(name resourceapi.QualifiedName) string {
	_, id, found := strings.Cut(string(name), "/")
	if !found {
		return string(name)
	}
	return id
}

// claimStates reports claims whose state has changed.
type claimStates struct {
	recorder *history.Recorder
	api      API

	mu    sync.Mutex
	known map[string]history.Claim
	// others are the claims that something else than pods has reserved, such as a PodGroup, which does not say which its pods are
	// (KEP-5729), and users the pods of the node that use claims. Both are by namespace and name of the claim.
	others map[string]*resourceapi.ResourceClaim
	users  map[string][]string
}

func newClaimStates(r *history.Recorder, a API) *claimStates {
	return &claimStates{recorder: r, api: a, known: map[string]history.Claim{}, others: map[string]*resourceapi.ResourceClaim{},
		users: map[string][]string{}}
}

func (s *claimStates) changed(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(o.(*resourceapi.ResourceClaim))
}

// used notes the claims of a pod of the node.
func (s *claimStates) used(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := o.(*corev1.Pod)
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // not generated yet, or not needed
		}
		key := pod.Namespace + "/" + *name
		if slices.Contains(s.users[key], string(pod.UID)) {
			continue
		}
		s.users[key] = append(s.users[key], string(pod.UID))
		if claim := s.others[key]; claim != nil {
			s.report(claim)
		}
	}
}

// report reports a claim if it is not known as it is.
func (s *claimStates) report(claim *resourceapi.ResourceClaim) {
	fact, key := s.api.claim(claim), claim.Namespace+"/"+claim.Name
	if slices.ContainsFunc(claim.Status.ReservedFor, isNoPod) {
		s.others[key] = claim
		fact.Pods = append(fact.Pods, s.users[key]...)
		slices.Sort(fact.Pods)
	} else {
		delete(s.others, key)
	}
	last, known := s.known[fact.UID]
	if !known && fact.State != history.ClaimAllocated || reflect.DeepEqual(last, fact) {
		return
	}
	s.known[fact.UID] = fact
	s.recorder.Add(fact)
}

func (s *claimStates) deleted(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim := o.(*resourceapi.ResourceClaim)
	fact, key := s.api.claim(claim), claim.Namespace+"/"+claim.Name
	delete(s.others, key)
	delete(s.users, key)
	if _, known := s.known[fact.UID]; !known {
		return
	}
	delete(s.known, fact.UID)
	fact.State, fact.Deleting, fact.Held = history.ClaimDeleted, false, false
	s.recorder.Add(fact)
}

// claim is a claim as far as it concerns the driver on the node.
func (a API) claim(c *resourceapi.ResourceClaim) history.Claim {
	fact := history.Claim{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, State: history.ClaimFree}
	if c.Status.Allocation != nil {
		for _, d := range c.Status.Allocation.Devices.Results {
			if d.Driver == a.Driver && d.Pool == a.Node {
				fact.Devices = append(fact.Devices, allocatedOf(d))
			}
		}
	}
	if len(fact.Devices) > 0 {
		fact.State = history.ClaimAllocated
	}
	for _, p := range c.Status.ReservedFor {
		if !isNoPod(p) {
			fact.Pods = append(fact.Pods, string(p.UID))
		}
	}
	slices.Sort(fact.Pods)
	fact.Deleting = c.DeletionTimestamp != nil
	fact.Held = fact.Deleting && isHeld(c)
	return fact
}

// ownFinalizers are those of Kubernetes itself, which takes them away once a claim is in use no longer. Cleave has none on claims.
var ownFinalizers = []string{resourceapi.Finalizer, metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}

// isHeld reports whether the finalizer of another controller keeps a claim, or something else than a pod, of which nothing is recorded.
func isHeld(c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(c.Finalizers, func(name string) bool { return !slices.Contains(ownFinalizers, name) }) ||
		slices.ContainsFunc(c.Status.ReservedFor, isNoPod)
}

func isNoPod(c resourceapi.ResourceClaimConsumerReference) bool { return c.Resource != "pods" }

func allocatedOf(d resourceapi.DeviceRequestAllocationResult) history.Allocated {
	a := history.Allocated{Request: d.Request, Device: d.Device, Admin: d.AdminAccess != nil && *d.AdminAccess}
	for name, q := range d.ConsumedCapacity {
		if a.Consumed == nil {
			a.Consumed = map[string]int64{}
		}
		a.Consumed[unqualified(name)] = q.Value()
	}
	return a
}

func (a API) ofNode() string {
	return fields.Set{"spec.driver": a.Driver, "spec.nodeName": a.Node}.String()
}

func describe(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("record %s: %w", what, err)
}
