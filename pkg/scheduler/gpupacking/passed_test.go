// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kube-scheduler/framework"
)

// TestPreFilter_PassesThrough: what cannot be predicted, or is not for GPUs that are packed, sees all nodes.
func TestPreFilter_PassesThrough(t *testing.T) {
	nic := func(nodeName *string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: "nic.example.com", NodeName: nodeName, Pool: resourceapi.ResourcePool{Name: "nics", ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "nic-0"}},
		}}
		s.Name = "nics"
		return s
	}
	n1 := "n1"
	second := func(class string) func(*resourceapi.ResourceClaimSpec) {
		return func(s *resourceapi.ResourceClaimSpec) {
			s.Devices.Requests = append(s.Devices.Requests, resourceapi.DeviceRequest{
				Name: "second", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
			})
		}
	}
	exactly := func(do func(*resourceapi.ExactDeviceRequest)) func(*resourceapi.ResourceClaimSpec) {
		return func(s *resourceapi.ResourceClaimSpec) { do(s.Devices.Requests[0].Exactly) }
	}
	tests := map[string]struct {
		reason string // empty where nothing of it is counted
		pod    func(b *bed) *corev1.Pod
	}{
		"no claim":        {"", func(*bed) *corev1.Pod { return &corev1.Pod{} }},
		"claim missing":   {"", func(b *bed) *corev1.Pod { p := b.pod("x", "gpu"); clear(b.claims); return p }},
		"class missing":   {"", func(b *bed) *corev1.Pod { return b.pod("x", "missing") }},
		"other driver":    {passedDriver, func(b *bed) *corev1.Pod { return b.pod("x", "nic") }},
		"any device":      {passedDriver, func(b *bed) *corev1.Pod { return b.pod("x", "any") }},
		"no such device":  {passedNone, func(b *bed) *corev1.Pod { return b.pod("x", "5g.50gb") }},
		"broken selector": {passedSelector, func(b *bed) *corev1.Pod { return b.pod("x", "broken") }},
		"many to try":     {passedSearch, func(b *bed) *corev1.Pod { return b.pod("x", "2g.20gb", count(25)) }},
		"lists of values": {passedUnpredictable, func(b *bed) *corev1.Pod {
			listed := slicesOf(b.t, "hgx-h100", "n1")
			for _, s := range listed {
				for i := range s.Spec.Devices {
					s.Spec.Devices[i].Attributes["list"] = resourceapi.DeviceAttribute{StringValues: []string{"a", "b"}}
				}
			}
			b.publish(listed...)
			attribute := resourceapi.FullyQualifiedName("gpu.cleave.dev/list")
			return b.pod("x", "gpu", func(s *resourceapi.ResourceClaimSpec) {
				s.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
			})
		}},
		"all": {passedUnpredictable, func(b *bed) *corev1.Pod {
			return b.pod("x", "gpu", exactly(func(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }))
		}},
		"admin": {passedUnpredictable, func(b *bed) *corev1.Pod {
			return b.pod("x", "gpu", exactly(func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = new(true) }))
		}},
		"allocated": {passedAllocated, func(b *bed) *corev1.Pod {
			p := b.pod("x", "gpu")
			b.claims["x"].Status.Allocation = &resourceapi.AllocationResult{}
			return p
		}},
		"under way": {passedAllocated, func(b *bed) *corev1.Pod {
			p := b.pod("x", "gpu")
			b.pending["claim-x"] = &resourceapi.AllocationResult{}
			return p
		}},
		"devices of no node": {passedDriver, func(b *bed) *corev1.Pod {
			b.withdraw(nic(&n1))
			b.publish(nic(nil))
			return b.pod("x", "gpu", second("nic"))
		}},
		"init container": {passedUnpredictable, func(b *bed) *corev1.Pod {
			p := extended("gpu", 1)
			p.Spec.InitContainers = p.Spec.Containers
			return p
		}},
		"device plugin": {passedPlugin, func(b *bed) *corev1.Pod {
			b.nodes[0].(*fakeNode).scalars = map[corev1.ResourceName]int64{"nvidia.com/gpu": 8}
			return extended("gpu", 1)
		}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		b := newBed(t, "")
		b.addNodes("hgx-h100", "n1", "n2")
		b.publish(nic(&n1))
		pod := tests[name].pod(b)
		before := sampled(t, attemptsTotal)
		state, got := b.preFilter(pod)
		if got != "Skip" {
			t.Errorf("%s: got %s, want Skip", name, got)
		}
		want := map[string]float64{}
		if tests[name].reason != "" {
			want["outcome="+tests[name].reason+" strategy=pack"] = 1
		}
		if diff := cmp.Diff(want, since(before, sampled(t, attemptsTotal))); diff != "" {
			t.Errorf("%s: attempts by outcome (-want +got):\n%s", name, diff)
		}
		if _, status := b.plugin.PostFilter(t.Context(), state, pod, nil); status.Code() != framework.Unschedulable || len(b.activated) > 0 {
			t.Errorf("%s: PostFilter answers %v, activated %v", name, status, b.activated)
		}
	}
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1")
	group, before := &fakeState{data: map[framework.StateKey]framework.StateData{}, group: true}, sampled(t, attemptsTotal)
	if _, status := b.plugin.PreFilter(t.Context(), group, b.pod("x", "gpu"), b.nodes); !status.IsSkip() {
		t.Errorf("a group of pods: %v", status)
	}
	if diff := cmp.Diff(map[string]float64{"outcome=" + passedGroup + " strategy=pack": 1}, since(before, sampled(t, attemptsTotal))); diff != "" {
		t.Errorf("a group of pods: attempts by outcome (-want +got):\n%s", diff)
	}
}

const attemptsTotal = "cleave_scheduler_attempts_total"

// since is what was added.
func since(before, after map[string]float64) map[string]float64 {
	more := map[string]float64{}
	for outcome, n := range after {
		if n > before[outcome] {
			more[outcome] = n - before[outcome]
		}
	}
	return more
}

func extended(resourceName string, n int64) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceName("nvidia.com/" + resourceName): *resource.NewQuantity(n, resource.DecimalSI)},
	}}}}}
}
