// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
	"k8s.io/kube-scheduler/framework"
)

// GatherAllocatedState is what claims have, and what is under way.
func (f fakeClaims) GatherAllocatedState() (*schedulerapi.AllocatedState, error) {
	if f.bed.refuseGather > 0 {
		f.bed.refuseGather--
		return nil, errors.New("conflicting concurrent modification")
	}
	all := &schedulerapi.AllocatedState{
		AllocatedDevices: sets.New[schedulerapi.DeviceID](), AggregatedCapacity: schedulerapi.NewConsumedCapacityCollection(),
	}
	add := func(a *resourceapi.AllocationResult) {
		if a == nil {
			return
		}
		for _, r := range a.Devices.Results {
			id := schedulerapi.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				all.AllocatedDevices.Insert(id)
			} else {
				all.AggregatedCapacity.Insert(schedulerapi.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	for _, c := range f.bed.claims {
		add(c.Status.Allocation)
	}
	for _, a := range f.bed.pending {
		add(a)
	}
	return all, nil
}

// extendedPodOf is a pod that asks for an extended resource, with a name.
func extendedPodOf(name, resourceName string, n int64) *corev1.Pod {
	p := extended(resourceName, n)
	p.Name, p.Namespace, p.UID = name, "default", types.UID(name)
	return p
}

// extendedBed is the plugin with pods that ask for extended resources.
type extendedBed struct{ *bed }

// reserveExtended schedules a pod with an extended resource up to Reserve. The claim is under a UID that nobody knows.
func (b extendedBed) reserveExtended(pod *corev1.Pod, node string) *fakeState {
	b.t.Helper()
	state, nodes := b.preFilter(pod)
	if nodes == "UnschedulableAndUnresolvable" {
		b.t.Fatalf("pod %s: %s", pod.Name, nodes)
	}
	spec, _ := b.plugin.asks.extended(pod, b.nodes)
	b.pending[types.UID("hidden-"+pod.Name)] = b.allocate(node, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Spec: *spec})
	if status := b.plugin.Reserve(b.t.Context(), state, pod, node); !status.IsSuccess() {
		b.t.Fatal(status)
	}
	return state
}

// extendedClaim is what DynamicResources creates in PreBind, without its allocation.
func extendedClaim(pod *corev1.Pod, version string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name + "-extended-resources", Namespace: pod.Namespace, UID: "claim-of-" + pod.UID, ResourceVersion: version,
		Annotations:     map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
	}}
}

// stored tells of a claim as the informer has it.
func (b extendedBed) stored(claim *resourceapi.ResourceClaim) {
	b.t.Helper()
	b.claims[claim.Name] = claim
	b.storeClaim(claim)
	b.plugin.cluster.follow(claim)
}

// TestReserve_ExtendedResource: what a pod gets for extended resources is gone from Reserve on, although its claim is created
// only when it is bound.
func TestReserve_ExtendedResource(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(b extendedBed, state *fakeState, pod *corev1.Pod)
		want string // where the next pod may go
	}{
		"reserved": {func(extendedBed, *fakeState, *corev1.Pod) {}, "n2"},
		"unreserved": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			clear(b.pending)
			b.plugin.Unreserve(b.t.Context(), state, pod, "n1")
		}, "n1 n2"},
		"claim without devices": {func(b extendedBed, _ *fakeState, pod *corev1.Pod) { b.stored(extendedClaim(pod, "5")) }, "n2"},
		"claim with devices":    {func(b extendedBed, _ *fakeState, pod *corev1.Pod) { b.allocated(pod, "6") }, "n2"},
		"claim with devices, then Unreserve": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			b.allocated(pod, "6")
			b.plugin.Unreserve(b.t.Context(), state, pod, "n1")
		}, "n2"},
		"bound, claim gone": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			b.allocated(pod, "6")
			b.remove(pod.Name + "-extended-resources")
			b.plugin.PostBind(b.t.Context(), state, pod, "n1")
		}, "n1 n2"},
		"bound, without an event of the claim": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			clear(b.pending)
			b.plugin.PostBind(b.t.Context(), state, pod, "n1")
		}, "n1 n2"},
		"bound, the claim's devices not told yet": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			b.bound(state, pod)
		}, "n2"},
		"bound, deallocated before anybody told": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			b.bound(state, pod)
			b.stored(extendedClaim(pod, "9"))
		}, "n1 n2"},
		"bound, deleted before anybody told": {func(b extendedBed, state *fakeState, pod *corev1.Pod) {
			b.bound(state, pod)
			b.remove(pod.Name + "-extended-resources")
		}, "n1 n2"},
		"claim made anew before it has devices": {func(b extendedBed, _ *fakeState, pod *corev1.Pod) {
			b.stored(extendedClaim(pod, "5"))
			again := extendedClaim(pod, "7")
			again.UID = "another"
			clear(b.pending)
			b.stored(again)
		}, "n1 n2"},
	} {
		b := extendedBed{newBed(t, "")}
		b.addNodes("t4", "n1", "n2")
		first := extendedPodOf("first", "gpu", 1)
		state := b.reserveExtended(first, "n1")
		tt.end(b, state, first)
		if _, got := b.preFilter(extendedPodOf("second", "gpu", 1)); got != tt.want {
			t.Errorf("%s: the next pod sees %s, want %s", name, got, tt.want)
		}
		b.plugin.Unreserve(t.Context(), state, first, "n1")
		if claim := first.Name + "-extended-resources"; b.claims[claim] != nil {
			b.remove(claim)
		}
		if c := b.plugin.cluster; len(c.allocated)+len(c.users)+len(c.extended) > 0 {
			t.Errorf("%s: %v and %v are left", name, c.allocated, c.extended)
		}
	}
}

// TestPreFilter_OwnExtendedClaim: a pod whose own claim has the last GPU, as the scheduler ended before it was bound, is left to
// DynamicResources, which deletes the claim.
func TestPreFilter_OwnExtendedClaim(t *testing.T) {
	b := extendedBed{newBed(t, "")}
	b.addNodes("t4", "n1")
	first, second := extendedPodOf("first", "gpu", 1), extendedPodOf("second", "gpu", 1)
	b.reserveExtended(first, "n1")
	b.allocated(first, "6")
	if _, got := b.preFilter(second); got != "UnschedulableAndUnresolvable" {
		t.Errorf("another pod sees %s, want that it has to wait", got)
	}
	if _, got := b.preFilter(first); got != "Skip" {
		t.Errorf("the pod itself sees %s, want that it is left alone", got)
	}
}

// allocated tells of the claim for a pod's extended resources with its devices.
func (b extendedBed) allocated(pod *corev1.Pod, version string) {
	b.t.Helper()
	claim := extendedClaim(pod, version)
	claim.Status.Allocation = b.pending["hidden-"+pod.UID]
	delete(b.pending, "hidden-"+pod.UID)
	b.stored(claim)
}

// bound is PostBind with a claim of which the informer has the first version, and the tracker the second.
func (b extendedBed) bound(state *fakeState, pod *corev1.Pod) {
	b.t.Helper()
	b.stored(extendedClaim(pod, "5"))
	assumed := extendedClaim(pod, "6")
	assumed.Status.Allocation = b.pending["hidden-"+pod.UID]
	delete(b.pending, "hidden-"+pod.UID)
	b.claims[assumed.Name] = assumed
	b.plugin.PostBind(b.t.Context(), state, pod, "n1")
}

// TestReserve_ExtendedShares: shares count by what they consume, and apart from those of the pod's own claim.
func TestReserve_ExtendedShares(t *testing.T) {
	b := extendedBed{newBed(t, "")}
	b.addNodes("t4", "n1")
	device := func() (uses int) {
		for i := range b.plugin.cluster.views["n1"][0].node.Model.Devices {
			uses += b.plugin.cluster.views["n1"][0].state.Uses(i)
		}
		return uses
	}
	own := b.pod("own", "mps")
	b.place(own)
	b.store("own")
	pod := extendedPodOf("first", "mps", 1)
	state := b.reserveExtended(pod, "n1")
	if got := device(); got != 2 {
		t.Errorf("%d shares are allocated, want the pod's and another's", got)
	}
	left := 0
	for ; ; left++ {
		another := b.pod("another", "mps")
		b.claims["another"].UID = types.UID(rune('a' + left))
		if _, got := b.preFilter(another); got != "n1" {
			break
		}
		b.place(another)
	}
	if left != 8 {
		t.Errorf("there was room for %d of 10 shares, want 8", left)
	}
	b.plugin.Unreserve(t.Context(), state, pod, "n1")
	if got := device(); got != 9 {
		t.Errorf("%d shares are allocated without the pod's, want 9", got)
	}
}

// TestReserve_ExtendedAndClaim: a pod has both. What its claim has is not counted twice.
func TestReserve_ExtendedAndClaim(t *testing.T) {
	b := extendedBed{newBed(t, "")}
	b.addNodes("hgx-h100", "n1", "n2")
	pod := b.pod("both", "gpu")
	pod.Spec.Containers = extended("gpu", 2).Spec.Containers
	claim := b.claims["both"]
	state, _ := b.preFilter(pod)
	b.pending[claim.UID] = b.allocate("n1", claim)
	spec, _ := b.plugin.asks.extended(pod, b.nodes)
	b.plugin.cluster.assume(claim.UID, b.pending[claim.UID].Devices.Results) // so that allocate takes others
	b.pending["hidden-both"] = b.allocate("n1", &resourceapi.ResourceClaim{Spec: *spec})
	b.plugin.Reserve(t.Context(), state, pod, "n1")
	v := b.plugin.cluster.views["n1"][0]
	if got := v.state.Untouched(); got != 5 {
		t.Errorf("%d GPUs are whole, want 5", got)
	}
	for i := range v.node.Model.Devices {
		if n := v.state.Uses(i); n > 1 {
			t.Errorf("device %d is counted %d times", i, n)
		}
	}
	b.plugin.Unreserve(t.Context(), state, pod, "n1")
	if got := v.state.Untouched(); got != 8 {
		t.Errorf("%d GPUs are whole after all, want 8", got)
	}
}

// TestReserve_GatherRefused: the scheduler refuses to say what is allocated while that changes. A few times it is asked again.
func TestReserve_GatherRefused(t *testing.T) {
	for refusals, want := range map[int]string{0: "n2", gatherAttempts - 1: "n2", gatherAttempts: "n1 n2"} {
		b := extendedBed{newBed(t, "")}
		b.addNodes("t4", "n1", "n2")
		b.refuseGather = refusals
		b.reserveExtended(extendedPodOf("first", "gpu", 1), "n1")
		if _, got := b.preFilter(extendedPodOf("second", "gpu", 1)); got != want {
			t.Errorf("%d refusals: the next pod sees %s, want %s", refusals, got, want)
		}
	}
}

var _ framework.ResourceClaimTracker = fakeClaims{}
