// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// after is the answer of the plugin's function for an event to a pod that waits.
func (b *bed) after(pod *corev1.Pod, resource framework.EventResource, action framework.ActionType, before, after any) string {
	b.t.Helper()
	events, err := b.plugin.EventsToRegister(b.t.Context())
	must(b.t, err)
	for _, e := range events {
		if e.Event.Resource != resource || e.Event.ActionType&action == 0 {
			continue
		}
		if e.QueueingHintFn == nil {
			return framework.Queue.String()
		}
		hint, err := e.QueueingHintFn(klog.FromContext(b.t.Context()), pod, before, after)
		must(b.t, err)
		return hint.String()
	}
	return "not registered"
}

// waits checks that a pod has no room.
func (b *bed) waits(pod *corev1.Pod) {
	b.t.Helper()
	if _, got := b.preFilter(pod); got != "UnschedulableAndUnresolvable" {
		b.t.Fatalf("pod %s: %s, want it to wait", pod.Name, got)
	}
}

// TestEvents_Claims: of the events of claims, those wake a pod that give it room, and those of its own claim. They are applied
// before they are answered: the informer's handler comes later.
func TestEvents_Claims(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1", "n2")
	for i := range 16 {
		name := fmt.Sprint("pod-", i)
		b.place(b.pod(name, "gpu"))
		b.store(name)
	}
	two, one := b.pod("two", "gpu", count(2)), b.pod("one", "gpu")
	b.waits(two)
	b.waits(one)
	claim := func(name string, allocated bool) *resourceapi.ResourceClaim {
		c := b.claims[name].DeepCopy()
		if !allocated {
			c.Status.Allocation = nil
		}
		return c
	}
	fresh, taken := claim("pod-0", false), claim("pod-0", true)
	reserved := taken.DeepCopy()
	reserved.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Name: "x"}}
	answers := func(pods []*corev1.Pod, action framework.ActionType, before, after any) []string {
		var all []string
		for _, p := range pods {
			all = append(all, b.after(p, framework.ResourceClaim, action, before, after))
		}
		return all
	}
	both := []*corev1.Pod{two, one}
	expect := func(what string, want []string, action framework.ActionType, before, after any) {
		t.Helper()
		if diff := cmp.Diff(want, answers(both, action, before, after)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	expect("another claim appears", []string{"QueueSkip", "QueueSkip"}, framework.Add, nil, fresh)
	expect("it gets devices", []string{"QueueSkip", "QueueSkip"}, framework.Update, fresh, taken)
	expect("it is reserved", []string{"QueueSkip", "QueueSkip"}, framework.Update, taken, reserved)
	expect("a claim without devices goes", []string{"QueueSkip", "QueueSkip"}, framework.Delete, fresh, nil)
	expect("their own claim changes", []string{"Queue", "QueueSkip"}, framework.Update, b.claims["two"], b.claims["two"])
	expect("nobody knows what it was", []string{"Queue", "Queue"}, framework.Delete, cache.DeletedFinalStateUnknown{Key: "default/x"}, nil)

	b.storeClaim(fresh) // no event
	expect("one GPU is free", []string{"QueueSkip", "Queue"}, framework.Update, taken, fresh)
	last := claim("pod-8", true) // on the other node
	must(t, b.claimStore().Delete(last))
	expect("one is free on each node", []string{"QueueSkip", "Queue"}, framework.Delete, last, nil)
	next := claim("pod-1", false)
	b.storeClaim(next)
	expect("two are free on one node", []string{"Queue", "Queue"}, framework.Update, claim("pod-1", true), next)
	if _, got := b.preFilter(two); got != "n1" {
		t.Errorf("two GPUs: %s", got)
	}
	if got := b.after(two, framework.ResourceClaim, framework.Update, taken, fresh); got != "Queue" {
		t.Errorf("a pod of which nothing is known: %s", got)
	}
}

func TestEvents_Nodes(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1", "n2")
	taint := []corev1.Taint{{Key: "upkeep", Effect: corev1.TaintEffectNoSchedule}}
	for _, n := range b.nodes {
		n.Node().Spec.Taints = taint
	}
	b.nodes[0].Node().Spec.Taints = nil
	b.place(b.pod("first", "gpu"))
	b.store("first")
	pod := b.pod("second", "gpu")
	b.waits(pod)
	for _, tt := range []struct {
		node, want string
		action     framework.ActionType
	}{
		{"n1", "QueueSkip", framework.UpdateNodeLabel},
		{"n2", "Queue", framework.UpdateNodeTaint},
		{"n2", "Queue", framework.Add},
		{"without GPUs", "QueueSkip", framework.Add},
		{"n2", "not registered", framework.UpdateNodeCondition},
		{"n2", "not registered", framework.Delete},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tt.node}}
		if got := b.after(pod, framework.Node, tt.action, node, node); got != tt.want {
			t.Errorf("%v of %s: %s, want %s", tt.action, tt.node, got, tt.want)
		}
	}
	extended := extended("gpu", 2)
	b.waits(extended)
	if got := b.after(extended, framework.Node, framework.UpdateNodeAllocatable, nil, b.nodes[0].Node()); got != "Queue" {
		t.Errorf("extended resources, which a device plugin may have there now: %s", got)
	}
	for _, action := range []framework.ActionType{framework.UpdatePodToleration, framework.UpdatePodGeneratedResourceClaim} {
		if got := b.after(pod, framework.TargetPod, action, pod, pod); got != "Queue" {
			t.Errorf("%v of the pod: %s", action, got)
		}
	}
}

// TestEvents_Pods: pods that end give room when their claims do; one that does not get its devices after all has no claim that
// tells.
func TestEvents_Pods(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	first := b.pod("first", "gpu")
	_, state := b.place(first)
	pod := b.pod("second", "gpu")
	b.waits(pod)
	if got := b.after(pod, framework.AssignedPod, framework.Delete, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "other"}}, nil); got != "QueueSkip" {
		t.Errorf("another pod is gone: %s", got)
	}
	b.plugin.Unreserve(t.Context(), state, first, "n1")
	for range 2 {
		if got := b.after(pod, framework.AssignedPod, framework.Delete, first, nil); got != "Queue" {
			t.Errorf("its devices are free again: %s", got)
		}
	}
}

// TestEvents_Slices: a node that publishes more, or a rule that is gone, wakes pods that fit there, and no others. The
// informers' handlers come later.
func TestEvents_Slices(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	b.place(b.pod("first", "gpu"))
	b.store("first")
	other := slicesOf(t, "t4", "n2")
	rule := &resourceapi.DeviceTaintRule{}
	rule.Name = "upkeep"
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: new("n2")}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "upkeep", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	b.addRule(rule)
	b.publish(other...)
	b.addNode("n2")
	pod := b.pod("second", "gpu")
	b.waits(pod)
	index, rules := b.informers.Resource().V1().ResourceSlices().Informer().GetIndexer(), b.informers.Resource().V1().DeviceTaintRules().Informer().GetIndexer()
	full := slicesOf(t, "t4", "n1")
	expect := func(what, want string, action framework.ActionType, before, after any) {
		t.Helper()
		if got := b.after(pod, framework.ResourceSlice, action, before, after); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	must(t, index.Update(full[0]))
	expect("a full node publishes again", "QueueSkip", framework.Update, full[0], full[0])
	must(t, rules.Delete(rule))
	expect("the rule is gone", "Queue", framework.Update, other[0], other[0])
	if _, got := b.preFilter(pod); got != "n2" {
		t.Errorf("the next attempt: %s", got)
	}
	b.withdraw(other...)
	b.waits(pod)
	for i, s := range slices.Backward(other) {
		must(t, index.Add(s))
		want := "QueueSkip"
		if i == 0 {
			want = "Queue"
		}
		expect(fmt.Sprint("slice ", i, " of a pool"), want, framework.Add, nil, s)
	}
	b.waits(b.pod("third", "gpu", count(2)))
	elsewhere := other[0].DeepCopy()
	elsewhere.Spec.NodeName = nil
	expect("a slice that is not of one node", "Queue", framework.Add, nil, elsewhere)
	expect("a deleted slice", "Queue", framework.Delete, cache.DeletedFinalStateUnknown{Key: other[0].Name, Obj: other[0]}, nil)
}

// TestPreFilter_FollowsBeforeFull: the event that queued the pod came before the informer's handler.
func TestPreFilter_FollowsBeforeFull(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	b.place(b.pod("first", "gpu"))
	b.store("first")
	gone := b.claims["first"]
	must(t, b.claimStore().Delete(gone))
	if _, got := b.preFilter(b.pod("second", "gpu")); got != "n1" {
		t.Errorf("got %s, want the node whose GPU is free", got)
	}
	b.place(b.pod("second", "gpu"))
	b.store("second")
	b.waits(b.pod("third", "gpu"))
	for _, s := range slicesOf(t, "t4", "n2") {
		must(t, b.informers.Resource().V1().ResourceSlices().Informer().GetIndexer().Add(s))
	}
	b.addNode("n2")
	if _, got := b.preFilter(b.pod("third", "gpu")); got != "n2" {
		t.Errorf("got %s, want the node that has published", got)
	}
}

// TestEvents_ConsumerLeaves: a claim has a pod that may be evicted, and one that may not, which ends. The claim keeps its devices, and a pod
// that waits may have them now.
func TestEvents_ConsumerLeaves(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	b.run("n1", "low", "gpu", 0)
	important := b.ofPriority(2000, "important", "gpu")
	b.host("n1", important)
	consumers := func(all ...string) *resourceapi.ResourceClaim {
		claim := b.claims["low"].DeepCopy()
		claim.Status.ReservedFor = nil
		for _, name := range all {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor,
				resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)})
		}
		b.storeClaim(claim)
		return claim
	}
	both := consumers("low", "important")
	urgent, patient := b.urgentPod("gpu"), b.ofPriority(1000, "patient", "gpu")
	patient.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	expect := func(what string, want []string, before, after *resourceapi.ResourceClaim) {
		t.Helper()
		var got []string
		for _, pod := range []*corev1.Pod{urgent, patient} {
			got = append(got, b.after(pod, framework.ResourceClaim, framework.Update, before, after))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	b.waits(urgent)
	b.waits(patient)
	expect("one more uses it", []string{"QueueSkip", "QueueSkip"}, consumers("low"), both)
	b.storeClaim(both)
	expect("it is as it was", []string{"QueueSkip", "QueueSkip"}, both, both)
	if got := b.after(urgent, framework.Node, framework.UpdateNodeTaint, nil, b.nodes[0].Node()); got != "QueueSkip" {
		t.Errorf("a node without room, which is known then: %s", got)
	}
	must(t, b.informers.Core().V1().Pods().Informer().GetIndexer().Delete(important))
	expect("one does not use it anymore", []string{"Queue", "QueueSkip"}, both, consumers("low"))
}

// TestWake_Unnarrowed: the end of a hold wakes pods whose last attempt saw all nodes, as none of the best would do, or as they want whatever a
// node has and the hold kept it from them, unless its pod has the devices. It does not wake the pod for which the API server refused an eviction.
func TestWake_Unnarrowed(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	urgent, other := b.urgentPod("gpu"), b.ofPriority(1000, "other", "gpu")
	b.host("", other)
	whole := []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}
	all := b.ofPriority(1000, "all", "gpu", func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	})
	b.host("", all)
	one := b.ofPriority(0, "one", "gpu")
	refuse := func() {
		b.plugin.shared.Hold(urgent, "n1", whole, nil)
		state, _ := b.preFilter(all)
		b.plugin.shared.Held(state, all, nil)
	}
	refuse()
	for range 2 {
		state, _ := b.preFilter(one)
		b.plugin.shared.Held(state, one, nil)
		b.plugin.PostFilter(t.Context(), state, one, nil)
	}
	b.plugin.shared.Hold(all, "n2", nil, nil)
	bound := &fakeState{data: map[framework.StateKey]framework.StateData{heldKey: &hold{pod: urgent, node: "n1"}}}
	for _, step := range []struct {
		does string
		do   func()
		want []string
	}{
		{"an eviction for it is refused", func() { b.plugin.shared.Denied(all.UID, "n2") }, []string{"default/one"}},
		{"another hold ends", func() {
			b.plugin.shared.Hold(other, "n2", whole, nil)
			b.plugin.shared.Drop(other.UID)
		}, []string{"default/one"}},
		{"its pod is bound there", func() {
			b.plugin.cluster.holds.bind(urgent.UID)
			b.plugin.PostBind(t.Context(), bound, urgent, "n1")
		}, []string{"default/one"}},
		{"its binding fails, and the claim has the devices", func() {
			b.plugin.cluster.holds.bind(urgent.UID)
			b.plugin.Unreserve(t.Context(), bound, urgent, "n1")
		}, []string{"default/one"}},
		{"its pod is bound elsewhere", func() {
			b.plugin.cluster.holds.bind(urgent.UID)
			b.plugin.PostBind(t.Context(), bound, urgent, "n2")
		}, []string{"default/all", "default/one"}},
		{"the hold ends", func() { b.plugin.shared.Drop(urgent.UID) }, []string{"default/all", "default/one"}},
		{"the hold ends after the pod", func() {
			b.plugin.cluster.mutex.Lock()
			b.plugin.cluster.holds.podChanged(all, nil)
			b.plugin.cluster.mutex.Unlock()
			b.plugin.shared.Drop(urgent.UID)
		}, []string{"default/one"}},
	} {
		refuse()
		b.activated = nil
		step.do()
		if diff := cmp.Diff(step.want, b.activated); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.does, diff)
		}
	}
}
