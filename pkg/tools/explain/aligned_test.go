// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
	"github.com/cleave-dra/cleave/pkg/tools/shortform"
)

// 1,000 random short forms on random topologies of GPUs, CPUs and network cards: the scheduler's allocator gives devices that have in common
// what the form says, and where it gives none explain says why the pod waits.
func TestShortForms_AlignedOrExplained(t *testing.T) {
	const topologies, forms = 50, 20
	random := rand.New(rand.NewPCG(30, 2))
	outcomes := map[string]int{}
	for i := range topologies {
		b := newAlignedBed(t, random, i%3 == 0)
		for range forms {
			text := b.form(random)
			outcomes[b.ask(text)]++
			if len(b.Claims) > 0 && random.IntN(2) == 0 {
				at := random.IntN(len(b.Claims))
				b.Claims = slices.Delete(b.Claims, at, at+1)
			}
		}
	}
	t.Logf("outcomes: %v", outcomes)
	if outcomes["timeout"] > topologies {
		t.Errorf("got %v: the search takes too long too often", outcomes)
	}
	for _, outcome := range []string{"aligned", "constraint", "other"} {
		if outcomes[outcome] < topologies {
			t.Errorf("got %v: the test hardly sees %s", outcomes, outcome)
		}
	}
}

// alignedBed is a node with devices of three drivers.
type alignedBed struct {
	*bed
	asked int
}

const alignedNode = "node-1"

// newAlignedBed is a node of eight GPUs on random NUMA nodes and PCIe roots; with all tiers, or whole GPUs alone.
func newAlignedBed(t *testing.T, random *rand.Rand, allTiers bool) *alignedBed {
	t.Helper()
	b := &alignedBed{bed: newBed(t)}
	b.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: alignedNode}}}
	for class, expression := range map[string]string{shortform.CPUClass: "dra.cpu", shortform.NICClass: "dra.net"} {
		c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", expression)}}}
		b.Classes = append(b.Classes, c)
	}
	numas := []int{1, 2, 4, 8}[random.IntN(4)]
	roots := numas * (1 + random.IntN(3))
	gpus, err := models.Load([]string{"hgx-h100", "a100-pcie-nvlink-pairs"}[random.IntN(2)])
	b.must(err)
	for i := range gpus.GPUs {
		g, root := &gpus.GPUs[i], random.IntN(roots)
		g.PCIePath[0], g.NUMANode = rootName(root), new(root%numas)
		if random.IntN(10) == 0 {
			g.NUMANode = nil // as in many virtual machines
		}
	}
	p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}}
	if allTiers {
		p = &v1alpha1.NodePolicy{}
	}
	b.slices = nodeslices.Objects(policy.Apply(p, gpus, policy.Capabilities{}), driver, alignedNode).Items
	b.slices = append(b.slices, cpuSlice(random, numas), nicSlice(random, numas, roots))
	return b
}

func rootName(root int) string { return fmt.Sprintf("pci0000:%02x", 0x10+root) }

func sliceOf(of string, devices ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: of}, Spec: resourceapi.ResourceSliceSpec{Driver: of, NodeName: new(alignedNode),
		Pool: resourceapi.ResourcePool{Name: alignedNode, ResourceSliceCount: 1}, Devices: devices}}
}

// cpuSlice is what dra-driver-cpu publishes with --group-by=numanode (createGroupedCPUDeviceSlices of its pkg/device/builder.go).
func cpuSlice(random *rand.Rand, numas int) resourceapi.ResourceSlice {
	var devices []resourceapi.Device
	for numa := range numas {
		devices = append(devices, resourceapi.Device{Name: fmt.Sprintf("cpudevnuma%03d", numa), AllowMultipleAllocations: new(true),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{shortform.NUMANodeAttribute: {IntValue: new(int64(numa))}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"dra.cpu/cpu": {Value: *resource.NewQuantity(int64(4+random.IntN(60)), resource.DecimalSI)}}})
	}
	return sliceOf("dra.cpu", devices...)
}

// nicSlice is what dranet publishes of PCI devices (addPCIAttributes of its pkg/inventory/db.go).
func nicSlice(random *rand.Rand, numas, roots int) resourceapi.ResourceSlice {
	var devices []resourceapi.Device
	for i := range 2 + random.IntN(8) {
		root := random.IntN(roots)
		devices = append(devices, resourceapi.Device{Name: fmt.Sprintf("pci-0000-%02x-00-0", 0x20+i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			shortform.NUMANodeAttribute: {IntValue: new(int64(root % numas))}, pcieRoot: {StringValue: new(rootName(root))}}})
	}
	return sliceOf("dra.net", devices...)
}

const (
	pcieRoot    = "resource.kubernetes.io/pcieRoot"
	nvlinkGroup = "nvlinkGroup"
)

// form is a random short form.
func (b *alignedBed) form(random *rand.Rand) string {
	parts := []string{fmt.Sprintf("%d gpus", 1+random.IntN(5))}
	switch random.IntN(10) {
	case 0:
		parts[0] = fmt.Sprintf("%d 1g.10gb", 1+random.IntN(2))
	case 1:
		parts[0] = fmt.Sprintf("%d shared", 1+random.IntN(2))
	case 2:
		parts[0] = "1 mps"
	}
	often := func(one, of int, part string) {
		if random.IntN(of) < one {
			parts = append(parts, part)
		}
	}
	often(1, 2, fmt.Sprintf("%d cpus", 1+random.IntN(40)))
	often(1, 2, fmt.Sprintf("%d nics", 1+random.IntN(4)))
	often(2, 3, string(shortform.OneNUMANode))
	often(1, 4, string(shortform.OnePCIeRoot))
	if !strings.Contains(parts[0], "1g") {
		often(1, 4, string(shortform.OneNVLinkDomain))
	}
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return strings.Join(parts, ", ")
}

// ask allocates a form's devices, checks them, and takes them; of those that are refused it checks what explain says. The outcome is
// "aligned", the "constraint" that is in the way, or "other".
func (b *alignedBed) ask(text string) string {
	b.Helper()
	b.asked++
	form, err := shortform.Parse(text, []string{"1g.10gb"})
	b.must(err)
	options := shortform.Options{CPUClass: shortform.CPUClass, NICClass: shortform.NICClass, NUMANode: string(shortform.NUMANodeAttribute)}
	template := form.Template(options)
	c := claim(fmt.Sprint("claim-", b.asked), template.Spec.Spec.Devices.Requests...)
	c.Spec = template.Spec.Spec
	results := b.allocateAll(c)
	if results != nil {
		b.checkAligned(text, form, results)
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
		b.Claims = append(b.Claims, c)
		return "aligned"
	}
	unconditional := *form
	unconditional.Conditions = nil
	free := b.allocateAll(&resourceapi.ResourceClaim{Spec: unconditional.Template(options).Spec.Spec}) != nil
	return b.checkExplained(text, form, c, form.Kind == "gpu" && free)
}

// allocateAll runs the scheduler's allocator.
func (b *alignedBed) allocateAll(c *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	b.Helper()
	state := allocator.NewAllocated()
	for _, held := range b.Claims {
		state.Add(held.Status.Allocation.Devices.Results...)
	}
	var published []*resourceapi.ResourceSlice
	for i := range b.slices {
		published = append(published, &b.slices[i])
	}
	inner, err := structured.NewAllocator(b.Context(), allocator.Features(), state.AllocatedState, b.Classes, published, selectors.CEL)
	b.must(err)
	results, err := inner.Allocate(b.Context(), b.Nodes[0], []*resourceapi.ResourceClaim{c})
	b.must(err)
	if len(results) == 0 {
		return nil
	}
	return results[0].Devices.Results
}

// checkExplained checks that explain refuses the claim with a reason; with a constraint if the devices are there.
func (b *alignedBed) checkExplained(asked string, form *shortform.Form, c *resourceapi.ResourceClaim, constrained bool) string {
	b.Helper()
	e := b.explain(AboutClaim(c))
	found := slices.Concat(e.Causes, e.Limits)
	for _, g := range e.Groups {
		found = append(found, g.Causes...)
	}
	if e.State != Refused || len(found) == 0 {
		b.Fatalf("%s: explain says %s with causes %v", asked, e.State, found)
	}
	outcome := "other"
	for i := range found {
		if found[i].Kind == Timeout {
			return "timeout" // the machine is busy
		}
		if found[i].Message == "" {
			b.Errorf("%s: cause %s says nothing", asked, found[i].Kind)
		}
		if found[i].Kind == Constraint {
			outcome = "constraint"
		}
	}
	if constrained && (outcome != "constraint" || len(form.Conditions) == 0) {
		b.Errorf("%s: its devices are free but for the conditions, and explain says\n%s", asked, text(b.TB, e))
	}
	return outcome
}

// value is an attribute as a text; empty without it.
func value(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	switch a := d.Attributes[name]; {
	case a.StringValue != nil:
		return *a.StringValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	}
	return ""
}

// checkAligned checks that allocated devices have in common what the form says, and are as many as it says.
func (b *alignedBed) checkAligned(text string, form *shortform.Form, results []resourceapi.DeviceRequestAllocationResult) {
	b.Helper()
	count, seen := map[string]int64{}, map[string]map[string]bool{"numa": {}, "root": {}, "group": {}}
	for _, r := range results {
		count[r.Driver]++
		for i := range b.slices {
			at := slices.IndexFunc(b.slices[i].Spec.Devices, func(d resourceapi.Device) bool { return b.slices[i].Spec.Driver == r.Driver && d.Name == r.Device })
			if at < 0 {
				continue
			}
			d := &b.slices[i].Spec.Devices[at]
			seen["numa"][value(d, shortform.NUMANodeAttribute)] = true
			if r.Driver != "dra.cpu" {
				seen["root"][value(d, pcieRoot)] = true
			}
			if r.Driver == driver {
				seen["group"][value(d, nvlinkGroup)] = true
			}
		}
		if q := r.ConsumedCapacity["dra.cpu/cpu"]; r.Driver == "dra.cpu" && q.Value() != form.CPUs {
			b.Errorf("%s: %s CPUs", text, q.String())
		}
	}
	if count[driver] != form.Devices || count["dra.net"] != form.NICs || count["dra.cpu"] != min(form.CPUs, 1) {
		b.Errorf("%s: got %v devices", text, count)
	}
	for of, c := range map[string]shortform.Condition{"numa": shortform.OneNUMANode, "root": shortform.OnePCIeRoot, "group": shortform.OneNVLinkDomain} {
		if form.Has(c) && (len(seen[of]) != 1 || seen[of][""]) {
			b.Errorf("%s: the devices have %v of %s", text, seen[of], of)
		}
	}
}
