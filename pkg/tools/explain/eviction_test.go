// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// evictingBed is a cluster whose pods are known.
func evictingBed(t testing.TB, models ...string) *bed {
	t.Helper()
	b := newBed(t, models...)
	b.Running = &Running{Now: since.Time}
	return b
}

// run puts a pod with devices on a node.
func (b *bed) run(node, name string, priority int32, r resourceapi.DeviceRequest) *corev1.Pod {
	b.Helper()
	c := b.allocate(node, name, r)
	c.UID = types.UID(fmt.Sprintf("%04d", len(b.Claims)))
	c.Status.ReservedFor = nil
	return b.use(node, name, priority, c)
}

// use puts a pod on a node that uses a claim.
func (b *bed) use(node, name string, priority int32, c *resourceapi.ResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-of-" + name),
		CreationTimestamp: metav1.NewTime(since.Add(-time.Hour))}, Spec: corev1.PodSpec{NodeName: node, Priority: &priority}}
	b.Running.Pods = append(b.Running.Pods, pod)
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: pod.UID})
	return pod
}

// claimNamed is an allocated claim.
func (b *bed) claimNamed(name string) *resourceapi.ResourceClaim {
	b.Helper()
	i := slices.IndexFunc(b.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == name })
	if i < 0 {
		b.Fatalf("there is no claim %s", name)
	}
	return b.Claims[i]
}

func urgent(priority int32, claim string) *corev1.Pod {
	pod := podOf(claim)
	pod.Spec.Priority, pod.Spec.SchedulerName = &priority, "cleave-scheduler"
	return pod
}

// A person reads who could be evicted, and why nobody can.
func TestEviction(t *testing.T) {
	one := asks("gpu.cleave.dev", 1)
	tests := map[string]struct {
		priority int32
		claim    *resourceapi.ResourceClaim
		// change changes what runs: team/low on node-1 and team/high on node-2, each on the node's only GPU.
		change func(b *bed, low, pod *corev1.Pod)
		want   string
	}{
		"a pod of a lower priority": {priority: 500, claim: whole(1), want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0)
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.
`},
		"several nodes": {priority: 2000, claim: whole(1), want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0)
  1 other node would do.
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.
`},
		"a budget": {priority: 2000, claim: whole(1), change: func(b *bed, low, _ *corev1.Pod) {
			low.Labels = map[string]string{"app": "guarded"}
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}}
			budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: low.Labels}
			b.Running.Budgets = append(b.Running.Budgets, budget)
		}, want: `
Eviction of pods of a lower priority would make room: on node node-2 team/high (priority 1000; gpu-0009-01-00-0)
  1 other node would do.
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.
`},
		"a budget in the way": {priority: 500, claim: whole(1), change: func(b *bed, low, pod *corev1.Pod) {
			pod.Spec.SchedulerName = ""
			low.Labels = map[string]string{"app": "guarded"}
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}}
			budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: low.Labels}
			b.Running.Budgets = append(b.Running.Budgets, budget)
		}, want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0)
  PodDisruptionBudgets do not allow 1 of 1 evictions.
  cleave-scheduler does this, kube-scheduler does not.
`},
		"budgets that are not known": {priority: 500, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.Running.BudgetsUnread = errors.New("list PodDisruptionBudgets: forbidden")
		}, want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0)
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.

PodDisruptionBudgets are not considered: list PodDisruptionBudgets: forbidden
`},
		"pods that share a claim": {priority: 500, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.use("node-1", "also-low", 0, b.claimNamed("low"))
		}, want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0), team/also-low (priority 0; gpu-0009-01-00-0)
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.
`},
		"a pod that ends": {priority: 2000, claim: whole(1), change: func(_ *bed, low, _ *corev1.Pod) { low.DeletionTimestamp = &since }, want: `
Nobody has to be evicted: on node node-1, pods that are ending leave enough devices
  1 other node would do.
`},
		"a pod that is gone": {priority: 500, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) { b.Running.Pods = b.Running.Pods[1:] }, want: `
Nobody has to be evicted: on node node-1, pods that are ending leave enough devices
`},
		"no lower priority": {priority: -1000, claim: whole(1), want: `
Nobody can be evicted for it:
  - no pod with such devices has a priority below -1000, the pod's own: theirs are -1000 to 1000
`},
		"never": {priority: 500, claim: whole(1), change: func(_ *bed, _, pod *corev1.Pod) { pod.Spec.PreemptionPolicy = new(corev1.PreemptNever) }, want: `
Nobody can be evicted for it:
  - the pod's preemptionPolicy is Never
`},
		"a group": {priority: 500, claim: whole(1), change: func(_ *bed, _, pod *corev1.Pod) { pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }, want: `
Nobody can be evicted for it:
  - the pod is of a PodGroup, whose members evict nobody for devices
`},
		"shared with a more important pod": {priority: 500, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.use("node-1", "important", 1000, b.claimNamed("low"))
		}, want: `
Nobody can be evicted for it:
  - no pod with such devices has a priority below 500, the pod's own: theirs is 1000
  - pods that are as important, or more, share claims with others: team/low (low, important)
`},
		"claims that stay": {priority: 500, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.claimNamed("low").Status.ReservedFor = nil
			b.claimNamed("high").Status.ReservedFor[0] = resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "group"}
		}, want: `
Nobody can be evicted for it:
  - claims are allocated, and no pod uses them: team/low
    (delete those that nobody needs)
  - claims are used by other objects than pods: team/high (group)
`},
		"pods that stay": {priority: 2000, claim: whole(1), change: func(b *bed, low, _ *corev1.Pod) {
			low.DeletionTimestamp = new(metav1.NewTime(since.Add(-time.Hour)))
			b.Running.Pods[1].Spec.NodeName = ""
		}, want: `
Nobody can be evicted for it:
  - pods that should have ended have claims still: team/low (low)
    (see why they hang: kubectl describe pod)
  - claims are reserved for pods that are not on their node: team/high (high)
`},
		"too few devices": {priority: 2000, claim: whole(2), want: `
Nobody can be evicted for it:
  - the devices would not suffice even if all were free
`},
		"a constraint": {priority: 2000, claim: withConstraint(whole(1), "gpu.cleave.dev/productName"), want: `
Eviction of pods of a lower priority would make room: on node node-1 team/low (priority -1000; gpu-0009-01-00-0)
  1 other node would do.
  cleave-scheduler does this, kube-scheduler does not; the pod names cleave-scheduler.
`},
		"a constraint on an attribute that no GPU has": {priority: 2000, claim: withConstraint(whole(1), "gpu.cleave.dev/parentUUID"), want: `
Nobody can be evicted for it:
  - the devices would not suffice even if all were free
`},
		"pods that are not known": {priority: 2000, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.Running = &Running{PodsUnread: errors.New("list Pods: forbidden")}
		}, want: `
Who could be evicted for it is not known:
  - it cannot be predicted: list Pods: forbidden
`},
		"a node that the pod must not be on": {priority: 2000, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			for _, n := range b.Nodes {
				n.Spec.Unschedulable = true
			}
		}},
		"nobody asks": {priority: 2000, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) { b.Running = nil }},
		"room": {priority: 2000, claim: whole(1), change: func(b *bed, _, _ *corev1.Pod) {
			b.Claims, b.Running.Pods = b.Claims[:1], b.Running.Pods[:1]
		}},
		"a gate": {priority: 2000, claim: whole(1), change: func(_ *bed, _, pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := evictingBed(t, "gh200", "gh200")
			low := b.run("node-1", "low", -1000, one)
			b.run("node-2", "high", 1000, one)
			pod := urgent(tt.priority, tt.claim.Name)
			if tt.change != nil {
				tt.change(b, low, pod)
			}
			e := b.explain(AboutPod(pod, namespace(tt.claim), b.Objects))
			got := text(t, &Explanation{State: Fits, Eviction: e.Eviction, Notes: e.Notes})
			if diff := cmp.Diff(tt.want, strings.TrimPrefix(got, " fits:\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Without a pod, nobody is evicted.
func TestEviction_Claim(t *testing.T) {
	b := evictingBed(t, "gh200")
	b.run("node-1", "low", -1000, asks("gpu.cleave.dev", 1))
	if e := b.explain(AboutClaim(whole(1))); e.State != Refused || e.Eviction != nil {
		t.Errorf("got %s", text(t, e))
	}
}

// The whole text, and what programs get.
func TestEviction_Text(t *testing.T) {
	b := evictingBed(t, "hgx-h100", "hgx-h100")
	for i := range 8 {
		b.run("node-1", fmt.Sprint("low-", i), -1000, asks("gpu.cleave.dev", 1))
		b.run("node-2", fmt.Sprint("middle-", i), 0, asks("gpu.cleave.dev", 1))
	}
	for i := range 3 { // the one that started last goes
		b.Running.Pods[2*i].Status.StartTime = new(metav1.NewTime(since.Add(-time.Duration(3+i) * time.Hour)))
	}
	b.Running.Pods[6].Status.StartTime = new(metav1.NewTime(since.Add(-time.Minute)))
	e := b.explain(AboutPod(urgent(1000, "trainer"), namespace(whole(1)), b.Objects))
	checkGolden(t, "eviction", e)
	device := b.claimNamed("low-3").Status.Allocation.Devices.Results[0].Device
	want := &Eviction{Priority: 1000, Scheduler: "cleave-scheduler", Node: "node-1", OtherNodes: 1,
		Victims: []Victim{{Pod: "team/low-3", Priority: -1000, Devices: []string{device}}}}
	if diff := cmp.Diff(want, e.Eviction); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// All of node-1 goes for eight GPUs; what is above the pod's priority stays.
	b.Running.Pods[0].Spec.Priority = new(int32(-100))
	checkGolden(t, "eviction-nobody", b.explain(AboutPod(urgent(-500, "trainer"), namespace(whole(8)), b.Objects)))
}

// The allocator finds room where the victims were, and all of them are less important.
func TestEviction_MakesRoom(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	requests := []resourceapi.DeviceRequest{asks("gpu.cleave.dev", 1), asks("mig-1g.10gb.cleave.dev", 1), asks("mig-3g.40gb.cleave.dev", 1),
		asks("mps.cleave.dev", 1, "memory=50Gi"), asks("timeslice.cleave.dev", 1), asks("mig-2g.20gb.cleave.dev", 2), asks("gpu.cleave.dev", 3)}
	evicted, nobody := 0, 0
	for step := range 6 {
		priority := int32(1 + step%2)
		b := evictingBed(t, "hgx-h100")
		for i := range 70 {
			r := requests[random.IntN(len(requests))]
			if b.try("node-1", claim("c", r)) != nil {
				b.run("node-1", fmt.Sprint("c-", i), int32(random.IntN(3)), r)
			}
		}
		for _, r := range requests {
			asked := claim("asked", r)
			e := b.explain(AboutPod(urgent(priority, "asked"), namespace(asked), b.Objects))
			if e.State != Refused {
				continue
			}
			lower := func(p *corev1.Pod) bool { return *p.Spec.Priority < priority }
			gone := func(c *resourceapi.ResourceClaim) bool { // without victims, try all
				at := slices.IndexFunc(b.Running.Pods, func(p *corev1.Pod) bool { return p.Name == c.Name })
				if e.Eviction.Node == "" {
					return lower(b.Running.Pods[at])
				}
				return slices.ContainsFunc(e.Eviction.Victims, func(v Victim) bool { return v.Pod == "team/"+c.Name && v.Priority < priority })
			}
			rest := &bed{TB: t, Objects: b.Objects, slices: b.slices}
			rest.Claims = slices.DeleteFunc(slices.Clone(b.Claims), gone)
			fits := rest.try("node-1", asked) != nil
			if fits != (e.Eviction.Node != "") || fits && len(rest.Claims)+len(e.Eviction.Victims) != len(b.Claims) {
				t.Errorf("step %d, %s: fits %t after\n%s", step, r.Exactly.DeviceClassName, fits, text(t, e))
			}
			if fits {
				evicted++
			} else {
				nobody++
			}
		}
	}
	if evicted < 10 || nobody == 0 {
		t.Errorf("the test does not see both outcomes: %d evictions, %d without", evicted, nobody)
	}
}
