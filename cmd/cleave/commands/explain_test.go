// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// classes are the DeviceClasses of the manifests.
func classes(t *testing.T) []runtime.Object {
	t.Helper()
	all, err := manifests.Classes()
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, c := range all {
		objects = append(objects, c)
	}
	return objects
}

func wants(class string, count int64) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count, AllocationMode: resourceapi.DeviceAllocationModeExactCount}}}}}
}

func TestExplain_Objects(t *testing.T) {
	template, created := "trainer", "trainer-gpu-x"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "trainer", UID: "pod"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	waiting := pod.DeepCopy()
	waiting.Name = "waiting"
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &created}}
	own := true
	more := append(classes(t), pod, waiting,
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: template},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: wants("gpu.cleave.dev", 1)}},
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: created,
			OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", APIVersion: "v1", Name: "trainer", UID: "pod", Controller: &own}}},
			Spec: wants("gpu.cleave.dev", 9)})
	client := cluster(t, more...)
	client.Discovery().(*fake.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: "v1.36.1"}
	client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resourceapi.Resource("resourceslices"), "", nil)
	})
	tests := map[string]struct {
		kind, name string
		file       string
		want       string
		state      explain.State
	}{
		"a pod": {kind: "pod", name: "trainer", want: "9 devices requested, but only 3 fit\n  - 1 device is allocated to ml/train", state: explain.Refused},
		"a pod whose claim is not created": {kind: "pod", name: "waiting", state: explain.Waits,
			want: "the claim was not created from ResourceClaimTemplate trainer"},
		"in a cluster that does not count shares": {kind: "claim", name: created, state: explain.Refused,
			want: "GPUs are shared only where their policy has no other tier, as the scheduler of Kubernetes 1.36.1 could"},
		"a claim":    {kind: "claim", name: created, want: "request gpu: 9 of class gpu.cleave.dev", state: explain.Refused},
		"a template": {kind: "template", name: template, want: "Node node-1: enough devices are free", state: explain.Fits},
		"a file": {state: explain.Refused, want: "ResourceClaim ml/c never fits the nodes of this cluster",
			file: "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: mine}}]}}\n" +
				"---\napiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine}\nspec: {selectors: [{cel: {expression: 'device.driver == \"gpu.cleave.dev\" && false'}}]}\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev", kind: tt.kind, name: tt.name}
			f := &explainFlags{format: "text", file: tt.file}
			if tt.file != "" {
				if err := a.read("-", strings.NewReader(tt.file)); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := f.explain(t.Context(), a, &out)
			if (err != nil) != (tt.state == explain.Refused || tt.state == explain.Waits) || !strings.Contains(out.String(), tt.want) {
				t.Errorf("got %v and\n%s\nwant %q", err, out.String(), tt.want)
			}
			f.format, f.file = "json", ""
			out.Reset()
			_ = f.explain(t.Context(), a, &out) // the same error
			var e explain.Explanation
			if err := json.Unmarshal(out.Bytes(), &e); err != nil || e.State != tt.state {
				t.Errorf("as JSON: got state %q, %v; want %q", e.State, err, tt.state)
			}
		})
	}
	a := &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev", kind: "pod", name: "nobody"}
	if _, err := a.answers(t.Context()); err == nil || !strings.Contains(err.Error(), `pods "nobody" not found: if it was not created, the Events of its owner say`) {
		t.Errorf("a pod that does not exist: got %v", err)
	}
}

// As kubectl-cleave the program speaks as kubectl's plugin.
func TestRun_KubectlPlugin(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := cli.Run(t.Context(), New("/usr/local/bin/kubectl-cleave"), []string{"explain", "--help"}, &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("got %d, %s", code, &stderr)
	}
	var usage []string
	for line := range strings.Lines(stdout.String()) {
		if strings.Contains(line, "cleave explain") {
			usage = append(usage, strings.TrimSpace(line))
		}
	}
	want := []string{"kubectl cleave explain pod|claim|template NAME [flags]", "kubectl cleave explain pod trainer",
		"kubectl cleave explain claim -n team trainer-gpu-x7k2p", "kubectl cleave explain -f deployment.yaml -o json"}
	if diff := cmp.Diff(want, usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	stderr.Reset()
	code := cli.Run(t.Context(), New("kubectl-cleave"), []string{"explain", "x"}, &stdout, &stderr)
	if code != cli.ExitUsage || !strings.HasSuffix(stderr.String(), "Run 'kubectl cleave explain --help' for usage.\n") || !strings.HasPrefix(stderr.String(), "kubectl cleave: ") {
		t.Errorf("a usage error: got %d, %s", code, &stderr)
	}
}

// Who could be evicted is read of pods and budgets; what may not be listed is a sentence.
func TestExplain_Eviction(t *testing.T) {
	priority := int32(1000)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "urgent", UID: "urgent"}, Spec: corev1.PodSpec{Priority: &priority}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &pod.Name}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}
	low := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "low", UID: "low", Labels: map[string]string{"app": "low"}},
		Spec: corev1.PodSpec{NodeName: "node-1"}}
	has := claimOn("low", "gpu.cleave.dev", "node-1", "gpu-0000-61-00-0")
	has.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "low", UID: "low"}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "low"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: low.Labels}
	for name, tt := range map[string]struct{ forbidden, want string }{
		"all is known": {"", "\nEviction of pods of a lower priority would make room: on node node-1 ml/low (priority 0; gpu-0000-61-00-0)\n" +
			"  PodDisruptionBudgets do not allow 1 of 1 evictions.\n  cleave-scheduler does this, kube-scheduler does not.\n"},
		"no budgets": {"poddisruptionbudgets", "(priority 0; gpu-0000-61-00-0)\n  cleave-scheduler does this, kube-scheduler does not.\n\n" +
			"PodDisruptionBudgets are not considered: list PodDisruptionBudgets: poddisruptionbudgets"},
		"no pods": {"pods", "\nWho could be evicted for it is not known:\n  - it cannot be predicted: list Pods: pods"},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(t, append(classes(t), pod, low, has, budget,
				&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "urgent"}, Spec: wants("gpu.cleave.dev", 3)})...)
			client.PrependReactor("list", tt.forbidden, func(clienttesting.Action) (bool, runtime.Object, error) {
				return tt.forbidden != "", nil, apierrors.NewForbidden(policyv1.Resource(tt.forbidden), "", nil)
			})
			a := &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev", kind: "pod", name: "urgent"}
			var out bytes.Buffer
			err := (&explainFlags{format: "text"}).explain(t.Context(), a, &out)
			if err == nil || !strings.Contains(out.String(), tt.want) {
				t.Errorf("got %v and\n%s\nwant %q", err, out.String(), tt.want)
			}
		})
	}
}

// A pod whose devices are free may wait for a quota or a scheduler: the exit code is one of its own.
func TestExplain_Waits(t *testing.T) {
	template := "trainer"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "trainer", UID: "pod", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "gpus"}}
	quota.Spec.Hard = corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("0")}
	elsewhere := quota.DeepCopy()
	elsewhere.Namespace, elsewhere.Name = "other", "others"
	said := func(uid types.UID, message string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: string(uid)}, Reason: "FailedScheduling", Message: message,
			InvolvedObject: corev1.ObjectReference{UID: uid}}
	}
	scheduled := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "other"},
		Spec: corev1.PodSpec{NodeName: "node-1", SchedulerName: "cleave-scheduler"}}
	objects := append(classes(t), pod, quota, elsewhere, scheduled, said("other", "not of the pod"),
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: template},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: wants("gpu.cleave.dev", 1)}})
	for name, tt := range map[string]struct {
		more []runtime.Object
		want string
	}{
		"nobody": {nil, "- no scheduler has looked at the pod since it was created 60m ago: its schedulerName is default-scheduler\n" +
			"  (start that scheduler, or create the pod anew with the schedulerName of one that runs; others have their nodes from cleave-scheduler)\n"},
		"a quota": {nil, "- ResourceQuota gpus allows 0 of requests.nvidia.com/gpu, 0 are used, and 1 more are requested\n"},
		"Events":  {[]runtime.Object{said("pod", "too many pods in the queue")}, "- the scheduler says: too many pods in the queue\n"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &asker{client: cluster(t, append(slices.Clone(objects), tt.more...)...), namespace: "ml", driver: "gpu.cleave.dev", kind: "pod", name: "trainer"}
			cmd := &cobra.Command{Use: "cleave", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
				return (&explainFlags{format: "text"}).explain(cmd.Context(), a, cmd.OutOrStdout())
			}}
			var out, errs bytes.Buffer
			code := cli.Run(t.Context(), cmd, nil, &out, &errs)
			if code != cli.ExitWaits || !strings.Contains(out.String(), tt.want) || strings.Contains(out.String(), "not of the pod") ||
				!strings.Contains(errs.String(), "Pod ml/trainer waits, and not for devices") {
				t.Errorf("got %d, %s and\n%s\nwant %q", code, errs.String(), out.String(), tt.want)
			}
		})
	}
}

// Without the right to read Events, it is not known whether a scheduler has written some.
func TestExplain_EventsUnread(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "trainer", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
	pod.Spec.SchedulerName = "queue"
	client := cluster(t, append(classes(t), pod)...)
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewBadRequest("no")
	})
	got, err := (&asker{client: client, namespace: "ml", driver: "gpu.cleave.dev", kind: "pod", name: "trainer"}).answers(t.Context())
	if err != nil || len(got[0].Causes) != 1 || !strings.HasPrefix(got[0].Causes[0].Remedy, "its Events are not known: list Events: no; if it has none, start that scheduler") {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Counters are for those who ask for them.
func TestExplain_Verbose(t *testing.T) {
	client := cluster(t, append(classes(t), claimOn("holder", "gpu.cleave.dev", "node-1", "gpu-0000-61-00-0-mps"),
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "all"}, Spec: wants("gpu.cleave.dev", 4)})...)
	for _, verbose := range []bool{false, true} {
		var out bytes.Buffer
		_ = (&explainFlags{format: "text", verbose: verbose}).explain(t.Context(),
			&asker{client: client, namespace: "ml", driver: "gpu.cleave.dev", kind: "claim", name: "all"}, &out) // it fits no node
		if !strings.Contains(out.String(), "overlaps with allocations of ml/holder") || strings.Contains(out.String(), "counters") != verbose {
			t.Errorf("verbose %t: got %s", verbose, &out)
		}
	}
}

// The allocator has the features of the cluster's release, and of the gates that its API server has.
func TestExplain_Features(t *testing.T) {
	keeps := func(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice { return slice }
	drops := func(slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
		slice = slice.DeepCopy()
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			d.ConsumesCounters, d.AllowMultipleAllocations, d.Capacity = nil, nil, nil
		}
		return slice
	}
	tests := []struct {
		release string
		stores  func(*resourceapi.ResourceSlice) *resourceapi.ResourceSlice
		gates   string // of the allocator, that differ between releases
		fits    map[string]bool
	}{
		{"v1.34.4", drops, "", map[string]bool{"gpu.cleave.dev": false, "mps.cleave.dev": false}},
		{"v1.35.4-eks-1", drops, "", map[string]bool{"gpu.cleave.dev": false, "mps.cleave.dev": false}},
		{"v1.35.4", keeps, "DRAConsumableCapacity DRAPartitionableDevices", map[string]bool{"gpu.cleave.dev": true, "mps.cleave.dev": true}},
		{"v1.36.4", keeps, "DRAConsumableCapacity DRADeviceBindingConditions+DRAResourceClaimDeviceStatus DRADeviceTaints DRAPartitionableDevices",
			map[string]bool{"gpu.cleave.dev": true, "mps.cleave.dev": true}},
		{"v1.37.2", keeps, "DRAConsumableCapacity DRADeviceBindingConditions+DRAResourceClaimDeviceStatus DRADeviceTaints DRAFractionalCapacityRange DRAPartitionableDevices",
			map[string]bool{"gpu.cleave.dev": true, "mps.cleave.dev": true}},
		{"v1.37.2", drops, "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus DRADeviceTaints",
			map[string]bool{"gpu.cleave.dev": false, "mps.cleave.dev": false}},
	}
	for _, tt := range tests {
		t.Run(tt.release, func(t *testing.T) {
			client := cluster(t, classes(t)...)
			client.Discovery().(*fake.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: tt.release}
			client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return true, tt.stores(a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)), nil
			})
			o := explain.Objects{Driver: "gpu.cleave.dev"}
			askScheduler(t.Context(), client, &o)
			gates := o.Features.Set()
			if !gates.HasAll("DRAAdminAccess", "DRAPrioritizedList") {
				t.Errorf("the allocator has only %v", sets.List(gates))
			}
			if diff := cmp.Diff(tt.gates, strings.Join(sets.List(gates.Delete("DRAAdminAccess", "DRAPrioritizedList")), " ")); diff != "" {
				t.Errorf("gates of the allocator (-want +got):\n%s", diff)
			}
			for class, fits := range tt.fits {
				a := &asker{client: client, namespace: "ml", driver: "gpu.cleave.dev"}
				got, err := explained(t, a, "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: "+class+"}}]}}}", "text")
				if strings.Contains(got.stdout, " fits:\n") != fits || (err == nil) != fits {
					t.Errorf("%s, want a fit: %t; got %v,\n%s", class, fits, err, got.stdout)
				}
				// An API server that keeps counters says nothing of its scheduler: by default, those before 1.36 ignore them.
				if old := tt.release == "v1.35.4"; strings.Contains(got.stdout, "The scheduler of Kubernetes 1.35.4 ignores partitions") != old {
					t.Errorf("%s, want a note on the scheduler: %t; got\n%s", class, old, got.stdout)
				}
			}
		})
	}
}
