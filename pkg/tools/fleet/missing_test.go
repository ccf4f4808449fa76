// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// templated is a ResourceClaimTemplate for devices of a class.
func templated(name, class string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimed("dev", "", class, "").Spec}}
}

// usingClaims is a pod that has claims of templates, "NAME=TEMPLATE", and others, "NAME".
func usingClaims(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, UID: "uid",
		CreationTimestamp: metav1.NewTime(time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC))}}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	for _, claim := range claims {
		of, template, ok := strings.Cut(claim, "=")
		ref := corev1.PodResourceClaim{Name: of, ResourceClaimTemplateName: &template}
		if !ok {
			ref = corev1.PodResourceClaim{Name: of, ResourceClaimName: &of}
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, ref)
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: of})
	}
	return p
}

func limited(hard string) *corev1.ResourceQuota {
	const what = "gpu.cleave.dev.deviceclass.resource.k8s.io/devices"
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "gpus"}}
	q.Spec.Hard = corev1.ResourceList{what: quantity.MustParse(hard)}
	q.Status.Used = corev1.ResourceList{what: quantity.MustParse("0")}
	return q
}

// A pod whose claim is not created, as by a quota, waits like others: with what its template asks for, and why.
func TestSource_MissingClaims(t *testing.T) {
	elsewhere := limited("0")
	elsewhere.Namespace, elsewhere.Name = "other", "others"
	bound := usingClaims("bound", "gpu=whole")
	bound.Spec.NodeName = "a"
	deleted := usingClaims("end", "last")
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)}, []string{"kueue.x-k8s.io/managed"}
	one := usingClaims("one", "shared") // its end hides nothing of the other's
	one.DeletionTimestamp, one.Finalizers = deleted.DeletionTimestamp, deleted.Finalizers
	client := clusterOf(t, "l40s", []string{"a"}, templated("whole", "gpu.cleave.dev"), templated("nic", "nic.example.com"), limited("0"), elsewhere, bound,
		usingClaims("web", "gpu=whole"), deleted, usingClaims("card", "nic=nic"), usingClaims("typo", "gpu=hole"), one, usingClaims("two", "shared"))
	s := running(t, client, Config{Pods: true})
	got := map[string]Claim{}
	for _, c := range s.Snapshot().Claims {
		c.Version = 0
		got[c.Key()] = *c
	}
	created := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	want := map[string]Claim{
		"dev/web-gpu-": {Namespace: "dev", Name: "web-gpu-", Created: created, Pods: []string{"web"}, Missing: true, Template: "whole",
			Requests: []Request{{Name: "gpu", Asks: []string{"gpu.cleave.dev"}}}},
		"dev/typo-gpu-": {Namespace: "dev", Name: "typo-gpu-", Created: created, Pods: []string{"typo"}, Missing: true, Template: "hole", Requests: []Request{}},
		"dev/last":      {Namespace: "dev", Name: "last", Created: created, Pods: []string{"end"}, Missing: true, Deleting: true, Requests: []Request{}},
		"dev/shared":    {Namespace: "dev", Name: "shared", Created: created, Pods: []string{"one", "two"}, Missing: true, Requests: []Request{}},
	}
	if diff := cmp.Diff(want, got); diff != "" || s.Snapshot().Totals.Pending != 4 {
		t.Errorf("%d are pending, want 4; claims (-want +got):\n%s", s.Snapshot().Totals.Pending, diff)
	}
	answers, err := s.Explain(t.Context(), []string{"dev/web-gpu-", "dev/typo-gpu-", "dev/shared", "dev/last", "dev/gone-gpu-"})
	if err != nil {
		t.Fatal(err)
	}
	causes := map[string][]string{}
	for key, e := range answers {
		for _, c := range e.Causes {
			causes[key+": "+e.Subject+" "+string(e.State)] = append(causes[key+": "+e.Subject+" "+string(e.State)], c.Message)
		}
	}
	if diff := cmp.Diff(map[string][]string{
		"dev/web-gpu-: Pod dev/web waits": {
			"ResourceQuota gpus allows 0 of gpu.cleave.dev.deviceclass.resource.k8s.io/devices, 0 are used, and 1 more are requested",
			"the claim was not created from ResourceClaimTemplate whole"},
		"dev/typo-gpu-: Pod dev/typo refused": {"ResourceClaimTemplate hole does not exist in the pod's namespace"},
		"dev/shared: Pod dev/two refused":     {"ResourceClaim shared does not exist"},
		"dev/last: Pod dev/end refused":       {"it is being deleted since 2026-11-22 09:00 UTC, and kept by its finalizers kueue.x-k8s.io/managed: no scheduler looks at it"},
	}, causes); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}
}

// Rows come and go with what they are made of, and what no row shows makes a new snapshot, for which claims are explained anew.
func TestSource_MissingClaimsChange(t *testing.T) {
	client := clusterOf(t, "l40s", []string{"a"}, usingClaims("web", "gpu=whole"), limited("0"))
	s := running(t, client, Config{Pods: true})
	keys := func(s *Snapshot) string {
		var all []string
		for _, c := range s.Claims {
			asks := ""
			if len(c.Requests) > 0 {
				asks = " " + c.Requests[0].Asks[0]
			}
			all = append(all, c.Name+asks)
		}
		return strings.Join(all, ", ")
	}
	is := func(want string) func(*Snapshot) bool { return func(s *Snapshot) bool { return keys(s) == want } }
	until(t, s, is("web-gpu-"))
	templates, pods := client.ResourceV1().ResourceClaimTemplates("dev"), client.CoreV1().Pods("dev")
	if _, err := templates.Create(t.Context(), templated("whole", "gpu.cleave.dev"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := until(t, s, is("web-gpu- gpu.cleave.dev")).Version
	if _, err := client.CoreV1().ResourceQuotas("dev").Update(t.Context(), limited("1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, func(s *Snapshot) bool { return s.Version > before })
	answers, err := s.Explain(t.Context(), []string{"dev/web-gpu-"})
	if err != nil || len(answers["dev/web-gpu-"].Causes) != 1 || answers["dev/web-gpu-"].Causes[0].Kind != explain.NotCreated {
		t.Errorf("the quota is lifted: got %+v, %v", answers, err)
	}
	name := "web-gpu-x7k2p"
	if _, err := client.ResourceV1().ResourceClaims("dev").Create(t.Context(), claimed("dev", name, "gpu.cleave.dev", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	served := usingClaims("web", "gpu=whole")
	served.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	if _, err := pods.Update(t.Context(), served, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, is(name+" gpu.cleave.dev"))
	if err := client.ResourceV1().ResourceClaims("dev").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, is(name))
	if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, s, is(""))
}

// What no row shows makes a new snapshot, too, where it changes why a claim waits.
func TestSource_ReasonsChange(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, client *fake.Clientset, pod *corev1.Pod) error{
		"gate": func(ctx context.Context, client *fake.Clientset, pod *corev1.Pod) error {
			pod.Spec.SchedulingGates = nil
			_, err := client.CoreV1().Pods("dev").Update(ctx, pod, metav1.UpdateOptions{})
			return err
		},
		"condition": func(ctx context.Context, client *fake.Clientset, pod *corev1.Pod) error {
			pod.Status.Conditions[0].Message = "0/1 nodes are available: 1 Insufficient cpu."
			_, err := client.CoreV1().Pods("dev").Update(ctx, pod, metav1.UpdateOptions{})
			return err
		},
		"class": func(ctx context.Context, client *fake.Clientset, _ *corev1.Pod) error {
			_, err := client.ResourceV1().DeviceClasses().Create(ctx, classOf("new.example.com", "nic.example.com"), metav1.CreateOptions{})
			return err
		},
		"label of a node": func(ctx context.Context, client *fake.Clientset, _ *corev1.Pod) error {
			node := machineOf("a")
			node.Labels, node.ResourceVersion = map[string]string{"pool": "gpu"}, "99"
			_, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		},
		"device plugin": func(ctx context.Context, client *fake.Clientset, _ *corev1.Pod) error {
			node := machineOf("a")
			node.Status.Allocatable, node.ResourceVersion = corev1.ResourceList{"nvidia.com/gpu": quantity.MustParse("1")}, "99"
			_, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := usingClaims("web", "shared")
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			client := clusterOf(t, "l40s", []string{"a"}, claimed("dev", "shared", "gpu.cleave.dev", ""), pod)
			s := running(t, client, Config{Pods: true})
			before := s.Snapshot().Version
			changed := pod.DeepCopy()
			changed.ResourceVersion = "99"
			if err := change(t.Context(), client, changed); err != nil {
				t.Fatal(err)
			}
			until(t, s, func(s *Snapshot) bool { return s.Version > before })
		})
	}
}

// Without the right to read templates, it is not known whom a claim concerns that is not created, nor what its pod waits for.
func TestSource_TemplatesForbidden(t *testing.T) {
	both := usingClaims("both", "gpu=whole", "there")
	both.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": quantity.MustParse("1")}
	client := extendedCluster(t, usingClaims("web", "gpu=whole", "shared"), both)
	for _, o := range []runtime.Object{templated("whole", "gpu.cleave.dev"), claimed("dev", "there", "gpu.cleave.dev", "")} {
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	forbid(client, "resourceclaimtemplates")
	forbid(client, "resourcequotas")
	s := running(t, client, Config{Pods: true})
	shot := s.Snapshot()
	var got []string
	for _, c := range shot.Claims {
		got = append(got, c.Name)
	}
	if diff := cmp.Diff([]string{"both-extended-resources", "shared", "there"}, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	for i, want := range []string{"Pods whose claims are not created", "Pending claims are explained without ResourceQuotas"} {
		if len(shot.Notices) != 2 || !strings.HasPrefix(shot.Notices[i], want) {
			t.Errorf("notices %q, want %q", shot.Notices, want)
		}
	}
	answers, err := s.Explain(t.Context(), []string{"dev/shared", "dev/there", "dev/both-extended-resources"})
	if err != nil {
		t.Fatal(err)
	}
	if e := answers["dev/shared"]; e.Subject != "Pod dev/web" || len(e.Causes) != 1 || e.Causes[0].Kind != explain.ClaimMissing {
		t.Errorf("a claim that does not exist: got %+v", e)
	}
	if e := answers["dev/there"]; e.Subject != "ResourceClaim dev/there" || e.State != explain.Fits {
		t.Errorf("a claim whose pod waits for more: got %+v", e)
	}
	// A pod with extended resources has its other claims, too.
	if e := answers["dev/both-extended-resources"]; e.State != explain.Fits || len(e.Requests) != 2 {
		t.Errorf("extended resources of a pod with claims: got %+v", e)
	}
}
