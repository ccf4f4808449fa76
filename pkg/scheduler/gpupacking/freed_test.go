// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestFreedFor: while a pod ends that was evicted with a claim, no other pod of the same or a lower priority takes the claim over, until
// the hold ends, or the claim has other devices.
func TestFreedFor(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	b.run("n1", "web", "gpu", 0)
	urgent := b.urgentPod("gpu")
	shared, claim := b.plugin.shared, b.claims["web"]
	other := func(name string, priority int32) *corev1.Pod { return b.ofPriority(priority, name, "gpu") }
	if by := shared.FreedFor(other("early", 0), claim); by != nil {
		t.Errorf("before the eviction, the claim is freed for %s", by.Name)
	}
	shared.Hold(urgent, "n1", results(claim), []*resourceapi.ResourceClaim{claim})
	moved := claim.DeepCopy()
	moved.Status.Allocation.Devices.Results[0].Device = "another"
	released := claim.DeepCopy()
	released.Status.Allocation = nil
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		claim *resourceapi.ResourceClaim
		freed bool
	}{
		"lower":         {other("lower", 0), claim, true},
		"equal":         {other("equal", 1000), claim, true},
		"higher":        {other("higher", 1001), claim, false},
		"its own":       {urgent, claim, false},
		"other devices": {other("other-devices", 0), moved, false},
		"released":      {other("released", 0), released, false},
		"another claim": {other("another-claim", 0), b.claims["urgent"], false},
	} {
		if got := shared.FreedFor(c.pod, c.claim) != nil; got != c.freed {
			t.Errorf("%s: freed is %t", name, got)
		}
	}
	b.activated = nil
	shared.Drop(urgent.UID)
	if diff := cmp.Diff(map[string]bool{"default/lower": true, "default/equal": true}, set(b.activated)); diff != "" {
		t.Errorf("tried again (-want +got):\n%s", diff)
	}
}

// TestHeldWith: while others are evicted for a pod, one of the same or a lower priority that shares a claim waits, until the claim has
// devices, or the hold ends.
func TestHeldWith(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	b.run("n1", "low", "gpu", 0)
	first := b.urgentPod("gpu")
	shared, claims := b.plugin.shared, []*resourceapi.ResourceClaim{b.claims["urgent"]}
	sharing := func(name string, priority int32) *corev1.Pod {
		pod := b.ofPriority(priority, name, "gpu")
		pod.Spec.ResourceClaims = first.Spec.ResourceClaims
		return pod
	}
	if with := shared.HeldWith(sharing("early", 0), claims); with != nil {
		t.Errorf("before the eviction, devices are held for %s", with.Name)
	}
	shared.Hold(first, "n1", results(b.claims["low"]), []*resourceapi.ResourceClaim{b.claims["low"]})
	own := sharing("own", 1000)
	b.host("", own)
	shared.Hold(own, "n2", nil, nil)
	allocated := claims[0].DeepCopy()
	allocated.Status.Allocation = b.claims["low"].Status.Allocation
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		claims []*resourceapi.ResourceClaim
		held   bool
	}{
		"lower":         {sharing("lower", 0), claims, true},
		"equal":         {sharing("equal", 1000), claims, true},
		"higher":        {sharing("higher", 1001), claims, false},
		"itself":        {first, claims, false},
		"has a hold":    {own, claims, false},
		"allocated":     {sharing("late", 0), []*resourceapi.ResourceClaim{allocated}, false},
		"another claim": {sharing("another", 0), []*resourceapi.ResourceClaim{b.claims["early"]}, false},
	} {
		if got := shared.HeldWith(c.pod, c.claims) != nil; got != c.held {
			t.Errorf("%s: held is %t", name, got)
		}
	}
	shared.Drop(own.UID)
	b.activated = nil
	for _, name := range []string{"lower", "equal"} {
		shared.HeldWith(sharing(name, 0), claims)
	}
	b.plugin.cluster.assume(claims[0].UID, []Result{{Driver: driver, Pool: "n2", Device: wholeOf(b)}})
	if with := shared.HeldWith(sharing("last", 0), claims); with != nil {
		t.Errorf("the claim is to get its devices, and they are held for %s", with.Name)
	}
	shared.Drop(first.UID)
	if diff := cmp.Diff(map[string]bool{"default/lower": true, "default/equal": true}, set(b.activated)); diff != "" {
		t.Errorf("tried again (-want +got):\n%s", diff)
	}
}

// TestFreedFor_Restarted: a scheduler that has just started finds the nomination of a pod, and evicts pods for it on that node.
func TestFreedFor_Restarted(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	b.run("n1", "web", "gpu", 0)
	urgent := b.urgentPod("gpu")
	urgent.Status.NominatedNodeName = "n1"
	shared, claim := b.plugin.shared, b.claims["web"]
	b.plugin.cluster.mutex.Lock()
	b.plugin.cluster.holds.podChanged(nil, urgent)
	b.plugin.cluster.mutex.Unlock()
	shared.Hold(urgent, "n1", results(claim), []*resourceapi.ResourceClaim{claim})
	if by := shared.FreedFor(b.pod("other", "gpu"), claim); by == nil || by.UID != urgent.UID {
		t.Errorf("the claim is freed for %v, want pod urgent", by)
	}
}

func set(names []string) map[string]bool {
	found := map[string]bool{}
	for _, n := range names {
		found[n] = true
	}
	return found
}

// TestWithout_Returned: a pod that had its devices and not yet its node is put back into the queue instead of being evicted. Its claim is
// about to be released, for the pod that it was to make room for.
func TestWithout_Returned(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	low := b.run("n1", "low", "gpu", -1000)
	urgent, other := b.urgentPod("gpu"), b.ofPriority(1000, "other", "gpu")
	b.plugin.shared.Hold(urgent, "n1", results(b.claims["low"]), []*resourceapi.ResourceClaim{b.claims["low"]})
	nobody := func(string, string, types.UID) bool { return false }
	check := func(name string, pod *corev1.Pod, want int) {
		t.Helper()
		if got := b.plugin.shared.Without(pod, "n1", nobody).Released; len(got) != want {
			t.Errorf("%s: %d claims are released, want %d", name, len(got), want)
		}
	}
	check("it runs", urgent, 0)
	low.Spec.NodeName = ""
	b.plugin.cluster.holds.bind(low.UID)
	check("it is to get its node", urgent, 0)
	b.plugin.cluster.holds.unbind(low.UID, nil, false)
	check("it is back in the queue", urgent, 1)
	check("for another pod", other, 0)
	low.Spec.Priority = new(int32(2000))
	check("it is more important", urgent, 0)
}

// TestHold_ClaimGone: nothing is held for a pod once a claim is gone that it names, and others are tried: such a pod is not. A claim of a
// template is made again.
func TestHold_ClaimGone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod)
		early  bool // before the hold begins
		held   string
		tried  []string
	}{
		"named":             {func(*corev1.Pod) {}, false, "", []string{"default/waits"}},
		"gone in its cycle": {func(*corev1.Pod) {}, true, "", nil},
		"of a template":     {func(p *corev1.Pod) { byTemplate(p, "urgent") }, false, "n1", nil},
		"of another pod":    {func(p *corev1.Pod) { p.Spec.ResourceClaims = nil }, false, "n1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := preemptingBed(t, &Rules{})
			b.addNodes("gh200", "n1")
			urgent := b.ofPriority(1000, "urgent", "gpu")
			c.change(urgent)
			b.host("", urgent)
			b.plugin.cluster.followAll()
			hold := func() {
				b.plugin.shared.Hold(urgent, "n1", []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}, nil)
			}
			if !c.early {
				hold()
			}
			b.fits("waits", "gpu", 0)
			b.remove("urgent")
			if c.early {
				hold()
			}
			b.plugin.cluster.holds.tellEnded()
			if diff := cmp.Diff(c.held, b.plugin.shared.heldNode(urgent)); diff != "" {
				t.Errorf("held on (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.tried, b.activated); diff != "" {
				t.Errorf("tried again (-want +got):\n%s", diff)
			}
		})
	}
}

// byTemplate has a pod's claim made by a template.
func byTemplate(pod *corev1.Pod, claim string) {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
}
