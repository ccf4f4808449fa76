// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

const smallClass = "mig-1g.10gb.cleave.dev"

// smallPod is a pod with a partition, and its claim.
func smallPod(name, node, device, controller string) []runtime.Object {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{{Kind: controller, Name: "owner", UID: types.UID(controller), Controller: new(true)}}}}
	p.Spec.NodeName = node
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	c := claimOn(name, "gpu.cleave.dev", node, device)
	c.Spec = allocator.NewClaim(name, smallClass, 1).Spec
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: new(true)}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	return []runtime.Object{p, c}
}

// scatteredCluster has a partition on each of two nodes.
func scatteredCluster(t *testing.T) *fake.Clientset {
	t.Helper()
	objects := slices.Concat(classes(t), slicesOf(t, "hgx-h100", "gpu.cleave.dev", "node-1", everyTier), slicesOf(t, "hgx-h100", "gpu.cleave.dev", "node-2", everyTier),
		smallPod("stays", "node-1", "gpu-0000-1b-00-0-mig-19-6", "DaemonSet"), smallPod("stray", "node-2", "gpu-0000-1b-00-0-mig-19-6", "StatefulSet"))
	for _, name := range []string{"node-1", "node-2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
		objects = append(objects, node)
	}
	return fake.NewClientset(objects...)
}

func TestRepack_Advice(t *testing.T) {
	client := scatteredCluster(t)
	a, err := repackAdvice(t.Context(), client, "gpu.cleave.dev")
	if err != nil {
		t.Fatal(err)
	}
	want := []repack.Step{{
		Cordon: "node-2", // its GPU is as good for the replacement
		Pods: []repack.Move{{Namespace: "ml", Pod: "stray", UID: "stray", Controller: "StatefulSet/owner",
			From: repack.Place{Node: "node-2", Devices: []string{"gpu-0000-1b-00-0-mig-19-6"}},
			To:   repack.Place{Node: "node-1", Devices: []string{"gpu-0000-1b-00-0-mig-19-5"}}}},
		Frees: []repack.GPU{{Node: "node-2", Name: "gpu-0000-1b-00-0"}},
	}}
	if diff := cmp.Diff(want, a.Steps); diff != "" || len(a.Problems) > 0 || a.WholeNow != 14 || a.WholeThen != 15 {
		t.Errorf("got %+v; steps (-want +got):\n%s", a, diff)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" {
			t.Errorf("%s of %s: advice is to list, no more", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

func TestRepack_Forbidden(t *testing.T) {
	for kind, optional := range map[string]string{
		"pods": "", "nodes": "", "resourceslices": "", "resourceclaims": "", "deviceclasses": "",
		"poddisruptionbudgets": "PodDisruptionBudgets are not considered", "persistentvolumes": "PersistentVolumes are not considered",
		"devicetaintrules": "DeviceTaintRules are not considered",
	} {
		client := scatteredCluster(t)
		client.PrependReactor("list", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "", errors.New("no role allows it"))
		})
		a, err := repackAdvice(t.Context(), client, "gpu.cleave.dev")
		switch {
		case optional == "" && (err == nil || !strings.Contains(err.Error(), kind)):
			t.Errorf("%s: got %v, %v", kind, a, err)
		case optional != "" && (err != nil || len(a.Problems) != 1 || !strings.Contains(a.Problems[0], optional)):
			t.Errorf("%s: got %+v, %v, want the problem %q", kind, a, err, optional)
		}
		if _, err := readRepack(t.Context(), client, "gpu.cleave.dev", true); err == nil || optional != "" && !errors.Is(err, errUnread) {
			t.Errorf("%s: got %v, want an error for who restarts pods", kind, err)
		}
	}
}
