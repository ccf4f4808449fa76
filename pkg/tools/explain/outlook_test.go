// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// What a node could serve later is not what no node ever could; of one request alone, TestExplain_Devices has the limits.
func TestOutlook(t *testing.T) {
	of := func(requests ...resourceapi.DeviceRequest) *Question { return AboutClaim(claim("c", requests...)) }
	second := func(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
		r.Name = "second"
		return r
	}
	full := func(b *bed) {
		b.allocate("node-1", "other", asks("gpu.cleave.dev", 8))
		b.allocate("node-2", "more", asks("gpu.cleave.dev", 8))
	}
	tests := map[string]struct {
		question func(b *bed) *Question
		outlook  Outlook
		limits   []string
	}{
		"allocated":  {func(b *bed) *Question { full(b); return of(asks("gpu.cleave.dev", 8)) }, NotNow, nil},
		"overlapped": {func(b *bed) *Question { full(b); return of(asks("mig-1g.10gb.cleave.dev", 1)) }, NotNow, nil},
		"tainted": {func(b *bed) *Question {
			b.taint("gpu.cleave.dev/unhealthy", "xid-79", "gpu-")
			return of(asks("gpu.cleave.dev", 1))
		}, NotNow, nil},
		"two requests that exclude each other": {func(b *bed) *Question {
			full(b)
			return of(asks("gpu.cleave.dev", 8), second(asks("mig-7g.80gb.cleave.dev", 1)))
		}, Never, []string{"no node has devices for all requests at once"}},
		"the closest of two reasons": {func(b *bed) *Question { // node-2 has the profile, and too few of it
			return of(asks("mig-7g.80gb.cleave.dev", 9), second(asks("gpu.cleave.dev", 1)))
		}, Never, []string{"9 devices requested, and no node has more than 8"}},
		"an alternative that can be had later": {func(b *bed) *Question {
			full(b)
			return of(resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "old", DeviceClassName: "mig-1g.5gb.cleave.dev"}, {Name: "new", DeviceClassName: "mig-1g.10gb.cleave.dev"}}})
		}, NotNow, nil},
		"a constraint that no node meets": {func(b *bed) *Question {
			return AboutClaim(withConstraint(claim("c", asks("gpu.cleave.dev", 2)), "gpu.cleave.dev/uuid"))
		}, Never, []string{"no node has enough devices that together satisfy matchAttribute gpu.cleave.dev/uuid"}},
		"all of those that match": {func(b *bed) *Question {
			r := selecting(asks("gpu.cleave.dev", 0), `device.attributes["gpu.cleave.dev"].index < 4`)
			r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			b.Nodes = b.Nodes[:1]
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 8))
			return of(r)
		}, NotNow, nil},
		"a class that does not exist": {func(*bed) *Question { return of(asks("gpu.example.com", 1)) }, Never, nil},
		"a node that is being started": {func(b *bed) *Question {
			b.slices = b.slices[1:]
			b.Nodes = b.Nodes[:1]
			return of(asks("gpu.cleave.dev", 9))
		}, "", nil},
		"all devices, while a node is being started": {func(b *bed) *Question {
			r := asks("gpu.cleave.dev", 0)
			r.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
			b.slices = b.slices[1:]
			return of(r)
		}, "", nil},
		"no node publishes anything": {func(b *bed) *Question { b.slices = nil; return of(asks("gpu.cleave.dev", 1)) }, "", nil},
		"nodes that are cordoned": {func(b *bed) *Question {
			b.Nodes[0].Spec.Unschedulable, b.Nodes[1].Spec.Unschedulable = true, true
			return AboutPod(podOf("trainer"), namespace(whole(1)), b.Objects)
		}, NotNow, nil},
		"nodes that the pod does not select": {func(b *bed) *Question {
			pod := podOf("trainer")
			pod.Spec.NodeSelector = map[string]string{"zone": "a"}
			return AboutPod(pod, namespace(whole(1)), b.Objects)
		}, Never, []string{"the pod's node selector, affinity, tolerations and allocated claims leave it none of 2 nodes"}},
		"too many for the nodes that it selects": {func(b *bed) *Question {
			pod := podOf("trainer")
			pod.Spec.NodeSelector, b.Nodes[1].Labels = map[string]string{"zone": "a"}, map[string]string{"zone": "a"}
			return AboutPod(pod, namespace(whole(9)), b.Objects)
		}, Never, []string{"9 devices requested, and no node that the pod may be on has more than 8"}},
		"a device plugin": {func(b *bed) *Question {
			for _, n := range b.Nodes {
				n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *quantity(8)}
			}
			pod := podOf()
			pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"nvidia.com/gpu": *quantity(1)}}}}
			return AboutPod(pod, namespace(), b.Objects)
		}, "", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100", "hgx-h100")
			e := b.explain(tt.question(b))
			var limits []string
			for _, c := range e.Limits {
				limits = append(limits, c.Message)
			}
			if diff := cmp.Diff(tt.limits, limits); diff != "" || e.Outlook != tt.outlook || e.State != Refused {
				t.Errorf("got outlook %q, want %q; limits (-want +got):\n%s\n%s", e.Outlook, tt.outlook, diff, text(t, e))
			}
		})
	}
}

// Two extended resources of a container may have one name in two domains: each request has an answer of its own.
func TestOutlook_ExtendedResourcesOfOneName(t *testing.T) {
	b := newBed(t, "hgx-h100")
	whole, err := b.Classes.Get("gpu.cleave.dev")
	b.must(err)
	pod := podOf()
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}
	for domain, count := range map[string]int64{"a.example.com": 1, "b.example.com": 9} {
		class := whole.DeepCopy()
		class.Name, class.Spec.ExtendedResourceName = domain, new(domain+"/gpu")
		b.Classes = append(b.Classes, class)
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(domain+"/gpu")] = *quantity(count)
	}
	e := b.explain(AboutPod(pod, namespace(), b.Objects))
	if len(e.Requests) != 2 || e.Requests[0].Request != "main-gpu" || e.Requests[1].Request != "main-gpu-2" {
		t.Errorf("got requests %+v", e.Requests)
	}
	if len(e.Limits) != 1 || e.Limits[0].Request != "main-gpu-2" || e.Limits[0].Message != "9 devices requested, and no node has more than 8" {
		t.Errorf("got %s", text(t, e))
	}
}

// Holders are named with the time since which they have their devices: the scheduler's, else that of their pod.
func TestUse_Since(t *testing.T) {
	at := func(hour int) *metav1.Time {
		return new(metav1.NewTime(time.Date(2026, 11, 22, hour, 5, 0, 0, time.UTC)))
	}
	b := newBed(t, "gh200", "gh200", "gh200")
	for i := range 3 {
		b.allocate(fmt.Sprintf("node-%d", i+1), fmt.Sprintf("c-%d", i+1), asks("gpu.cleave.dev", 1))
	}
	b.Claims[0].Status.Allocation.AllocationTimestamp = at(7)
	b.Running = &Running{Pods: []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c-1-pod"}, Status: corev1.PodStatus{StartTime: at(8)}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c-2-pod"}, Status: corev1.PodStatus{StartTime: at(9)}},
	}}
	e := b.explain(AboutClaim(whole(1)))
	want := "3 devices are allocated to team/c-1 (c-1-pod, since 2026-11-22 07:05 UTC), team/c-2 (c-2-pod, since 2026-11-22 09:05 UTC), team/c-3 (c-3-pod)"
	if got := e.Groups[0].Causes[0].Message; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Partitions in different places exclude each other where one has the engines that the other needs.
func TestExplain_Engines(t *testing.T) {
	b := newBed(t)
	b.node("node-1", "rtx-pro-6000", &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: &v1alpha1.MIGPolicy{
		Profiles: []string{"1g.24gb", "1g.24gb+me.all"},
	}}}})
	b.allocate("node-1", "media", asks("mig-1g.24gb.me.all.cleave.dev", 8))
	got := text(t, b.explain(AboutClaim(claim("plain", asks("mig-1g.24gb.cleave.dev", 1)))))
	for _, want := range []string{
		"  - 8 devices overlap with allocations of team/media (media-pod)\n",
		"  - 24 devices need engines that are allocated to team/media (media-pod)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}
