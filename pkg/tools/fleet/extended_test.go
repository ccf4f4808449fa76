// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// requesting is a pod whose only container requests extended resources.
func requesting(name string, requests map[corev1.ResourceName]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: "uid"}}
	list := corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("2")}
	for resourceName, amount := range requests {
		list[resourceName] = quantity.MustParse(amount)
	}
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "secret", Resources: corev1.ResourceRequirements{Requests: list}}}
	return p
}

// extendedCluster has a class that serves an extended resource.
func extendedCluster(t *testing.T, pods ...*corev1.Pod) *fake.Clientset {
	t.Helper()
	class := classOf("whole.example.com", testDriver)
	class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
	client := clusterOf(t, "l40s", []string{"a"}, class)
	for _, p := range pods {
		if _, err := client.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

func TestSource_ExtendedResources(t *testing.T) {
	client := extendedCluster(t,
		requesting("train", map[corev1.ResourceName]string{"nvidia.com/gpu": "2", "example.com/nic": "1"}),
		requesting("by-class", map[corev1.ResourceName]string{"deviceclass.resource.kubernetes.io/gpu.cleave.dev": "1"}),
		requesting("nic", map[corev1.ResourceName]string{"deviceclass.resource.kubernetes.io/nic.example.com": "1"}),
		requesting("cpu", nil))
	s := running(t, client, Config{Pods: true})
	got := map[string]string{}
	for _, c := range s.Snapshot().Claims {
		got[c.Key()] = c.Requests[0].Name + " " + c.Requests[0].Asks[0]
		if !c.ExtendedResources || c.Allocated || !slices.Equal(c.Pods, []string{strings.TrimSuffix(c.Name, extendedSuffix)}) {
			t.Errorf("got %+v", c)
		}
	}
	want := map[string]string{
		"dev/by-class-extended-resources": "main deviceclass.resource.kubernetes.io/gpu.cleave.dev", "dev/train-extended-resources": "main 2x nvidia.com/gpu",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if s.Snapshot().Totals.Pending != 2 {
		t.Errorf("%d claims are pending, want 2", s.Snapshot().Totals.Pending)
	}
	if data := s.watches.extendedPod("dev/train" + extendedSuffix).String(); strings.Contains(data, "secret") {
		t.Errorf("more is kept of a pod than it needs: %s", data)
	}
	pods := client.CoreV1().Pods("dev")
	bound := requesting("train", map[corev1.ResourceName]string{"nvidia.com/gpu": "2"})
	bound.Spec.NodeName = "a"
	if _, err := pods.Update(t.Context(), bound, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Totals.Pending == 1 })
	if err := pods.Delete(t.Context(), "by-class", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Totals.Pending == 0 })
}

// A pending claim names the pods that wait for it, as they come and go.
func TestSource_PodsOfPendingClaims(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"}, claimed("dev", "shared", "gpu.cleave.dev", ""))
	s := running(t, client, Config{Pods: true})
	pods := client.CoreV1().Pods("dev")
	for _, name := range []string{"b", "a"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name}}
		claim := "shared"
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, s, func(s *Snapshot) bool { return slices.Equal(s.Claims[0].Pods, []string{"a", "b"}) })
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return slices.Equal(s.Claims[0].Pods, []string{"a"}) })
}

func TestSource_ExtendedResourcesExplained(t *testing.T) {
	picky := requesting("picky", map[corev1.ResourceName]string{"nvidia.com/gpu": "1", "example.com/nic": "1"})
	picky.Spec.NodeSelector = map[string]string{"zone": "elsewhere"}
	client := extendedCluster(t, picky,
		requesting("many", map[corev1.ResourceName]string{"nvidia.com/gpu": "5"}), requesting("fits", map[corev1.ResourceName]string{"nvidia.com/gpu": "1"}))
	node := machineOf("a")
	node.Status.Allocatable = corev1.ResourceList{"example.com/nic": quantity.MustParse("1"), "cpu": quantity.MustParse("8")}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := running(t, client, Config{Pods: true})
	got, err := s.Explain(t.Context(), []string{"dev/picky-extended-resources", "dev/many-extended-resources", "dev/fits-extended-resources"})
	if err != nil {
		t.Fatal(err)
	}
	if e := got["dev/fits-extended-resources"]; e.State != explain.Fits {
		t.Errorf("got %+v, want a pod that fits", e)
	}
	for key, want := range map[string]explain.Kind{"dev/picky-extended-resources": explain.NodeAffinity, "dev/many-extended-resources": explain.Count} {
		e := got[key]
		if e.State != explain.Refused || len(e.Causes) > 0 || len(e.Groups) != 1 ||
			!slices.ContainsFunc(e.Groups[0].Causes, func(c explain.Cause) bool { return c.Kind == want }) {
			t.Errorf("%s: got %+v, want %s", key, e, want)
		}
	}
}

// The dashboard explains as the command does: a claim with its pod, and a resource that a device plugin serves.
func TestSource_ExplainPods(t *testing.T) {
	served := machineOf("a")
	served.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": quantity.MustParse("8")}
	pod := func(name string, claims ...string) *corev1.Pod {
		p := requesting(name, nil)
		p.Spec.NodeSelector = map[string]string{"zone": "elsewhere"}
		p.CreationTimestamp, p.Spec.SchedulerName = metav1.NewTime(time.Now().Add(-time.Hour)), "nobody"
		for _, claim := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
			p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: claim})
		}
		return p
	}
	unborn := pod("unborn", "third")
	unborn.Spec.ResourceClaims = append(unborn.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "new", ResourceClaimTemplateName: new("t")})
	member := pod("one", "first") // with a claim of its PodGroup
	member.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
	member.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "first", ResourceClaimTemplateName: new("t")}
	member.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "first", ResourceClaimName: new("first")}}
	client := extendedCluster(t, requesting("plugin", map[corev1.ResourceName]string{"nvidia.com/gpu": "1"}),
		member, pod("two", "second"), pod("two-more", "second"), unborn)
	for _, name := range []string{"first", "second", "third"} {
		c := claimed("dev", name, "gpu.cleave.dev", "")
		if name == "first" {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup", Name: "gang", UID: "group", Controller: new(true)}}
		}
		if _, err := client.ResourceV1().ResourceClaims("dev").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), served, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := running(t, client, Config{Pods: true})
	got, err := s.Explain(t.Context(), []string{"dev/first", "dev/second", "dev/third", "dev/plugin-extended-resources"})
	if err != nil {
		t.Fatal(err)
	}
	if e := got["dev/plugin-extended-resources"]; e.State != explain.Refused || e.Groups[0].Causes[0].Kind != explain.DevicePlugin {
		t.Errorf("a resource of a device plugin: got %+v", e)
	}
	if e := got["dev/first"]; e.Subject != "Pod dev/one" || e.State != explain.Refused || e.Outlook != explain.Never || len(e.Notes) > 0 ||
		e.Causes[0].Kind != explain.NoScheduler || e.Groups[0].Causes[0].Kind != explain.NodeAffinity {
		t.Errorf("a claim with a pod: got %+v", e)
	}
	if e := got["dev/second"]; e.Subject != "ResourceClaim dev/second" || e.State != explain.Fits {
		t.Errorf("a claim of several pods: got %+v", e)
	}
	if e := got["dev/third"]; e.Subject != "Pod dev/unborn" || e.Causes[0].Kind != explain.TemplateMissing {
		t.Errorf("a claim of a pod whose other claim cannot be created: got %+v", e)
	}
}

// Without the right to list Nodes, their labels are not known: none of them is excluded by these.
func TestSource_ExplainNodesForbidden(t *testing.T) {
	pod := usingClaims("web", "shared")
	pod.Spec.NodeSelector = map[string]string{"pool": "gpu"}
	client := clusterOf(t, "l40s", []string{"a"}, claimed("dev", "shared", "gpu.cleave.dev", ""), pod)
	forbid(client, "nodes")
	s := running(t, client, Config{Pods: true})
	got, err := s.Explain(t.Context(), []string{"dev/shared"})
	if err != nil {
		t.Fatal(err)
	}
	if e := got["dev/shared"]; e.Subject != "Pod dev/web" || len(e.Groups) != 1 || !e.Groups[0].Fits || e.Outlook != "" {
		t.Errorf("got %+v, want a node that fits", e)
	}
	if notices := s.Snapshot().Notices; len(notices) != 1 || !strings.Contains(notices[0], "claims are explained without taints, node selectors") {
		t.Errorf("notices %q", notices)
	}
}

func TestNewSource_PodsForbidden(t *testing.T) {
	client := extendedCluster(t)
	forbid(client, "pods")
	if got := running(t, client, Config{}).Snapshot().Notices; len(got) != 0 {
		t.Errorf("pods are not to be watched: notices %q", got)
	}
	if got := running(t, client, Config{Pods: true}).Snapshot().Notices; len(got) != 1 || !strings.Contains(got[0], "Pending pods with extended resources") {
		t.Errorf("notices %q", got)
	}
}

func TestSource_Fragmentation(t *testing.T) {
	client := clusterOf(t, "hgx-h100", []string{"a", "b"}, claimed("dev", "small", "gpu.cleave.dev", "a", gpu0+"-mig-19-0"),
		claimed("dev", "train", "gpu.cleave.dev", "b", gpu0))
	s := running(t, client, Config{})
	shot := s.Snapshot()
	// 6 of 7 units of a GPU are left, and 7 whole GPUs on each node.
	want := []float64{6.0 / (6 + 7*7), 0, 6.0 / (6 + 14*7)}
	if diff := cmp.Diff(want, []float64{shot.Nodes[0].Fragmentation, shot.Nodes[1].Fragmentation, shot.Totals.Fragmentation}); diff != "" {
		t.Errorf("fragmentation of a, b and all (-want +got):\n%s", diff)
	}
	cordoned := machineOf("a")
	cordoned.Spec.Unschedulable, cordoned.ResourceVersion = true, "99"
	if _, err := client.CoreV1().Nodes().Update(t.Context(), cordoned, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Nodes[0].Fragmentation == 0 && s.Totals.Fragmentation == 0 })
}
