// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cleave-dra/cleave/e2e/workload"
)

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": name} }
}

// evictedFor ends the victims of a pod, with their claims, and returns them once it has a node.
func (b priorityBed) evictedFor(pod string, n int) []string {
	b.t.Helper()
	victims := b.ending(n)
	for _, v := range victims {
		b.gone(v)
		b.free(v)
	}
	b.running(pod)
	b.gpus()
	return victims
}

// allOf fails unless all names begin with a prefix.
func allOf(t *testing.T, names []string, prefix string) {
	t.Helper()
	for _, n := range names {
		if !strings.HasPrefix(n, prefix) {
			t.Errorf("victims are %v, want only %s", names, prefix)
		}
	}
}

// TestPreemption_LeastUnits: a partition is taken rather than a GPU, and a whole GPU from where the least is lost.
func TestPreemption_LeastUnits(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("whole", "gpu.cleave.dev", 6, priority("low"), graceful)
	b.addPods("small", "mig-1g.10gb.cleave.dev", 7, priority("low"), graceful)
	b.addPods("half", "mig-3g.40gb.cleave.dev", 1, priority("low"), graceful)
	b.addPods("other", "mig-1g.10gb.cleave.dev", 4, priority("low"), graceful)
	b.scheduled(18)
	b.addPods("urgent", "mig-1g.10gb.cleave.dev", 1, priority("high"))
	if got := b.evictedFor("urgent-0", 1); strings.HasPrefix(got[0], "whole") || strings.HasPrefix(got[0], "half") {
		t.Errorf("victim is %s, want one of 1g", got[0])
	}
	b.addPods("two", "mig-2g.20gb.cleave.dev", 1, priority("high"))
	for _, name := range b.evictedFor("two-0", 2) {
		if strings.HasPrefix(name, "whole") || strings.HasPrefix(name, "half") {
			t.Errorf("victim is %s, want two of 1g", name)
		}
	}
}

// TestPreemption_Choice: nodes are chosen by the budgets that an eviction would break, then by the priority of the victims, and only
// then by what is lost.
func TestPreemption_Choice(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2", "n3")
	b.startScheduler("{}")
	b.addPods("guarded", "mig-1g.10gb.cleave.dev", 56, priority("low"), graceful, onNode("n1"))
	b.addPods("middle", "mig-1g.10gb.cleave.dev", 56, priority("middle"), graceful, onNode("n2"))
	b.addPods("whole", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n3"))
	b.scheduled(120)
	pdb, err := b.kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guarded"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(56)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	pdb.Status = policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 56, DesiredHealthy: 56, ExpectedPods: 56}
	must(t, errOf(b.kube.PolicyV1().PodDisruptionBudgets(namespace).UpdateStatus(t.Context(), pdb, metav1.UpdateOptions{})))
	b.addPods("first", "mig-1g.10gb.cleave.dev", 1, priority("high"))
	allOf(t, b.evictedFor("first-0", 1), "whole")
	b.addPods("fill", "mig-1g.10gb.cleave.dev", 6, priority("high")) // the rest of that GPU
	b.scheduled(126)
	b.addPods("second", "mig-1g.10gb.cleave.dev", 1, priority("high"), func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1", "n2"}}}}}}}}
	})
	allOf(t, b.evictedFor("second-0", 1), "middle")
	b.addPods("third", "mig-1g.10gb.cleave.dev", 1, priority("high"), onNode("n1"))
	allOf(t, b.evictedFor("third-0", 1), "guarded")
	b.addPods("equal", "mig-1g.10gb.cleave.dev", 1, priority("low"))
	b.addPods("never", "gpu.cleave.dev", 1, priority("patient"))
	b.waits("equal-0")
	b.waits("never-0")
	b.none()
}

// none checks that no pod is evicted.
func (b priorityBed) none() {
	b.t.Helper()
	if names, err := b.evicted(b.t.Context()); err != nil || len(names) > 0 {
		var why []string
		for _, name := range names {
			why = append(why, lines(b.bed, name)...)
		}
		b.t.Errorf("pods %v are evicted (%v), want none:\n%s", names, err, strings.Join(why, "\n"))
	}
}

// TestPreemption_SharedClaims: a claim is free only if all its pods go, and one that nobody uses belongs to nobody.
func TestPreemption_SharedClaims(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("kept", "gpu.cleave.dev", 1, priority("low"), graceful)
	shares := func(name, class string) { // another pod of the first's claim
		pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("kept-0")})
		pod.Name, pod.Spec.PriorityClassName = name, class
		must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
		b.running(name)
	}
	shares("important", "high")
	b.addPods("own", "gpu.cleave.dev", 1, priority("low"))
	b.running("own-0")
	must(t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).Patch(t.Context(), "own-0", types.MergePatchType,
		[]byte(`{"status":{"reservedFor":null}}`), metav1.PatchOptions{}, "status")))
	b.addPods("middle", "gpu.cleave.dev", 6, priority("middle"), graceful)
	b.scheduled(9)
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"))
	allOf(t, b.evictedFor("urgent-0", 1), "middle")
	for i := range 5 {
		name := fmt.Sprint("next", i)
		b.addPods(name, "gpu.cleave.dev", 1, priority("high"))
		allOf(t, b.evictedFor(name+"-0", 1), "middle")
	}
	b.addPods("last", "gpu.cleave.dev", 1, priority("high"))
	b.waits("last-0")
	b.none()
}

// TestPreemption_Several: pods that arrive at once each have their own victims, whose ends are not theirs to choose; one of a lower
// priority takes nothing from them; one that is deleted leaves what was freed.
func TestPreemption_Several(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("low", "mig-1g.10gb.cleave.dev", 112, priority("low"), graceful)
	b.scheduled(112)
	b.addPods("high", "mig-1g.10gb.cleave.dev", 5, priority("high"))
	victims := b.ending(5)
	b.addPods("middle", "mig-1g.10gb.cleave.dev", 1, priority("middle"))
	all := b.ending(6)
	b.addPods("again", "mig-1g.10gb.cleave.dev", 1, priority("low"))
	b.waits("again-0")
	must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), "high-4", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	for _, v := range slices.Backward(all) {
		b.gone(v)
		b.free(v)
	}
	for _, name := range []string{"high-0", "high-1", "high-2", "high-3", "middle-0", "again-0"} {
		b.running(name)
	}
	b.none()
	b.gpus()
	allOf(t, victims, "low")
}

// TestPreemption_Restart: what was freed is still kept when the scheduler starts again.
func TestPreemption_Restart(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	victim := b.ending(1)[0]
	b.until("to be nominated", "high-0", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "n1" })
	must(t, b.scheduler.End(syscall.SIGKILL))
	b.addPods("again", "gpu.cleave.dev", 1, priority("low"))
	b.gone(victim)
	b.startScheduler("{}")
	b.waits("again-0")
	b.free(victim)
	b.running("high-0")
	b.none()
}

// TestPreemption_Kinds: extended resources, shares with amounts, several claims, alternatives, and CPU beside devices.
func TestPreemption_Kinds(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	share := func(amount string) resourceapi.ResourceClaimSpec {
		return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			workload.Request("gpu", "mps.cleave.dev", 1, "memory="+amount)}}}
	}
	for i := range 16 { // two of each GPU
		b.addPodOf(fmt.Sprint("share-", i), share("36Gi"), priority("low"), graceful, onNode("n1"))
	}
	b.addPods("cpu", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n2"), requests("16", "1Gi"))
	b.scheduled(24)
	b.addPodOf("urgent", share("30Gi"), priority("high"))
	allOf(t, b.evictedFor("urgent", 1), "share")

	pod := podWith()
	pod.Name, pod.Spec.PriorityClassName = "extended", "high"
	pod.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n2"}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
	allOf(t, b.evictedFor("extended", 1), "cpu")

	// 7 pods have 112 of 128 CPUs: one more victim than GPUs need.
	b.addPods("both", "gpu.cleave.dev", 1, priority("high"), onNode("n2"), requests("40", "1Gi"))
	allOf(t, b.evictedFor("both-0", 2), "cpu")

	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "whole", DeviceClassName: "gpu.cleave.dev", Count: 9, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
			{Name: "two", DeviceClassName: "gpu.cleave.dev", Count: 2, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
		}}}}}
	b.addPodOf("alternatives", spec, priority("high"), onNode("n2"))
	victims := b.ending(1) // one GPU is free already
	for _, v := range victims {
		b.gone(v)
		b.free(v)
	}
	b.running("alternatives")
	b.gpus()
}

// TestPreemption_Runtimes: pods are safe for their first minutes, and may be bumped by their equals after a time.
func TestPreemption_Runtimes(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.start(bin("cleave-scheduler"), "--config="+b.config("{}", map[string]any{
		"minRuntime": map[string]any{"low": "20s"}, "maxRuntime": map[string]any{"middle": "40s"},
	}))
	b.addPods("middle", "gpu.cleave.dev", 7, priority("middle"), graceful)
	b.addPods("low", "gpu.cleave.dev", 1, priority("low"), graceful)
	b.scheduled(8)
	started := time.Now()
	b.addPods("equal", "gpu.cleave.dev", 1, priority("middle"))
	b.waits("equal-0")
	b.none()
	allOf(t, b.evictedFor("equal-0", 1), "low")
	if after := time.Since(started); after < 15*time.Second {
		t.Errorf("a pod that is safe for 20 s was evicted after %s", after)
	}
	b.addPods("next", "gpu.cleave.dev", 1, priority("middle"))
	allOf(t, b.evictedFor("next-0", 1), "middle")
}

// TestPreemption_RuntimeOfCPU: the GPUs of a node are free, and a pod without claims has its CPU, which is safe for its first seconds.
func TestPreemption_RuntimeOfCPU(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.start(bin("cleave-scheduler"), "--config="+b.config("{}", map[string]any{"minRuntime": map[string]any{"low": "20s"}}))
	pod := podWith()
	pod.Name, pod.Spec.PriorityClassName = "cpu", "low"
	graceful(pod)
	requests("120", "1Gi")(pod)
	must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
	b.running("cpu")
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"), requests("100", "1Gi"))
	b.waits("high-0")
	b.none()
	allOf(t, b.ending(1), "cpu")
	b.gone("cpu")
	b.running("high-0")
}

// TestPreemption_FallBack: the only node with free GPUs is refused by pod anti-affinity. Of the others, pods go where they are the least
// important.
func TestPreemption_FallBack(t *testing.T) {
	var nodes []string
	for i := range 12 {
		nodes = append(nodes, fmt.Sprintf("n%02d", i))
	}
	b := newPriorityBed(t, nodes...)
	b.startScheduler("{}")
	b.addPods("guard", "gpu.cleave.dev", 1, priority("high"), onNode(nodes[0]))
	for _, n := range nodes[1:11] {
		b.addPods("middle-"+n, "gpu.cleave.dev", 8, priority("middle"), graceful, onNode(n))
	}
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful, onNode(nodes[11]))
	b.scheduled(89)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"), func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}},
		}}}
	})
	allOf(t, b.evictedFor("high-0", 1), "low")
}
