// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// bed is a cluster whose claims the scheduler's own allocator allocates.
type bed struct {
	testing.TB
	o      Objects
	rules  []v1alpha1.Rule // of the policy of nodes that are added
	slices []*resourceapi.ResourceSlice
	pods   []*corev1.Pod
	nodes  map[string]*allocator.Node
	// gpus counts GPUs, gpuOf is that of a device, "pool/name".
	gpus  int
	gpuOf map[string]string
}

func newBed(t testing.TB, model string, names ...string) *bed {
	t.Helper()
	b := &bed{TB: t, o: Objects{Driver: v1alpha1.Group}, nodes: map[string]*allocator.Node{}, gpuOf: map[string]string{}}
	var err error
	if b.o.Classes, err = manifests.Classes(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b.addNode(model, name)
	}
	return b
}

// addNode adds a node that offers all tiers, unless rules say otherwise.
func (b *bed) addNode(model, name string) {
	b.Helper()
	inventory, err := models.Load(model)
	if err != nil {
		b.Fatal(err)
	}
	list := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{Rules: b.rules}, inventory, policy.Capabilities{}), v1alpha1.Group, name)
	var published []*resourceapi.ResourceSlice
	for i := range list.Items {
		published = append(published, &list.Items[i])
		for _, d := range list.Items[i].Spec.Devices {
			b.gpuOf[name+"/"+d.Name] = name + "/" + d.ConsumesCounters[0].CounterSet
		}
	}
	b.gpus += len(inventory.GPUs)
	b.slices = append(b.slices, published...)
	if b.nodes[name], err = allocator.NewNode(published, b.o.Classes); err != nil {
		b.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	b.o.Nodes = append(b.o.Nodes, node)
}

// pod adds a pod of a Deployment, and its claim for devices of a class. It is nil where the node has no room.
func (b *bed) pod(name, node, class string, count int64, change ...func(*corev1.Pod, *resourceapi.ResourceClaim)) *corev1.Pod {
	b.Helper()
	result, err := b.nodes[node].AllocateFromClass(b.Context(), name, class, count)
	if err != nil {
		return nil
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ml", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": name, "pod-template-hash": "7c9f"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name + "-7c9f", UID: "rs", Controller: new(true)}},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}
	p.Spec.Tolerations = defaultTolerations()
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	p.Status.Phase = corev1.PodRunning
	claim := allocator.NewClaim(name, class, count)
	claim.Namespace = p.Namespace
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID, Controller: new(true)}}
	claim.Status.Allocation = &result
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	for _, c := range change {
		c(p, claim)
	}
	b.pods, b.o.Claims = append(b.pods, p), append(b.o.Claims, claim)
	return p
}

// defaultTolerations are those that the API server gives to pods by default, anew for each.
func defaultTolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
	}
}

// end ends a pod: its devices are free.
func (b *bed) end(at int) {
	p := b.pods[at]
	b.nodes[p.Spec.NodeName].Release(*b.o.Claims[at].Status.Allocation)
	b.pods = append(b.pods[:at:at], b.pods[at+1:]...)
	b.o.Claims = append(b.o.Claims[:at:at], b.o.Claims[at+1:]...)
}

// cluster collects all there is.
func (b *bed) cluster() *Cluster {
	c := NewCluster(b.o)
	for _, s := range b.slices {
		c.AddSlice(s)
	}
	for _, p := range b.pods {
		c.AddPod(p)
	}
	return c
}

func (b *bed) advise() *Advice {
	b.Helper()
	a, err := b.cluster().Advise(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if len(a.Problems) > 0 {
		b.Errorf("problems: %q", a.Problems)
	}
	return a
}

// claim is that of a pod.
func (b *bed) claim(pod string) *resourceapi.ResourceClaim {
	b.Helper()
	for _, c := range b.o.Claims {
		if c.Name == pod {
			return c
		}
	}
	b.Fatalf("there is no claim %s", pod)
	return nil
}

func nodeNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("gpu-%d", i+1))
	}
	return names
}

func devicesOf(r *resourceapi.AllocationResult) (names []string) {
	for _, d := range r.Devices.Results {
		names = append(names, d.Device)
	}
	return names
}
