// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// TestPreFilter_Busy: node A has CPU and no GPU, node B a GPU and no CPU. Pods may be evicted on B, so the pod is not refused
// on all nodes, and it does not fall back.
func TestPreFilter_Busy(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "a", "b", "c")
	b.place(b.pod("first", "gpu"))
	b.store("first")
	b.nodes[1].(*fakeNode).usedCPU = 8000
	b.nodes[2].(*fakeNode).usedCPU = 8000
	b.nodes[2].Node().Spec.Unschedulable = true
	pod := b.pod("second", "gpu")
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}
	state, got := b.preFilter(pod)
	if got != "b" {
		t.Fatalf("got %s, want the node whose pods may be evicted", got)
	}
	if _, status := b.plugin.PostFilter(t.Context(), state, pod, nil); status.Code() != framework.Unschedulable || len(b.activated) > 0 {
		t.Errorf("PostFilter answers %v and activates %v, want other plugins to evict", status, b.activated)
	}
	b.nodes[1].(*fakeNode).usedCPU = 0
	if _, got := b.preFilter(pod); got != "b" {
		t.Errorf("with CPU: %s", got)
	}
	b.nodes[1].(*fakeNode).usedCPU = 8000
	b.place(b.pod("third", "gpu", func(*resourceapi.ResourceClaimSpec) {})) // without CPU
	_, status := b.plugin.PreFilter(t.Context(), &fakeState{data: map[framework.StateKey]framework.StateData{}}, pod, b.nodes)
	want := "none of 2 nodes has room on its GPUs for the pod's claims, and 1 are cordoned, tainted, too small, not selected by the pod or out of reach of its volumes"
	if status.Message() != want {
		t.Errorf("no GPU is free:\n got %q\nwant %q", status.Message(), want)
	}
}

// TestPreFilter_HardNode: on a node with room for 21 of 24, every subset would have to be tried. Other nodes count
// nevertheless; where there are none, the allocator decides.
func TestPreFilter_HardNode(t *testing.T) {
	b := newBed(t, `{"candidates": 8}`)
	b.addNodes("hgx-h100", "n1", "n2")
	b.place(b.pod("first", "gpu"))
	b.store("first")
	large := func() *corev1.Pod { return b.pod("large", "2g.20gb", count(24)) }
	if _, got := b.preFilter(large()); got != "n2" {
		t.Errorf("got %s, want the empty node", got)
	}
	b.nodes[1].Node().Spec.Unschedulable = true
	state, got := b.preFilter(large())
	if got != "Skip" || read(state).outcome != passedSearch {
		t.Errorf("got %s, outcome %s, want the allocator to decide", got, read(state).outcome)
	}
}

// TestPreScore: the best of the nodes that are left has the highest score, and equal nodes have the same.
func TestPreScore(t *testing.T) {
	b := newBed(t, "")
	costs := map[string]packing.Cost{
		"a": {Lost: 9}, "b": {Lost: 2}, "c": {Lost: 1}, "d": {Lost: 2}, "e": {Lost: 3}, "f": {Lost: 4}, "g": {Lost: 5},
		"h": {Lost: 6}, "i": {Lost: 2, Load: 7},
	}
	for _, n := range append(slices.Sorted(maps.Keys(costs)), "unknown") {
		b.addNode(n)
	}
	state := &fakeState{data: map[framework.StateKey]framework.StateData{}}
	if status := b.plugin.PreScore(t.Context(), state, nil, b.nodes); !status.IsSkip() {
		t.Errorf("nothing was decided: %v, want the scores left out", status)
	}
	state.Write(stateKey, &decision{query: query{strategy: packing.Pack}, costs: costs})
	if status := b.plugin.PreScore(t.Context(), state, nil, b.nodes[3:]); !status.IsSuccess() {
		t.Fatal(status)
	}
	got := map[string]int64{}
	for _, n := range b.nodes[3:] {
		got[n.Node().Name], _ = b.plugin.Score(t.Context(), state, nil, n)
	}
	want := map[string]int64{"d": 100, "i": 100, "e": 75, "f": 50, "g": 25, "h": 0, "unknown": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

// TestPlugin_ClaimGone: what a pod's cycle assumed goes, whatever became of the claim.
func TestPlugin_ClaimGone(t *testing.T) {
	for _, end := range []string{"Unreserve", "PostBind"} {
		for _, after := range []string{"deleted", "made anew", "deallocated", "as it was"} {
			b := newBed(t, "")
			b.addNodes("t4", "n1")
			pod := b.pod("first", "gpu")
			b.claims["first"].ResourceVersion = "5"
			b.store("first")
			_, state := b.place(pod)
			b.waits(b.pod("second", "gpu"))
			claim := b.claims["first"].DeepCopy()
			switch after {
			case "deleted":
				delete(b.claims, "first")
				must(t, b.claimStore().Delete(claim))
			case "made anew":
				claim.UID, claim.ResourceVersion = "another", "7"
				b.claims["first"] = claim
				b.storeClaim(claim)
			case "deallocated": // the informer has merged both
				claim.ResourceVersion = "8"
				b.claims["first"] = claim
				b.storeClaim(claim)
			}
			if end == "PostBind" {
				b.plugin.PostBind(t.Context(), state, pod, "n1")
			} else {
				b.plugin.Unreserve(t.Context(), state, pod, "n1")
			}
			if _, got := b.preFilter(b.pod("second", "gpu")); got != "n1" {
				t.Errorf("%s, claim %s: %s, want the GPU free", end, after, got)
			}
			if c := b.plugin.cluster; len(c.allocated)+len(c.users) > 0 {
				t.Errorf("%s, claim %s: %v is left", end, after, c.allocated)
			}
		}
	}
}

// TestPlugin_Bound: what is assumed counts until the informer has what DynamicResources wrote.
func TestPlugin_Bound(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	pod := b.pod("first", "gpu")
	b.claims["first"].ResourceVersion = "5"
	b.store("first")
	_, state := b.place(pod)
	stored := b.claims["first"].DeepCopy()
	b.claims["first"] = stored.DeepCopy() // in the assume cache
	b.claims["first"].ResourceVersion = "9"
	b.plugin.PostBind(t.Context(), state, pod, "n1")
	b.waits(b.pod("second", "gpu"))
	stored.ResourceVersion = "8"
	b.storeClaim(stored) // with a finalizer
	b.waits(b.pod("second", "gpu"))
	b.store("first")
	b.waits(b.pod("second", "gpu"))
	b.remove("first")
	if _, got := b.preFilter(b.pod("second", "gpu")); got != "n1" {
		t.Errorf("the claim is gone: %s", got)
	}
}

// TestFactory_Profiles: profiles of a scheduler have one view of the cluster.
func TestFactory_Profiles(t *testing.T) {
	b := newBed(t, "")
	create := new(Shared).New
	profile := func(args string) *Plugin {
		p, err := create(t.Context(), &runtime.Unknown{Raw: []byte(args)}, b)
		must(t, err)
		return p.(*Plugin)
	}
	// The informers of this bed have started; another has not.
	b.informers = newInformers(b.client)
	pack, spread := profile(""), profile(`{"strategy": "spread"}`)
	if pack == spread || pack.cluster != spread.cluster || pack.args.Strategy == spread.args.Strategy {
		t.Error("two profiles do not share the cluster alone")
	}
	b.informers = newInformers(b.client)
	if other := profile(""); other.cluster == pack.cluster {
		t.Error("two schedulers share a cluster")
	}
}

// TestCluster_Rules: nodes are read again where a rule's selector says so, and not for its status.
func TestCluster_Rules(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1", "n2")
	b.preFilter(b.pod("pod", "gpu"))
	rule := func(do func(*resourceapi.DeviceTaintRule)) {
		r := &resourceapi.DeviceTaintRule{}
		r.Name = "upkeep"
		r.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{}
		r.Spec.Taint = resourceapi.DeviceTaint{Key: "upkeep", Effect: resourceapi.DeviceTaintEffectNoExecute}
		do(r)
		b.addRule(r)
	}
	stale := func() string {
		text := ""
		for _, n := range []string{"n1", "n2"} {
			if v := b.plugin.cluster.views[n][0]; v.stale {
				text += n
				b.plugin.cluster.refresh(v)
			}
		}
		return text
	}
	for i, tt := range []struct {
		what, want string
		do         func(*resourceapi.DeviceTaintRule)
	}{
		{"all devices", "n1n2", func(*resourceapi.DeviceTaintRule) {}},
		{"a status", "", func(r *resourceapi.DeviceTaintRule) {
			r.Status.Conditions = []metav1.Condition{{Type: "EvictionInProgress"}}
		}},
		{"one pool instead of all", "n1n2", func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Pool = new("n2") }},
		{"another effect there", "n2", func(r *resourceapi.DeviceTaintRule) {
			r.Spec.DeviceSelector.Pool = new("n2")
			r.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNone
		}},
		{"another driver instead", "n2", func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector.Driver = new("nic.example.com") }},
		{"no selector", "", func(r *resourceapi.DeviceTaintRule) { r.Spec.DeviceSelector = nil }},
	} {
		rule(tt.do)
		if got := stale(); got != tt.want {
			t.Errorf("step %d, %s: %q is read again, want %q", i, tt.what, got, tt.want)
		}
	}
}

// TestPreFilter_PoolOfSeveralNodes: the allocator takes a pool as a whole, which no view of one node is.
func TestPreFilter_PoolOfSeveralNodes(t *testing.T) {
	b := newBed(t, "")
	b.addNodes("t4", "n1")
	var rack []*resourceapi.ResourceSlice
	for _, name := range []string{"n2", "n3"} {
		b.addNode(name)
		for i, s := range slicesOf(t, "t4", name) {
			s.Name, s.Spec.Pool.Name = fmt.Sprint("rack-", name, i), "rack"
			s.Spec.Pool.ResourceSliceCount *= 2
			rack = append(rack, s)
		}
	}
	b.publish(rack...)
	claim := b.claims[b.pod("first", "gpu").Name]
	b.pending[claim.UID] = b.allocate("n1", claim)
	b.store("first")
	pod := b.pod("second", "gpu")
	state, got := b.preFilter(pod)
	if got != "Skip" || read(state).outcome != passedDriver {
		t.Errorf("got %s, want the allocator to decide", got)
	}
	b.withdraw(rack[:len(rack)/2]...)
	b.waits(pod)
	if got := b.after(pod, framework.ResourceSlice, framework.Add, nil, rack[0]); got != "QueueSkip" {
		t.Errorf("nothing changed: %s", got)
	}
	b.publish(rack[0])
	if got := b.after(pod, framework.ResourceSlice, framework.Add, nil, rack[0]); got != "Queue" {
		t.Errorf("the pool is whole again: %s", got)
	}
	b.withdraw(rack...)
	if c := b.plugin.cluster; len(c.owners) != 1 || len(c.elsewhere) > 0 {
		t.Errorf("left are %v and %v", c.owners, c.elsewhere)
	}
}
