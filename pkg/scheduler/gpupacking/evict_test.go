// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
)

// fakeHandle is what evictions need of a scheduler.
type fakeHandle struct {
	framework.Handle
	snapshot func() []framework.NodeInfo
}

func (f fakeHandle) ProfileName() string { return "cleave-scheduler" }
func (f fakeHandle) SnapshotSharedLister() framework.SharedLister {
	return fakeSnapshot{nodes: f.snapshot()}
}

type fakeSnapshot struct {
	framework.SharedLister
	framework.NodeInfoLister
	nodes []framework.NodeInfo
}

func (f fakeSnapshot) NodeInfos() framework.NodeInfoLister { return f }

func (f fakeSnapshot) Get(name string) (framework.NodeInfo, error) {
	for _, n := range f.nodes {
		if n.Node().Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("node %s: %w", name, framework.ErrNotFound)
}

// evictionBed is a bed whose pods run.
type evictionBed struct{ *bed }

// run puts a pod with a device of a class on a node.
func (b evictionBed) run(node, name, class string, priority int32, change ...func(*corev1.Pod)) *corev1.Pod {
	b.t.Helper()
	pod := b.pod(name, class)
	pod.Spec.Priority, pod.Spec.NodeName, pod.Status.StartTime = &priority, node, &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for _, c := range change {
		c(pod)
	}
	claim := b.claims[name]
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	b.pending[claim.UID] = b.allocate(node, claim)
	b.store(name)
	b.host(node, pod)
	return pod
}

// host notes that a pod runs on a node.
func (b evictionBed) host(node string, pod *corev1.Pod) {
	b.t.Helper()
	must(b.t, b.informers.Core().V1().Pods().Informer().GetIndexer().Add(pod))
	runOn(b.bed, node, pod)
}

// ofPriority is a pod with a claim for devices of a class.
func (b evictionBed) ofPriority(priority int32, name, class string, change ...func(*resourceapi.ResourceClaimSpec)) *corev1.Pod {
	pod := b.pod(name, class, change...)
	pod.Spec.Priority = &priority
	return pod
}

// urgentPod is one of priority 1000 that the API server has, and no node.
func (b evictionBed) urgentPod(class string, change ...func(*resourceapi.ResourceClaimSpec)) *corev1.Pod {
	b.t.Helper()
	pod := b.ofPriority(1000, "urgent", class, change...)
	b.host("", pod)
	return pod
}

// outcomeOf is the decision of a pod, as text.
func (b evictionBed) outcomeOf(pod *corev1.Pod) string {
	b.t.Helper()
	text, _ := b.attempt(pod)
	return text
}

// attempt is outcomeOf with the state of the cycle.
func (b evictionBed) attempt(pod *corev1.Pod) (outcome string, state *fakeState) {
	b.t.Helper()
	state, nodes := b.preFilter(pod)
	d := read(state)
	return fmt.Sprint(nodes, " ", d.outcome, " ", d.victims), state
}

// urgent is the decision of a pod of priority 1000.
func (b evictionBed) urgent(name, class string) string {
	b.t.Helper()
	return b.outcomeOf(b.ofPriority(1000, name, class))
}

func preemptingBed(t testing.TB, rules *Rules) evictionBed {
	t.Helper()
	b := newBed(t, `{"candidates": 1}`)
	b.plugin.shared.Preempts(b.ProfileName(), rules)
	return evictionBed{b}
}

// TestEvictions_Choice: budgets count more than priorities, those more than what is lost, and that more than how many pods go.
func TestEvictions_Choice(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3", "n4")
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}
	must(t, b.informers.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(budget))
	guarded := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "guarded"} }
	for i := range 7 {
		b.run("n1", fmt.Sprint("guarded-", i), "1g.12gb", -1000, guarded)
		b.run("n2", fmt.Sprint("middle-", i), "1g.12gb", 500)
	}
	b.run("n3", "whole", "gpu", -1000)
	b.run("n4", "half-0", "3g.48gb", -1000)
	b.run("n4", "half-1", "3g.48gb", -1000)
	for _, step := range []struct{ want, remove string }{
		{"n4 evict map[n4:[half-0]]", "n4"},
		{"n3 evict map[n3:[whole]]", "n3"},
		{"n2 evict map[n2:[middle-6]]", "n2"},
		{"n1 evict map[n1:[guarded-6]]", "n1"},
	} {
		got := b.urgent("urgent-before-"+step.remove, "1g.12gb")
		if got != step.want {
			t.Errorf("evicted is %s, want %s", got, step.want)
		}
		for i, n := range b.nodes {
			if n.Node().Name == step.remove {
				b.nodes = append(b.nodes[:i:i], b.nodes[i+1:]...)
				break
			}
		}
	}
}

// TestEvictions_Consumers: which claims end with which pods.
func TestEvictions_Consumers(t *testing.T) {
	pod := func(name string, uid types.UID) resourceapi.ResourceClaimConsumerReference {
		return resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: uid}
	}
	ends := func(d time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(d)} }
	}
	for _, c := range []struct {
		name   string
		change func(b evictionBed, claim *resourceapi.ResourceClaim)
		pod    []func(*corev1.Pod)
		want   string
	}{
		{"its pod", nil, nil, "n1 evict map[n1:[low]]"},
		{"two pods", func(b evictionBed, c *resourceapi.ResourceClaim) {
			other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "default", UID: "other"}}
			b.host("n1", other)
			c.Status.ReservedFor = append(c.Status.ReservedFor, pod("other", "other"))
		}, nil, "n1 evict map[n1:[low other]]"},
		{"one is more important", func(b evictionBed, c *resourceapi.ResourceClaim) {
			other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "default", UID: "other"}}
			other.Spec.Priority = new(int32(2000))
			b.host("n1", other)
			c.Status.ReservedFor = append(c.Status.ReservedFor, pod("other", "other"))
		}, nil, "UnschedulableAndUnresolvable full map[]"},
		{"a consumer that is no pod", func(_ evictionBed, c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
				APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "group", UID: "group"})
		}, nil, "UnschedulableAndUnresolvable full map[]"},
		{"nobody uses it", func(_ evictionBed, c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil }, nil,
			"UnschedulableAndUnresolvable full map[]"},
		{"its pod is gone", func(_ evictionBed, c *resourceapi.ResourceClaim) { c.Status.ReservedFor[0].UID = "gone" }, nil, "n1 evict map[n1:[]]"},
		{"its pod ends", nil, []func(*corev1.Pod){ends(time.Minute)}, "n1 evict map[n1:[]]"},
		{"its pod should have ended", nil, []func(*corev1.Pod){ends(-2 * time.Minute)}, "UnschedulableAndUnresolvable full map[]"},
		{"a more important pod ends", nil, []func(*corev1.Pod){ends(time.Minute), func(p *corev1.Pod) { p.Spec.Priority = new(int32(2000)) }},
			"UnschedulableAndUnresolvable full map[]"},
		{"an equal pod", nil, []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Priority = new(int32(1000)) }},
			"UnschedulableAndUnresolvable full map[]"},
		{"an equal pod whose time is over", nil, []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Priority, p.Spec.PriorityClassName = new(int32(1000)), "short"
		}}, "n1 evict map[n1:[low]]"},
		{"a pod that is safe for a time", nil, []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.PriorityClassName = "safe" }},
			"UnschedulableAndUnresolvable full map[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{MinRuntime: map[string]metav1.Duration{"safe": {Duration: 2 * time.Hour}},
				MaxRuntime: map[string]metav1.Duration{"short": {Duration: time.Minute}}})
			b.addNodes("gh200", "n1")
			b.run("n1", "low", "gpu", 0, c.pod...)
			if c.change != nil {
				claim := b.claims["low"].DeepCopy()
				c.change(b, claim)
				b.pending[claim.UID], b.claims["low"] = claim.Status.Allocation, claim
				b.store("low")
			}
			if diff := cmp.Diff(c.want, b.urgent("urgent", "gpu")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEvictions_NobodyGoes: a node where nobody has to go is better than one where somebody has to, whatever the priority.
func TestEvictions_NobodyGoes(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	b.run("n1", "ends", "gpu", -1000, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Minute)} })
	b.run("n2", "low", "gpu", -1000)
	if diff := cmp.Diff("n1 evict map[n1:[]]", b.urgent("urgent", "gpu")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvictions_EndsBesideBusy: a pod ends with the only GPU of one node; another has a free GPU, and its CPU is used up. Both are offered,
// so that nobody has to go for CPU.
func TestEvictions_EndsBesideBusy(t *testing.T) {
	for name, used := range map[string]int64{"has CPU": 0, "frees CPU, too": 8000} {
		t.Run(name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{})
			b.addNodes("gh200", "n1", "n2")
			b.run("n1", "ends", "gpu", -1000, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(time.Minute)} })
			b.nodes[0].(*fakeNode).usedCPU, b.nodes[1].(*fakeNode).usedCPU = used, 8000
			pod := b.ofPriority(1000, "urgent", "gpu")
			pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
			b.now = b.now.Add(checkInterval) // a check is due
			for _, want := range []string{"n1 n2 busy map[n1:[]]", "Skip checked map[]", "n1 n2 busy map[n1:[]]"} {
				got, state := b.attempt(pod)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				b.plugin.shared.Refused(state, pod.UID)
			}
		})
	}
}

// TestEvictions_BusyAlone: nobody can go with the GPUs of a node, and another one has a free GPU and no CPU. Preemption is asked there before
// the allocator is on all nodes.
func TestEvictions_BusyAlone(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	b.run("n1", "important", "gpu", 2000)
	b.nodes[1].(*fakeNode).usedCPU = 8000
	b.now = b.now.Add(checkInterval) // a check is due
	pod := b.ofPriority(1000, "urgent", "gpu")
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	for _, want := range []string{"n2 busy map[]", "Skip checked map[]"} {
		got, state := b.attempt(pod)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		b.plugin.shared.Refused(state, pod.UID)
	}
}

// TestEvictions_HoldLost: a pod loses the node that others were evicted on for it. It is best for the next attempt, too: preemption did not
// refuse it.
func TestEvictions_HoldLost(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3")
	b.run("n1", "low", "gpu", -1000)
	b.run("n2", "middle", "gpu", 500)
	b.run("n3", "lower", "gpu", -2000)
	urgent := b.urgentPod("gpu")
	text, state := b.attempt(urgent)
	if diff := cmp.Diff("n3 evict map[n3:[lower]]", text); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	b.plugin.shared.Refused(state, urgent.UID)
	for _, want := range []string{"n1 evict map[n1:[low]]", "n3 evict map[n3:[lower]]"} {
		if diff := cmp.Diff(want, b.outcomeOf(urgent)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		b.plugin.shared.Hold(urgent, "n1", results(b.claims["low"]), []*resourceapi.ResourceClaim{b.claims["low"]})
		b.plugin.shared.Drop(urgent.UID)
	}
}

// TestEvictions_Refused: where the allocator and others refuse the best nodes, the next are left to them, then all again.
func TestEvictions_Refused(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3")
	for _, n := range []string{"n1", "n2", "n3"} {
		b.run(n, "low-"+n, "gpu", -1000)
	}
	pod := b.ofPriority(1000, "urgent", "gpu")
	var got []string
	for range 5 {
		text, state := b.attempt(pod)
		got = append(got, fmt.Sprint(text, " more: ", b.plugin.shared.Refused(state, pod.UID)))
	}
	want := []string{"n1 evict map[n1:[low-n1]] more: true", "n2 evict map[n2:[low-n2]] more: true", "n3 evict map[n3:[low-n3]] more: false",
		"n1 evict map[n1:[low-n1]] more: false", "n2 evict map[n2:[low-n2]] more: true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvictions_Denied: the API server does not let pods of two nodes be evicted. Devices are held each time before it says so.
func TestEvictions_Denied(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3")
	for _, n := range []string{"n1", "n2", "n3"} {
		b.run(n, "low-"+n, "gpu", -1000)
	}
	urgent := b.urgentPod("gpu")
	var got []string
	for _, n := range []string{"n1", "n2", "n3", "n1"} {
		got = append(got, b.outcomeOf(urgent))
		b.plugin.shared.Hold(urgent, n, nil, []*resourceapi.ResourceClaim{b.claims["low-"+n]})
		b.activated = nil
		b.plugin.shared.Denied(urgent.UID, n)
		if len(b.activated) > 0 {
			t.Errorf("refused on %s, %v are tried at once", n, b.activated)
		}
	}
	want := []string{"n1 evict map[n1:[low-n1]]", "n2 evict map[n2:[low-n2]]", "n3 evict map[n3:[low-n3]]", "n1 evict map[n1:[low-n1]]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvictions_GoneAlone: the only pod of a node that may be evicted has gone, and its claim is not deallocated yet. Nobody has to go on
// another node.
func TestEvictions_GoneAlone(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	gone := b.run("n1", "gone", "gpu", -1000)
	b.run("n2", "low", "gpu", -1000)
	b.nodes[0].(*fakeNode).pods = nil
	must(t, b.informers.Core().V1().Pods().Informer().GetIndexer().Delete(gone))
	if diff := cmp.Diff("n1 evict map[n1:[]]", b.urgent("urgent", "gpu")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvictions_FallBack: another plugin refuses the node with a free GPU. Preemption is asked there, on one with a free GPU and no CPU, and on
// the others, though the plugin leaves one node to an attempt that is narrowed; then on all.
func TestEvictions_FallBack(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3", "n4")
	b.run("n2", "batch", "gpu", 500)
	b.run("n3", "backfill", "gpu", -1000)
	b.nodes[3].(*fakeNode).usedCPU = 8000
	pod := b.ofPriority(1000, "urgent", "gpu")
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	var got []string
	for range 2 {
		first, state := b.attempt(pod)
		b.plugin.PostFilter(t.Context(), state, pod, nil)
		second, state := b.attempt(pod)
		got = append(got, fmt.Sprint(first, "; ", second, " of ", sets.List(Compared(state)), " more: ", b.plugin.shared.Refused(state, pod.UID)))
	}
	want := []string{"n1 narrowed map[]; Skip fallback map[n2:[batch] n3:[backfill]] of [n1 n2 n3 n4] more: false",
		"n1 narrowed map[]; Skip fallback map[] of [] more: false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEvictions_Groups: other plugins may refuse the nodes of the zone where the least is lost, so the best of the other zone are tried, too.
func TestEvictions_Groups(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2", "n3", "n4", "n5", "n6")
	for i, zone := range []string{"a", "a", "a", "b", "b", "b"} {
		b.nodes[i].Node().Labels[corev1.LabelTopologyZone] = zone
		b.run(b.nodes[i].Node().Name, fmt.Sprint("low-", i), "gpu", int32(-10+i), func(p *corev1.Pod) { p.Labels = map[string]string{"zone": zone} })
	}
	pod := b.ofPriority(1000, "urgent", "gpu")
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 1,
		WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}}}
	want := "n1 n2 n4 n5 evict map[n1:[low-0] n2:[low-1] n4:[low-3] n5:[low-4]]"
	if diff := cmp.Diff(want, b.outcomeOf(pod)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
