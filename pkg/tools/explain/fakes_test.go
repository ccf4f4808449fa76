// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

const driver = "gpu.cleave.dev"

// bed is a cluster of model nodes.
type bed struct {
	testing.TB
	Objects
	slices []resourceapi.ResourceSlice
}

func newBed(t testing.TB, models ...string) *bed {
	t.Helper()
	b := &bed{TB: t, Objects: Objects{Driver: driver}}
	data, err := manifests.Files.ReadFile("deviceclasses.yaml")
	b.must(err)
	for _, document := range strings.Split(string(data), "\n---\n") {
		class := &resourceapi.DeviceClass{}
		b.must(yaml.Unmarshal([]byte(document), class))
		b.Classes = append(b.Classes, class)
	}
	for i, model := range models {
		b.node(fmt.Sprintf("node-%d", i+1), model, &v1alpha1.NodePolicy{})
	}
	return b
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// node adds a node; of no model one without GPUs.
func (b *bed) node(name, model string, p *v1alpha1.NodePolicy) *corev1.Node {
	b.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.Nodes = append(b.Nodes, n)
	if model != "" {
		gpus, err := models.Load(model)
		b.must(err)
		b.slices = append(b.slices, nodeslices.Objects(policy.Apply(p, gpus, policy.Capabilities{}), driver, name).Items...)
	}
	return n
}

// device is a published device.
func (b *bed) device(node, name string) *resourceapi.Device {
	b.Helper()
	for i := range b.slices {
		for j := range b.slices[i].Spec.Devices {
			if d := &b.slices[i].Spec.Devices[j]; d.Name == name && *b.slices[i].Spec.NodeName == node {
				return d
			}
		}
	}
	b.Fatalf("%s has no device %s", node, name)
	return nil
}

func claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}
}

// asks is a request for devices of a class, with amounts such as "memory=20Gi".
func asks(class string, count int64, amounts ...string) resourceapi.DeviceRequest {
	e := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count, AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	for _, a := range amounts {
		name, value, _ := strings.Cut(a, "=")
		if e.Capacity == nil {
			e.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		e.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(value)
	}
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: e}
}

// selecting adds selectors to a request.
func selecting(r resourceapi.DeviceRequest, expressions ...string) resourceapi.DeviceRequest {
	for _, e := range expressions {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return r
}

// try runs the scheduler's allocator on a node, with nothing left out.
func (b *bed) try(node string, claims ...*resourceapi.ResourceClaim) []resourceapi.AllocationResult {
	b.Helper()
	uses := usesOf(nil, b.Claims...)
	var published []*resourceapi.ResourceSlice
	for i := range b.slices {
		if *b.slices[i].Spec.NodeName == node {
			published = append(published, &b.slices[i])
		}
	}
	id := resourcepool.ID{Driver: driver, Pool: node}
	state := (&site{pools: []*pool{{Pool: &resourcepool.Pool{ID: id}, uses: uses[id]}}}).state()
	inner, err := structured.NewAllocator(b.Context(), allocator.Features(), state, b.Classes, published, selectors.CEL)
	b.must(err)
	results, err := inner.Allocate(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, claims)
	b.must(err)
	return results
}

// allocate allocates a claim on a node, used by a pod of its name.
func (b *bed) allocate(node, name string, r resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	b.Helper()
	c := claim(name, r)
	results := b.try(node, c)
	if len(results) != 1 {
		b.Fatalf("%s does not fit %s", name, node)
	}
	c.Status.Allocation = &results[0]
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-pod"}}
	b.Claims = append(b.Claims, c)
	return c
}

func (b *bed) cluster(q *Question) *Cluster {
	c := NewCluster(b.Objects, q)
	for i := range b.slices {
		c.AddSlice(&b.slices[i])
	}
	return c
}

// explain answers a question.
func (b *bed) explain(q *Question) *Explanation {
	b.Helper()
	e, err := b.cluster(q).Explain(b.Context(), q)
	b.must(err)
	return e
}

// checkGolden compares an explanation with a file of testdata.
func checkGolden(t *testing.T, name string, e *Explanation) {
	t.Helper()
	golden.Check(t, filepath.Join("testdata", name+".txt"), text(t, e))
}

func text(t testing.TB, e *Explanation) string {
	t.Helper()
	var b bytes.Buffer
	if err := e.Print(&b, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
