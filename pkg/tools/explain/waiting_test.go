// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// asked is a bed whose questions are asked five minutes after the pod was created.
func asked(t *testing.T) (*bed, *corev1.Pod) {
	b := newBed(t, "gh200")
	pod := podOf("trainer")
	pod.CreationTimestamp, pod.Spec.SchedulerName = since, "cleave-sheduler"
	b.Now = since.Add(5 * time.Minute)
	running := func(name, scheduler string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
			Spec: corev1.PodSpec{NodeName: "node-1", SchedulerName: scheduler}}
	}
	b.Running = &Running{Now: b.Now, Pods: []*corev1.Pod{running("a", "cleave-scheduler"), running("b", "default-scheduler"),
		running("c", "default-scheduler"), pod}}
	return b, pod
}

// A pod whose devices are free may wait for something else, or for nobody.
func TestExplain_Waits(t *testing.T) {
	looked := func(status corev1.ConditionStatus, reason, message string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message}}
	}
	event := func(minute int, message string) corev1.Event {
		return corev1.Event{Reason: "FailedScheduling", Message: message, LastTimestamp: metav1.NewTime(since.Add(time.Duration(minute) * time.Minute))}
	}
	tests := map[string]struct {
		change func(b *bed, pod *corev1.Pod, in *Namespace)
		state  State
		want   string
	}{
		"no scheduler": {nil, Waits, `Pod team/trainer fits, and yet waits:
  claim team/trainer, request gpu: 1 of class gpu.cleave.dev
- no scheduler has looked at the pod since it was created 5m ago: its schedulerName is cleave-sheduler: did you mean cleave-scheduler?
  (start that scheduler, or create the pod anew with the schedulerName of one that runs; others have their nodes from default-scheduler, cleave-scheduler)

Node node-1: enough devices are free
`},
		"a pod that was just created": {func(b *bed, _ *corev1.Pod, _ *Namespace) { b.Now = since.Add(10 * time.Second) }, Fits, "Pod team/trainer fits:\n"},
		"a scheduler that has looked": {func(_ *bed, pod *corev1.Pod, _ *Namespace) {
			pod.Status.Conditions = looked(corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/1 nodes are available: 1 Insufficient cpu.")
		}, Waits, "- the scheduler says: 0/1 nodes are available: 1 Insufficient cpu.\n"},
		"a scheduler that writes Events alone": {func(_ *bed, _ *corev1.Pod, in *Namespace) {
			in.Events = []corev1.Event{event(2, "no room for the gang"), event(1, "earlier"), {Reason: "Pulled", Message: "other"}}
		}, Waits, "- the scheduler says: no room for the gang\n"},
		"a scheduler that may have written Events": {func(_ *bed, _ *corev1.Pod, in *Namespace) { in.EventsUnread = errors.New("list Events: forbidden") }, Waits,
			"- no scheduler has set the pod's condition PodScheduled since it was created 5m ago: its schedulerName is cleave-sheduler: did you mean cleave-scheduler?\n" +
				"  (its Events are not known: list Events: forbidden; if it has none, start that scheduler, or create the pod anew"},
		"kube-scheduler, which sets the condition": {func(_ *bed, pod *corev1.Pod, in *Namespace) {
			pod.Spec.SchedulerName, in.EventsUnread = corev1.DefaultSchedulerName, errors.New("list Events: forbidden")
		}, Waits, "- no scheduler has looked at the pod since it was created 5m ago: its schedulerName is default-scheduler\n  (start that scheduler"},
		"a scheduler with an allocator of its own": {func(_ *bed, pod *corev1.Pod, _ *Namespace) { pod.Spec.SchedulerName = "volcano" }, Waits,
			"\nThe pod's scheduler is volcano, of which some releases allocate no partitions or shares: see docs/queues.md. What fits is said as for kube-scheduler.\n"},
		"a pod that asks for no devices": {func(_ *bed, pod *corev1.Pod, _ *Namespace) { pod.Spec.ResourceClaims = nil }, Waits,
			"Pod team/trainer waits, and not for devices:\n- no scheduler has looked"},
		"a claim of its PodGroup": {func(_ *bed, pod *corev1.Pod, in *Namespace) {
			group, template := "gang", "gpu"
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
			pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "trainer", ResourceClaimTemplateName: &template}
			pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "trainer", ResourceClaimName: &pod.Spec.ResourceClaims[0].Name}}
			in.Claims["trainer"].OwnerReferences = []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup", Name: group, UID: "group", Controller: new(true)}}
		}, Waits, "Pod team/trainer fits, and yet waits:\n"},
		"a pod that is deleted": {func(b *bed, pod *corev1.Pod, _ *Namespace) {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 1))
			pod.DeletionTimestamp, pod.Finalizers = &since, []string{"batch.kubernetes.io/job-tracking"}
		}, Refused, "Pod team/trainer cannot be scheduled:\n- it is being deleted since 2026-11-22 02:14 UTC, and kept by its finalizers " +
			"batch.kubernetes.io/job-tracking: no scheduler looks at it\n"},
		"a gate": {func(_ *bed, pod *corev1.Pod, _ *Namespace) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			pod.Status.Conditions = looked(corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "Scheduling is blocked")
		}, Waits, "cleave.dev\n- the pod has the scheduling gate kueue.x-k8s.io/admission\n  (whoever set it, such as a queue, removes it)\n\nNode"},
		"devices that are missing, and no scheduler": {func(b *bed, _ *corev1.Pod, _ *Namespace) {
			b.allocate("node-1", "other", asks("gpu.cleave.dev", 1))
		}, Refused, "Pod team/trainer cannot be scheduled:\n  claim team/trainer, request gpu: 1 of class gpu.cleave.dev\n- no scheduler has looked"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, pod := asked(t)
			in := namespace(whole(1))
			if tt.change != nil {
				tt.change(b, pod, &in)
			}
			e := b.explain(AboutPod(pod, in, b.Objects))
			if got := text(t, e); e.State != tt.state || !strings.Contains(got, tt.want) {
				t.Errorf("got state %s, want %s, and\n%s\nwant\n%s", e.State, tt.state, got, tt.want)
			}
		})
	}
}

// A pod or claim that has its devices says which, and when they are taken away.
func TestExplain_Holding(t *testing.T) {
	b := newBed(t, "gh200")
	c := b.allocate("node-1", "trainer", asks("mps.cleave.dev", 1, "memory=20Gi", "cores=25"))
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: driver, Pool: "node-1", Device: c.Status.Allocation.Devices.Results[0].Device,
		Data: &runtime.RawExtension{Raw: []byte(`{"type":"mps","uuid":"GPU-1"}`)}}}
	has := "  claim team/trainer has gpu-0009-01-00-0-mps (GPU-1) of pool node-1 for request gpu with cores 25, memory 20Gi, shares 1\n"
	pod := podOf("trainer")
	waiting := pod.DeepCopy()
	pod.Spec.NodeName, pod.Status.Phase = "node-1", corev1.PodRunning
	check := func(what string, q *Question, state State, want string) {
		t.Helper()
		if e := b.explain(q); e.State != state || text(t, e) != want {
			t.Errorf("%s: got %s and\n%swant %s and\n%s", what, e.State, text(t, e), state, want)
		}
	}
	end := "\nIf it does not start, its Events and those of its claims say why.\n"
	b.Nodes[0].Spec.Unschedulable = true // what has become of the node since is of no matter
	check("a pod", AboutPod(pod, namespace(c), b.Objects), Scheduled, "Pod team/trainer is scheduled to node node-1:\n"+has+end)
	b.Nodes[0].Spec.Unschedulable = false
	check("its claim", AboutClaim(c), Allocated, "ResourceClaim team/trainer: all claims are allocated.\n"+has)
	check("a pod without a node", AboutPod(waiting, namespace(c), b.Objects), Allocated, "Pod team/trainer: all claims are allocated.\n"+has)
	waiting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "Insufficient cpu."}}
	check("a pod that waits", AboutPod(waiting, namespace(c), b.Objects), Waits,
		"Pod team/trainer has all its devices, and yet waits:\n"+has+"- the scheduler says: Insufficient cpu.\n")

	c.DeletionTimestamp = &since
	deleted := "Claim team/trainer is being deleted since 2026-11-22 02:14 UTC, and ends with the pods that use it: trainer-pod.\n"
	check("a claim that is deleted", AboutClaim(c), Allocated, "ResourceClaim team/trainer: all claims are allocated.\n"+has+"\n"+deleted)
	check("its pod", AboutPod(pod, namespace(c), b.Objects), Scheduled, "Pod team/trainer is scheduled to node node-1:\n"+has+end+deleted)
	free := whole(1)
	free.DeletionTimestamp = &since
	check("a claim that was deleted before it got devices", AboutClaim(free), Refused, "ResourceClaim team/trainer cannot be scheduled:\n"+
		"  claim team/trainer, request gpu: 1 of class gpu.cleave.dev\n- claim team/trainer cannot be used: it is being deleted\n"+
		"\nNode node-1:\n  - 1 device overlaps with allocations of team/trainer (ending)\n"+
		"\nWhat would fit now:\n  1 of class mps.cleave.dev with up to cores 75, memory 76544Mi on node-1\n")

	pod.Status.Phase = corev1.PodPending
	check("a pod that was bound past the scheduler", AboutPod(pod, namespace(whole(1)), b.Objects), Waits,
		"Pod team/trainer is scheduled to node node-1, and cannot start:\n"+
			"- claim team/trainer has no devices: the pod was given its node without them, as by spec.nodeName\n"+
			"  (create the pod anew without spec.nodeName: a scheduler allocates the devices)\n")
	check("a pod whose claim is gone", AboutPod(pod, namespace(), b.Objects), Waits, "Pod team/trainer is scheduled to node node-1, and cannot start:\n"+
		"- ResourceClaim trainer does not exist\n  (create it, or correct the pod's spec.resourceClaims)\n")
	pod.Status.Phase = corev1.PodSucceeded
	check("a pod that has ended", AboutPod(pod, namespace(), b.Objects), Scheduled, "Pod team/trainer is scheduled to node node-1.\n\nIt has ended: Succeeded.\n")
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "UnexpectedAdmissionError", "Allocate failed."
	check("a pod that the kubelet refused", AboutPod(pod, namespace(), b.Objects), Scheduled,
		"Pod team/trainer is scheduled to node node-1.\n\nIt has ended: Failed, UnexpectedAdmissionError, Allocate failed.\n")
	pod.Status.Phase, pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = corev1.PodRunning, new(metav1.NewTime(since.Add(time.Minute))), new(int64(60))
	check("a pod that is deleted", AboutPod(pod, namespace(c), b.Objects), Scheduled, "Pod team/trainer is scheduled to node node-1:\n"+has+"\n"+deleted+
		"It is being deleted since 2026-11-22 02:14 UTC, and ends once its containers and claims have (docs/troubleshooting.md#terminating).\n")
}

// A quota is named as the API server would refuse it (exceeded quota): claims of templates are charged by class, and by the extended
// resource of the class.
func TestExplain_Quota(t *testing.T) {
	quota := func(name, what, hard, used string) *corev1.ResourceQuota {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}}
		q.Spec.Hard = corev1.ResourceList{corev1.ResourceName(what): resource.MustParse(hard)}
		q.Status.Used = corev1.ResourceList{corev1.ResourceName(what): resource.MustParse(used)}
		return q
	}
	const byClass = "gpu.cleave.dev.deviceclass.resource.k8s.io/devices"
	scoped := quota("scoped", byClass, "0", "0")
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	extended := podOf()
	extended.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"nvidia.com/gpu": *quantity(2)}}}}
	template := "t"
	pod := podOf()
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	tests := map[string]struct {
		quota   *corev1.ResourceQuota
		pod     *corev1.Pod
		planned bool
		want    []string
	}{
		"by class": {quota("gpus", byClass, "4", "3"), pod, false,
			[]string{"ResourceQuota gpus allows 4 of " + byClass + ", 3 are used, and 2 more are requested"}},
		"by extended resource": {quota("gpus", "requests.nvidia.com/gpu", "1", "0"), pod, false,
			[]string{"ResourceQuota gpus allows 1 of requests.nvidia.com/gpu, 0 are used, and 2 more are requested"}},
		"by implicit extended resource": {quota("gpus", "requests.deviceclass.resource.kubernetes.io/gpu.cleave.dev", "1", "0"), pod, false,
			[]string{"ResourceQuota gpus allows 1 of requests.deviceclass.resource.kubernetes.io/gpu.cleave.dev, 0 are used, and 2 more are requested"}},
		"of claims": {quota("few", "count/resourceclaims.resource.k8s.io", "1", "1"), pod, false,
			[]string{"ResourceQuota few allows 1 of count/resourceclaims.resource.k8s.io, 1 are used, and 1 more are requested"}},
		"enough":              {quota("gpus", byClass, "5", "3"), pod, false, nil},
		"another class":       {quota("gpus", "mps.cleave.dev.deviceclass.resource.k8s.io/devices", "0", "0"), pod, false, nil},
		"with a scope":        {scoped, pod, false, nil},
		"a pod that is there": {quota("gpus", "requests.nvidia.com/gpu", "1", "1"), extended, false, nil},
		"a pod that is not there": {quota("gpus", "requests.nvidia.com/gpu", "1", "1"), extended, true,
			[]string{"ResourceQuota gpus allows 1 of requests.nvidia.com/gpu, 1 are used, and 2 more are requested"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			in := templates(asks("gpu.cleave.dev", 2))
			in.Templates = map[string]*resourceapi.ResourceClaimTemplate{template: {ObjectMeta: metav1.ObjectMeta{Name: template},
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: whole(2).Spec}}}
			in.Quotas = []*corev1.ResourceQuota{tt.quota}
			about := AboutPod(tt.pod, in, b.Objects)
			if tt.planned {
				about = AboutPlanned("Pod team/trainer", tt.pod, in, b.Objects)
			}
			e := b.explain(about)
			var got []string
			for _, c := range e.Causes {
				if c.Kind == Quota {
					got = append(got, c.Message)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || len(tt.want) > 0 && e.State != Waits {
				t.Errorf("got state %s; (-want +got):\n%s", e.State, diff)
			}
		})
	}
	b := newBed(t, "hgx-h100")
	in := templates(asks("gpu.cleave.dev", 2))
	in.Templates[template] = &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: whole(2).Spec}}
	in.QuotasUnread = errors.New("list ResourceQuotas: forbidden")
	if got := text(t, b.explain(AboutPod(pod, in, b.Objects))); !strings.Contains(got, "ResourceQuotas are not considered: list ResourceQuotas: forbidden\n") {
		t.Errorf("got %s", got)
	}
}

// Of a pod that is not created yet, the scheduler may be misspelled.
func TestExplain_PlannedScheduler(t *testing.T) {
	for name, want := range map[string]string{
		"cleave-sheduler": "\nNo pod of this cluster has its node from the scheduler cleave-sheduler: did you mean cleave-scheduler?\n",
		"nobody":          "\nNo pod of this cluster has its node from the scheduler nobody: see that it runs.\n",
		"":                "", "default-scheduler": "", "cleave-scheduler": "",
	} {
		b, pod := asked(t)
		pod.Spec.SchedulerName = name
		q := AboutPlanned("Pod team/trainer", pod, namespace(whole(1)), b.Objects)
		got := text(t, b.explain(q))
		if !strings.Contains(got, want) || want == "" && strings.Contains(got, "No pod") || q.AsksPods() != (name != "" && name != "default-scheduler") {
			t.Errorf("%q: got %s", name, got)
		}
	}
}

// A pod that is given its node gets an extended resource there from a device plugin, and else from nobody.
func TestExplain_PlannedOnNode(t *testing.T) {
	for node, refused := range map[string]bool{"node-1": false, "node-2": true} {
		b := newBed(t, "hgx-h100", "hgx-h100")
		b.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *quantity(8)}
		pod := podOf()
		pod.Spec.NodeName = node
		pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": *quantity(1)}}}}
		got := text(t, b.explain(AboutPlanned("Pod team/trainer", pod, namespace(), b.Objects)))
		if strings.Contains(got, "has no devices: the pod was given its node without them") != refused {
			t.Errorf("on %s, want a refusal: %t, got\n%s", node, refused, got)
		}
	}
}

// Admin access takes nothing, and yet kube-scheduler refuses it where counters have too little left (kubernetes/kubernetes#140729).
func TestExplain_AdminAccess(t *testing.T) {
	for name, tt := range map[string]struct {
		scheduler string
		more      []resourceapi.DeviceRequest
		state     State
	}{
		"kube-scheduler":         {"", nil, Refused},
		"kube-scheduler by name": {"default-scheduler", nil, Refused},
		"another":                {"volcano", nil, Refused},
		"cleave-scheduler":       {"cleave-scheduler", nil, Fits},
		"cleave-scheduler, and an ordinary device": {"cleave-scheduler", []resourceapi.DeviceRequest{asks("mig-1g.10gb.cleave.dev", 1)}, Refused},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			b.allocate("node-1", "small", asks("mig-1g.10gb.cleave.dev", 1))
			r := asks("gpu.cleave.dev", 0)
			r.Name, r.Exactly.AllocationMode, r.Exactly.AdminAccess = "all", resourceapi.DeviceAllocationModeAll, new(true)
			pod := podOf("launcher")
			pod.Spec.SchedulerName = tt.scheduler
			e := b.explain(AboutPod(pod, namespace(claim("launcher", append(tt.more, r)...)), b.Objects))
			var text strings.Builder
			b.must(e.Print(&text, false))
			if e.State != tt.state {
				t.Errorf("got %s, want %s:\n%s", e.State, tt.state, &text)
			}
			const says = "1 device overlaps with allocations of team/small"
			if text := text.String(); strings.Contains(text, says) != (tt.state == Refused) || strings.Contains(text, "use cleave-scheduler") != (tt.state == Refused) {
				t.Errorf("want the cause %q and what helps where it is refused, in\n%s", says, text)
			}
		})
	}
}
