// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// adminBed is a bed in whose namespace claims may have admin access.
type adminBed struct{ priorityBed }

func newAdminBed(t *testing.T, nodes ...string) adminBed {
	t.Helper()
	b := adminBed{newPriorityBed(t, nodes...)}
	text := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, resourceapi.DRAAdminNamespaceLabelKey)
	must(t, errOf(b.kube.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(text), metav1.PatchOptions{})))
	return b
}

// everyGPU is a launcher's claim: admin access to every GPU of a node, and devices of its own, if any.
func everyGPU(own ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: append(own, resourceapi.DeviceRequest{
		Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu.cleave.dev", AllocationMode: resourceapi.DeviceAllocationModeAll, AdminAccess: new(true),
		},
	})}}
}

// seen are the GPUs that a claim has admin access to; it fails where it has a device for itself, or one twice.
func (b adminBed) seen(name string) (gpus []string) {
	b.t.Helper()
	claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	have := map[string]bool{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.AdminAccess == nil || !*r.AdminAccess || have[r.Device] || strings.Count(r.Device, "-") != 4 {
			b.t.Errorf("claim %s has %+v, want admin access to whole GPUs, once each", name, r)
		}
		have[r.Device] = true
		gpus = append(gpus, r.Device)
	}
	return gpus
}

// own is the device that a claim has.
func (b adminBed) own(name string) string {
	b.t.Helper()
	claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	return claim.Status.Allocation.Devices.Results[0].Device
}

// TestAdmin_EveryGPU: a launcher gets admin access to every GPU of its node, whatever others have of them, and evicts nobody for that.
// What it sees is taken from nobody: others get what is free, and no more. A pod that asks for a device of its own, too, such as a
// network card, is refused as by kube-scheduler, and evicts nobody either.
func TestAdmin_EveryGPU(t *testing.T) {
	b := newAdminBed(t, "n1", "n2")
	addNICClass(b.bed)
	addNICs(b.bed, "n1", 0)
	b.startScheduler("{}")
	b.addPods("requester", "gpu.cleave.dev", 1, priority("low"), graceful, onNode("n1"))
	b.addPods("small", "mig-1g.10gb.cleave.dev", 1, priority("low"), graceful, onNode("n1"))
	b.addPods("notebook", "timeslice.cleave.dev", 1, priority("low"), graceful, onNode("n1"))
	b.scheduled(3)
	taken := b.gpus()
	for i := range 2 {
		name := fmt.Sprint("launcher-", i)
		b.addPodOf(name, everyGPU(), onNode("n1"), priority("high"), func(p *corev1.Pod) { // as FMA's controller does
			none := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
			p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits = none, none
		})
		b.running(name)
		if gpus := b.seen(name); len(gpus) != 8 {
			t.Errorf("%s sees %v, want 8 GPUs", name, gpus)
		}
	}
	b.addPodOf("both", everyGPU(workload.Request("nic", "nic", 1)), onNode("n1"), priority("high"))
	b.waits("both")
	free := 8 - len(taken)
	b.addPods("filler", "gpu.cleave.dev", free, priority("low"), graceful, onNode("n1"))
	b.scheduled(5 + free)
	b.addPods("last", "gpu.cleave.dev", 1, priority("low"), onNode("n1"))
	b.waits("last-0")
	owners := map[string]string{b.own("requester-0"): "requester-0"}
	for i := range free {
		name := fmt.Sprint("filler-", i)
		if other := owners[b.own(name)]; other != "" {
			t.Errorf("GPU %s, of pod %s, is of pod %s, too", b.own(name), name, other)
		}
		owners[b.own(name)] = name
	}
	b.gpus() // fails where more is allocated than there is
	if names, err := b.evicted(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("pods %v are evicted (%v)", names, err)
	}
}

// TestAdmin_KubeScheduler: kube-scheduler gives a launcher its GPUs where the policy offers whole GPUs alone, which have no counters. Where
// GPUs have them, it refuses as soon as anything is allocated; if it no longer does, kubernetes/kubernetes#140729 is mended in this
// release, and docs/recipes.md need not warn of it.
func TestAdmin_KubeScheduler(t *testing.T) {
	b := newAdminBed(t, "counted")
	(&queueBed{bed: b.bed}).addGPUNode("whole", 8, v1alpha1.Rule{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}})
	b.startKubeScheduler(cluster.DefaultVersion, nil)
	byDefault := func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName }
	for _, node := range []string{"counted", "whole"} {
		b.addPodOf("before-"+node, everyGPU(), onNode(node), byDefault)
		b.running("before-" + node)
		b.addPods("requester-"+node, "gpu.cleave.dev", 1, onNode(node), byDefault)
		b.running("requester-" + node + "-0")
		b.addPodOf("after-"+node, everyGPU(), onNode(node), byDefault)
	}
	b.running("after-whole")
	b.waits("after-counted")
	for _, name := range []string{"before-counted", "before-whole", "after-whole"} {
		if gpus := b.seen(name); len(gpus) != 8 {
			t.Errorf("%s sees %v, want 8 GPUs", name, gpus)
		}
	}
	b.addPods("filler", "gpu.cleave.dev", 8, onNode("whole"), byDefault)
	b.scheduled(5 + 7)
	b.gpus()
}
