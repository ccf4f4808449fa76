// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"
)

// fits reports whether a pod of a priority would be narrowed to a node with room.
func (b evictionBed) fits(name, class string, priority int32) bool {
	b.t.Helper()
	pod := b.ofPriority(priority, name, class)
	pod.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	_, nodes := b.preFilter(pod)
	return nodes == "n1"
}

func deviceNames(all []Result) (names []string) {
	for _, r := range all {
		names = append(names, r.Device[len("gpu-0000-01-00-0"):])
	}
	slices.Sort(names)
	return names
}

// TestHold_Kept: what the first of seven victims leaves is kept as it is, and when the last has gone, the whole GPU is; for pods of the same
// or a lower priority.
func TestHold_Kept(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	var claims []*resourceapi.ResourceClaim
	for i := range 7 {
		b.run("n1", fmt.Sprint("low-", i), "1g.12gb", 0)
		claims = append(claims, b.claims[fmt.Sprint("low-", i)])
	}
	urgent := b.urgentPod("gpu")
	whole := []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}
	b.plugin.shared.Hold(urgent, "n1", whole, claims)
	other := func(priority int32) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "other"}, Spec: corev1.PodSpec{Priority: &priority}}
	}
	if kept := b.plugin.shared.Held(&fakeState{}, other(0), nil); len(kept) > 0 {
		t.Errorf("kept are %v while the victims have them", deviceNames(kept))
	}
	checkFits := func(after string) {
		t.Helper()
		for name, c := range map[string]struct {
			priority int32
			fits     bool
		}{"lower": {0, false}, "equal": {1000, false}, "higher": {1001, true}, "urgent": {1000, true}} {
			if got := b.fits(name, "1g.12gb", c.priority); got != c.fits {
				t.Errorf("after the %s victim, %s fits: %t", after, name, got)
			}
		}
	}
	had := results(b.claims["low-3"])
	b.remove("low-3")
	if diff := cmp.Diff(had, b.plugin.shared.Held(&fakeState{}, other(0), nil)); diff != "" {
		t.Errorf("kept after the first victim (-want +got):\n%s", diff)
	}
	checkFits("first")
	for i := range 7 {
		if i != 3 {
			b.remove(fmt.Sprint("low-", i))
		}
	}
	if diff := cmp.Diff(whole, b.plugin.shared.Held(&fakeState{}, other(1000), nil)); diff != "" {
		t.Errorf("kept after the last victim (-want +got):\n%s", diff)
	}
	checkFits("last")
	b.plugin.shared.Drop(urgent.UID)
	if !b.fits("after", "1g.12gb", 0) {
		t.Error("nothing is free after the hold has ended")
	}
}

// TestHold_Free: what is free already, and would be missing once the victim has gone, is kept as well.
func TestHold_Free(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	for i := range 7 {
		b.run("n1", fmt.Sprint("low-", i), "1g.12gb", 0)
	}
	promised := slices.Concat(results(b.claims["low-2"]), results(b.claims["low-3"]))
	b.remove("low-2")
	urgent := b.urgentPod("1g.12gb")
	b.plugin.shared.Hold(urgent, "n1", promised, []*resourceapi.ResourceClaim{b.claims["low-3"]})
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "other"}, Spec: corev1.PodSpec{Priority: new(int32(0))}}
	if diff := cmp.Diff(promised[:1], b.plugin.shared.Held(&fakeState{}, other, nil)); diff != "" {
		t.Errorf("kept while the victim is there (-want +got):\n%s", diff)
	}
	if b.fits("lower", "1g.12gb", 0) {
		t.Error("a pod of a lower priority gets what the other one needs")
	}
	b.remove("low-3")
	if diff := cmp.Diff(promised, b.plugin.shared.Held(&fakeState{}, other, nil)); diff != "" {
		t.Errorf("kept after the victim (-want +got):\n%s", diff)
	}
}

// wholeOf is the device that is the whole GPU of node n1.
func wholeOf(b evictionBed) string {
	b.t.Helper()
	v := b.plugin.cluster.views["n1"][0]
	b.plugin.cluster.refresh(v)
	for i := range v.node.Model.Devices {
		if d := &v.node.Model.Devices[i]; d.Size == v.node.Model.GPUs[d.GPU].Units && !d.Shared {
			return d.Name
		}
	}
	b.t.Fatal("node n1 has no whole GPU")
	return ""
}

// TestHold_Followed: a hold ends with the nomination, one that the API server has is found, and events that come late say nothing.
func TestHold_Followed(t *testing.T) {
	pod := func(nominated, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p", Namespace: "default", Name: "p"}}
		p.Spec.NodeName, p.Status.NominatedNodeName = node, nominated
		return p
	}
	ending := pod("n1", "")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, c := range []struct {
		name          string
		held          string
		before, after *corev1.Pod
		want          string
		unknown       bool
		ended         string
	}{
		{"not yet at the API server", "n1", pod("", ""), pod("", ""), "n1", false, ""},
		{"arrived", "n1", pod("", ""), pod("n1", ""), "n1", false, ""},
		{"of another component", "", nil, pod("n2", ""), "n2", true, ""},
		{"elsewhere", "n1", pod("n1", ""), pod("n2", ""), "n2", true, "n1"},
		{"withdrawn", "n1", pod("n1", ""), pod("", ""), "", false, "n1"},
		{"the one before is withdrawn", "n2", pod("n1", ""), pod("", ""), "n2", false, ""},
		{"the one before arrived", "n2", pod("", ""), pod("n1", ""), "n2", false, ""},
		{"bound", "n1", pod("n1", ""), pod("n1", "n1"), "", false, "n1"},
		{"deleted", "n1", pod("n1", ""), nil, "", false, "n1"},
		{"to be deleted", "n1", pod("n1", ""), ending, "", false, "n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{})
			b.host("", pod("", ""))
			shared := b.plugin.shared
			if c.held != "" {
				shared.Hold(pod("", ""), c.held, nil, nil)
			}
			b.plugin.cluster.mutex.Lock()
			ended := b.plugin.cluster.holds.podChanged(c.before, c.after)
			b.plugin.cluster.mutex.Unlock()
			if diff := cmp.Diff(c.ended, ended); diff != "" {
				t.Errorf("ended on (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.want, shared.heldNode(pod("", ""))); diff != "" {
				t.Errorf("held on (-want +got):\n%s", diff)
			}
			now := time.Now()
			if got := len(shared.Unknown(now)) > 0; got != c.unknown {
				t.Errorf("unknown is %t", got)
			}
			if len(shared.Unknown(now.Add(time.Second))) > 0 {
				t.Error("tried again after a second")
			}
			if got := len(shared.Unknown(now.Add(time.Minute))) > 0; got != c.unknown {
				t.Errorf("after a minute, unknown is %t", got)
			}
		})
	}
}

// TestAwaited_Refused: nobody waits on the node that a pod is nominated for if that refuses the pod since.
func TestAwaited_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   []string
	}{
		"as it was": {func(*corev1.Node) {}, []string{"n1"}},
		"tainted": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "upkeep", Effect: corev1.TaintEffectNoSchedule}}
		}, nil},
		"cordoned":     {func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil},
		"not selected": {func(n *corev1.Node) { n.Labels["pool"] = "b" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{})
			b.addNodes("gh200", "n1", "n2")
			for _, n := range b.nodes {
				n.Node().Labels["pool"] = "a"
			}
			b.run("n1", "low", "gpu", 0)
			b.run("n2", "other", "gpu", 1000)
			urgent := b.urgentPod("gpu")
			urgent.Spec.NodeSelector = map[string]string{"pool": "a"}
			victim := b.claims["low"]
			b.plugin.shared.Hold(urgent, "n1", results(victim), []*resourceapi.ResourceClaim{victim})
			b.remove("low")
			c.change(b.nodes[0].Node())
			state, _ := b.preFilter(urgent)
			if diff := cmp.Diff(c.want, b.plugin.shared.Awaited(state, urgent, false)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAwaited_Undecided: where GPUPacking has no say, a pod waits on the node that it is nominated for only if the filters were asked.
// Otherwise another plugin refused the pod on all nodes before, as VolumeBinding does whose claim for a volume is gone.
func TestAwaited_Undecided(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	urgent := b.urgentPod("gpu")
	b.plugin.shared.Hold(urgent, "n1", []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}, nil)
	for filtered, want := range map[bool][]string{true: {"n1"}, false: nil} {
		state := &fakeState{data: map[framework.StateKey]framework.StateData{}}
		if diff := cmp.Diff(want, b.plugin.shared.Awaited(state, urgent, filtered)); diff != "" {
			t.Errorf("filtered is %t (-want +got):\n%s", filtered, diff)
		}
	}
}

// TestHold_Gone: nothing is held for a pod that was deleted in its cycle, is being deleted, or is bound.
func TestHold_Gone(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	gone, ending, bound := b.pod("gone", "gpu"), b.pod("ending", "gpu"), b.pod("bound", "gpu")
	ending.DeletionTimestamp, bound.Spec.NodeName = &metav1.Time{Time: time.Now()}, "n1"
	b.host("", ending)
	b.host("", bound)
	for _, pod := range []*corev1.Pod{gone, ending, bound} {
		if b.plugin.shared.Hold(pod, "n1", nil, nil); b.plugin.shared.heldNode(pod) != "" {
			t.Errorf("something is held for pod %s", pod.Name)
		}
	}
}

// TestHold_Wakes: pods that wait are tried when a hold ends, if they may fit then.
func TestHold_Wakes(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	urgent := b.urgentPod("gpu")
	b.plugin.shared.Hold(urgent, "n1", []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}, nil)
	if b.fits("small", "1g.12gb", 0) || b.fits("eight", "missing-profile", 0) {
		t.Fatal("a pod fits beside what is held")
	}
	b.plugin.checks.last = b.now.Add(-time.Hour)
	if got := b.outcomeOf(b.ofPriority(0, "checked", "1g.12gb")); !strings.Contains(got, outcomeChecked) {
		t.Fatalf("got %s, want a check", got)
	}
	b.activated = nil
	b.plugin.shared.Drop(urgent.UID)
	slices.Sort(b.activated)
	if diff := cmp.Diff([]string{"default/checked", "default/small"}, b.activated); diff != "" {
		t.Errorf("tried again (-want +got):\n%s", diff)
	}
}

// TestHold_WakesWhereItWas: a pod is to go to another node than first. What was held for it is there for others, who are tried again: no
// event of the API server says so.
func TestHold_WakesWhereItWas(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	b.run("n2", "low", "gpu", 0)
	urgent := b.urgentPod("gpu")
	whole := []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}
	b.plugin.shared.Hold(urgent, "n1", whole, nil)
	if b.fits("small", "1g.12gb", 0) {
		t.Fatal("a pod fits beside what is held")
	}
	for _, tt := range []struct {
		node string
		want []string
	}{{"n1", nil}, {"n2", []string{"default/small"}}} {
		b.activated = nil
		b.plugin.shared.Hold(urgent, tt.node, whole, nil)
		if diff := cmp.Diff(tt.want, b.activated); diff != "" {
			t.Errorf("tried again when it is to go to %s (-want +got):\n%s", tt.node, diff)
		}
	}
}

// TestHold_Two: the more important of two holds comes first, and one does not keep what the other needs.
func TestHold_Two(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	b.run("n1", "low", "gpu", 0)
	whole := []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}
	for name, priority := range map[string]int32{"middle": 500, "high": 1000} {
		pod := b.ofPriority(priority, name, "gpu")
		b.host("", pod)
		b.plugin.shared.Hold(pod, "n1", whole, []*resourceapi.ResourceClaim{b.claims["low"]})
	}
	b.remove("low")
	if !b.fits("high", "gpu", 1000) || b.fits("middle", "gpu", 500) {
		t.Error("the GPU is not kept for the more important pod")
	}
	b.plugin.shared.Drop("high")
	if !b.fits("middle", "gpu", 500) || b.fits("low", "gpu", 0) {
		t.Error("the GPU is not kept for the pod that is left")
	}
}

// TestHold_BoundElsewhere: a pod for which devices of a node are held finds room on another node. Pods that wait for what was held are
// tried again.
func TestHold_BoundElsewhere(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("hgx-h100", "n1", "n2")
	for i := range 8 {
		b.run("n1", fmt.Sprint("first-", i), "gpu", 0)
		b.run("n2", fmt.Sprint("second-", i), "gpu", 1000)
	}
	urgent := b.urgentPod("gpu", count(2))
	victims := []*resourceapi.ResourceClaim{b.claims["first-0"], b.claims["first-1"]}
	b.plugin.shared.Hold(urgent, "n1", slices.Concat(results(victims[0]), results(victims[1])), victims)
	b.remove("first-0") // and the other one ends in an hour
	low := b.ofPriority(0, "low", "gpu")
	b.waits(low)

	b.remove("second-0")
	b.remove("second-1")
	node, state := b.place(urgent)
	if node != "n2" {
		t.Fatalf("urgent is on %s", node)
	}
	b.store("urgent")
	b.plugin.PostBind(t.Context(), state, urgent, node)
	if diff := cmp.Diff([]string{"default/low"}, b.activated); diff != "" {
		t.Errorf("tried again (-want +got):\n%s", diff)
	}
	if _, nodes := b.preFilter(low); nodes != "n1" {
		t.Errorf("if it were tried, low would be on %s", nodes)
	}
}

// TestHold_Unbound: what was freed for a pod is kept for it also where its binding fails, for which kube-scheduler takes its nomination away.
// Where its claim has the devices, or the pod is gone, others are tried.
func TestHold_Unbound(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(b evictionBed, pod *corev1.Pod)
		group     bool
		held      string
		activated []string
	}{
		"the claim is not written":  {func(evictionBed, *corev1.Pod) {}, false, "n1", nil},
		"in the attempt of a group": {func(evictionBed, *corev1.Pod) {}, true, "", nil},
		"the claim is written":      {func(b evictionBed, _ *corev1.Pod) { b.store("urgent") }, false, "", []string{"default/waits"}},
		"the pod is deleted": {func(b evictionBed, pod *corev1.Pod) {
			must(b.t, b.informers.Core().V1().Pods().Informer().GetIndexer().Delete(pod))
		}, false, "", []string{"default/waits"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{})
			b.addNodes("hgx-h100", "n1")
			for i := range 8 {
				b.run("n1", fmt.Sprint("low-", i), "gpu", 0)
			}
			urgent := b.urgentPod("gpu")
			victims := []*resourceapi.ResourceClaim{b.claims["low-0"], b.claims["low-1"]}
			b.plugin.shared.Hold(urgent, "n1", slices.Concat(results(victims[0]), results(victims[1])), victims) // one is more than it needs
			b.remove("low-0")
			b.remove("low-1")
			b.fits("waits", "gpu", 0)
			node, state := b.place(urgent)
			c.meanwhile(b, urgent)
			b.activated, state.group = nil, c.group
			for range 2 {
				b.plugin.Unreserve(t.Context(), state, urgent, node)
			}
			nominated := urgent.DeepCopy()
			nominated.Status.NominatedNodeName = "n1"
			for _, held := range []string{c.held, ""} {
				b.plugin.cluster.mutex.Lock()
				b.plugin.cluster.holds.podChanged(nominated, urgent)
				b.plugin.cluster.mutex.Unlock()
				if diff := cmp.Diff(held, b.plugin.shared.heldNode(urgent)); diff != "" {
					t.Errorf("held on (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(set(c.activated), set(b.activated)); diff != "" {
				t.Errorf("tried again (-want +got):\n%s", diff)
			}
		})
	}
}
