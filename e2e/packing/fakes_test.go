// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// readFile is the content of a file.
func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}

// model is the inventory of a node of a model, with the MIG mode of an admin who wants partitions.
func model(t *testing.T, name string) *policy.Node {
	t.Helper()
	node, err := Inventory(t.Context(), name)
	must(t, err)
	for i := range node.GPUs {
		node.GPUs[i].MIG.Enabled = node.GPUs[i].MIG.Capable
	}
	return node
}

// offeredNode is a node of a model whose GPUs offer what the default policy says, with MPS; rules may say otherwise.
func offeredNode(t *testing.T, name string, rules ...v1alpha1.Rule) *policy.Node {
	t.Helper()
	return offered(model(t, name), rules...)
}

// offered is an inventory whose GPUs offer what rules say, or the default policy.
func offered(inventory *policy.Node, rules ...v1alpha1.Rule) *policy.Node {
	return policy.Apply(&v1alpha1.NodePolicy{Rules: rules}, inventory.Node, policy.Capabilities{})
}

// boardNode is a node of two GPUs of a board, which no node model may have.
func boardNode(t *testing.T, name string) *policy.Node {
	t.Helper()
	board, err := sim.FindBoard(name)
	must(t, err)
	node := &policy.Node{Node: &gpu.Node{}}
	for i := range 2 {
		memory := board.MemoryMiB << 20
		g := gpu.GPU{
			PCI: gpu.PCIAddress{Bus: uint8(0x10 + i)}, UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i,
			ProductName: board.Product, Memory: &memory,
			ComputeCapability: &gpu.Version{Major: board.ComputeCapability[0], Minor: board.ComputeCapability[1]},
		}
		if board.MIG != nil {
			g.MIG = gpu.MIG{Capable: true, NeedsReset: board.MIG.ModeNeedsReset, Enabled: true, Slices: board.MIG.Slices}
			for j := range board.MIG.Profiles {
				p := board.MIG.Profiles[j].Info()
				p.Name, p.Placements = board.MIG.Profiles[j].Name, board.MIG.Profiles[j].Placements()
				g.MIG.Profiles = append(g.MIG.Profiles, p)
			}
			gpu.SortProfiles(g.MIG.Profiles)
		}
		node.GPUs = append(node.GPUs, g)
	}
	return node
}

// cluster is a node with the DeviceClasses of the manifests.
type cluster struct {
	*Node
	t         *testing.T
	slices    []*resourceapi.ResourceSlice
	class     allocator.Classes
	inventory *policy.Node
	claims    int
}

func newCluster(t *testing.T, inventory *policy.Node) *cluster {
	t.Helper()
	return clusterOf(t, inventory, Cleave(inventory), manifestClasses(t))
}

// clusterOf is a node that publishes slices, with DeviceClasses.
func clusterOf(t *testing.T, inventory *policy.Node, published []*resourceapi.ResourceSlice, classes allocator.Classes) *cluster {
	t.Helper()
	node, err := NewNode(published, classes)
	must(t, err)
	return &cluster{Node: node, t: t, slices: published, class: classes, inventory: inventory}
}

// addCards adds the network cards of another driver, each under the PCIe root complex of a GPU.
func (c *cluster) addCards(gpus ...int) {
	const driver = "nic.example.com"
	pool := resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1}
	cards := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: c.slices[0].Spec.NodeName, Pool: pool}}
	cards.Name = "cards"
	for _, i := range gpus {
		root := c.inventory.GPUs[i].PCIeRoot()
		cards.Spec.Devices = append(cards.Spec.Devices, resourceapi.Device{
			Name:       fmt.Sprintf("nic-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &root}},
		})
	}
	class := &resourceapi.DeviceClass{}
	class.Name = driver
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}
	*c = *clusterOf(c.t, c.inventory, append(c.slices, cards), append(c.class, class))
}

// try allocates claims and returns what was allocated, or the error.
func (c *cluster) try(claims ...*resourceapi.ResourceClaim) (devices []string, release func(), err error) {
	results, err := c.Allocate(c.t.Context(), claims...)
	for _, r := range results {
		for _, d := range r.Devices.Results {
			devices = append(devices, d.Device)
		}
	}
	return devices, func() { c.Release(results...) }, err
}

// get allocates one device of a class, which must fit.
func (c *cluster) get(class string) (device string, release func()) {
	c.t.Helper()
	c.claims++
	devices, release, err := c.try(allocator.NewClaim(fmt.Sprintf("claim-%d", c.claims), class, 1))
	if err != nil {
		c.t.Fatalf("claim %d, class %s: %v", c.claims, class, err)
	}
	return devices[0], release
}

func (c *cluster) parent(device string) int {
	c.t.Helper()
	i := slices.IndexFunc(c.inventory.GPUs, func(g gpu.GPU) bool { return strings.HasPrefix(device, g.PCI.DeviceName()) })
	if i < 0 {
		c.t.Fatalf("device %s is of no GPU", device)
	}
	return i
}

func (c *cluster) text(device, attribute string) string {
	c.t.Helper()
	d := c.Device(device)
	if d == nil {
		c.t.Fatalf("device %s is not published", device)
	}
	if v := d.Attributes[resourceapi.QualifiedName(attribute)].StringValue; v != nil {
		return *v
	}
	return ""
}

// podClaims are the claims of each pod of a manifest, in order, as the cluster makes them: from templates, by name, and
// from extended resources.
func podClaims(t *testing.T, objects []runtime.Object, deviceClasses []*resourceapi.DeviceClass) (pods []*corev1.Pod, claims map[string][]*resourceapi.ResourceClaim) {
	t.Helper()
	specs := map[string]resourceapi.ResourceClaimSpec{}
	for _, o := range objects {
		switch o := o.(type) {
		case *resourceapi.ResourceClaimTemplate:
			specs["template/"+o.Name] = o.Spec.Spec
		case *resourceapi.ResourceClaim:
			specs["claim/"+o.Name] = o.Spec
		case *corev1.Pod:
			pods = append(pods, o)
		case *corev1.Namespace, *corev1.ResourceQuota:
		default:
			t.Fatalf("%T has no place in an example", o)
		}
	}
	claims = map[string][]*resourceapi.ResourceClaim{}
	for _, pod := range pods {
		for _, r := range pod.Spec.ResourceClaims {
			var key, uid string
			if r.ResourceClaimTemplateName != nil {
				key, uid = "template/"+*r.ResourceClaimTemplateName, pod.Name+"-"+r.Name
			} else {
				key, uid = "claim/"+*r.ResourceClaimName, *r.ResourceClaimName
			}
			spec, ok := specs[key]
			if !ok {
				t.Fatalf("pod %s refers to %s, which is not there", pod.Name, key)
			}
			claims[pod.Name] = append(claims[pod.Name], newClaimOf(uid, spec))
		}
		if spec := extended(pod, deviceClasses); len(spec.Devices.Requests) > 0 {
			claims[pod.Name] = append(claims[pod.Name], newClaimOf(pod.Name+"-extended-resources", spec))
		}
	}
	return pods, claims
}

// allocateAll allocates the claims of the pods of a manifest and returns what each gets, in order of the pods. A claim that a pod before
// has is looked at, and not allocated again.
func (c *cluster) allocateAll(t *testing.T, objects []runtime.Object, looks ...func(*testing.T, *resourceapi.ResourceClaim)) (pods []string, got map[string][]string) {
	t.Helper()
	list, claims := podClaims(t, objects, c.class)
	got, done := map[string][]string{}, map[string]bool{}
	for _, pod := range list {
		checkPod(t, pod, claims[pod.Name])
		pods, got[pod.Name] = append(pods, pod.Name), nil
		for _, claim := range claims[pod.Name] {
			checkExpressions(t, claim)
			for _, look := range looks {
				look(t, claim)
			}
			if done[claim.Name] {
				continue
			}
			done[claim.Name] = true
			devices, _, err := c.try(claim)
			if err != nil {
				t.Fatalf("pod %s: %v", pod.Name, err)
			}
			for _, d := range devices {
				got[pod.Name] = append(got[pod.Name], describe(c, d))
			}
		}
	}
	return pods, got
}

// newClaimOf creates a claim with the API's defaults.
func newClaimOf(uid string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{Spec: *spec.DeepCopy()}
	claim.Name, claim.UID = uid, types.UID(uid)
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil && r.Exactly.AllocationMode == "" {
			r.Exactly.AllocationMode, r.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, max(1, r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			if s := &r.FirstAvailable[j]; s.AllocationMode == "" {
				s.AllocationMode, s.Count = resourceapi.DeviceAllocationModeExactCount, max(1, s.Count)
			}
		}
	}
	return claim
}

// extended is the claim that the scheduler makes for a pod's extended resources: a request for each, by class.
func extended(pod *corev1.Pod, deviceClasses []*resourceapi.DeviceClass) (spec resourceapi.ResourceClaimSpec) {
	for i, c := range pod.Spec.Containers {
		for _, class := range deviceClasses {
			if class.Spec.ExtendedResourceName == nil {
				continue
			}
			n, ok := c.Resources.Limits[corev1.ResourceName(*class.Spec.ExtendedResourceName)]
			if !ok {
				continue
			}
			spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
				Name:    fmt.Sprintf("container-%d-request-0", i),
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name, Count: n.Value()},
			})
		}
	}
	return spec
}
