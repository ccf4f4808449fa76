// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Limits of the resource API (k8s.io/api/resource/v1): devices of a slice that use counters, and counter sets of a
// slice.
const (
	maxDevices     = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	maxCounterSets = resourceapi.ResourceSliceMaxCounterSets
)

// TaintOccupied marks a device that cannot be allocated though no claim of the driver's name has it: an unmanaged partition is in its
// place, a released one is still in use, processes of an ended claim are left, a claim of the driver's other name has it, the MIG mode is
// being changed, or the driver has refused to create the partition.
const TaintOccupied = "gpu.cleave.dev/occupied"

// TaintNoMPS marks a GPU shared by MPS while no supervisor is available to start a server for another claim.
const TaintNoMPS = "gpu.cleave.dev/mps-unavailable"

// TaintWithdrawn marks a device of a tier that the node's policy no longer has, while it is still allocated.
const TaintWithdrawn = "gpu.cleave.dev/withdrawn"

// TaintConflict marks the devices of a partly allocated GPU that another driver also advertises.
const TaintConflict = "gpu.cleave.dev/conflict"

// TaintDraining marks all devices of a node whose NVIDIA driver is being released or is gone.
const TaintDraining = "gpu.cleave.dev/draining"

// TaintReset marks all devices of a GPU that is to be reset, on request.
const TaintReset = "gpu.cleave.dev/reset"

// TaintUnhealthy marks a device whose GPU, or whose part of it, is unhealthy. Its value is the reason.
const TaintUnhealthy = "gpu.cleave.dev/unhealthy"

// TaintIncomplete marks the devices of a GPU that cannot be injected into containers: a device node or file of the driver is
// missing.
const TaintIncomplete = "gpu.cleave.dev/driver-incomplete"

// TaintCordoned marks all devices of a GPU that cleave cordon closes, by DeviceTaintRules; plugins do not set it.
const TaintCordoned = "gpu.cleave.dev/cordoned"

// TaintNotice marks all devices of a node whose machine is about to be taken away or restarted. Its value is which of the two.
const TaintNotice = "gpu.cleave.dev/notice"

// TaintKeys lists the keys of the taints that plugins set.
func TaintKeys() []string {
	return []string{TaintConflict, TaintDraining, TaintIncomplete, TaintNoMPS, TaintNotice, TaintOccupied, TaintReset, TaintUnhealthy,
		TaintWithdrawn}
}

// Taint keeps a device from being allocated. Value may be empty; without an Effect it is NoSchedule. The API server sets the time
// of a taint, and keeps it while key, value and effect stay.
type Taint struct {
	Device, Key, Value string
	Effect             resourceapi.DeviceTaintEffect
}

// api converts the taint for the API.
func (t Taint) api() resourceapi.DeviceTaint {
	effect := t.Effect
	if effect == "" {
		effect = resourceapi.DeviceTaintEffectNoSchedule
	}
	return resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: effect}
}

// View is the part of a publication besides the inventory.
type View struct {
	// Taints of devices, in the order in which they are published.
	Taints []Taint
	// Free reports whether a GPU has no allocations, which orders the whole GPUs; nil: all are free.
	Free func(*gpu.GPU) bool
	// Claims is the number of claims that have a share of a shared GPU or partition, which orders them; nil: none.
	Claims func(gpu.Shape) int
	// Lists publishes attributes that may have several values as lists; it needs the API server's DRAListTypeAttributes.
	Lists bool
	// Compatible publishes the attributes and capacities that manifests written for NVIDIA's DRA driver use.
	Compatible bool
}

// free reports whether a GPU can be allocated whole.
func (v *View) free(node *policy.Node) func(*gpu.GPU) bool {
	return func(g *gpu.GPU) bool {
		name := g.PCI.DeviceName()
		return !node.Offer(g).IsWithdrawn(g.Whole()) &&
			!slices.ContainsFunc(v.Taints, func(t Taint) bool { return t.Device == name && t.Effect != resourceapi.DeviceTaintEffectNone }) &&
			(v.Free == nil || v.Free(g))
	}
}

// WholeGPUs are the names of the devices that are whole GPUs, in their order in this view.
func (v *View) WholeGPUs(node *policy.Node) []string {
	var names []string
	for _, s := range packing.OrderWhole(node.GPUs, node.Shapes, v.free(node)) {
		names = append(names, s.Name())
	}
	return names
}

// Shared are the names of the shared devices, in their order in this view.
func (v *View) Shared(node *policy.Node) []string {
	order := v.order(node)
	var names []string
	for _, s := range slices.Concat(order.Shared, order.SharedPartitions) {
		names = append(names, s.Name())
	}
	return names
}

// order is the order of a node's shapes in this view.
func (v *View) order(node *policy.Node) packing.Order {
	order := packing.OrderShapes(node.GPUs, node.Shapes, v.free(node))
	spread := func(s gpu.Shape) bool {
		sharing := node.Offer(s.GPU).Sharing(s)
		return sharing != nil && sharing.Spread
	}
	order.Shared = packing.OrderShared(order.Shared, v.Claims, spread)
	order.SharedPartitions = packing.OrderShared(order.SharedPartitions, v.Claims, spread)
	return order
}

// Slice is what a ResourceSlice of a node contains: devices, or the counter sets that they consume.
type Slice struct {
	Devices        []resourceapi.Device
	SharedCounters []resourceapi.CounterSet
}

// Of returns the slices of a node, which form one pool, in order of allocation: first the counter sets of GPUs that have any, then
// whole GPUs, shared GPUs, shared partitions, one slice for the partitions of each GPU, and those that fill a GPU, each in the
// order of packing.OrderShapes. A node that offers nothing has one empty slice, which distinguishes "nothing here" from "not
// running". Unavailable devices are tainted, never left out: the scheduler would forget their consumption.
func Of(node *policy.Node, view View) []Slice {
	d := devices{node: node, view: view, nvlinkGroups: gpu.NVLinkGroups(node.GPUs), counters: map[gpu.PCIAddress][]gpu.Counter{}}
	var counterSets []resourceapi.CounterSet
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if counted := countersOf(g, node.Offer(g)); counted != nil {
			d.counters[g.PCI] = counted
			counterSets = append(counterSets, resourceapi.CounterSet{Name: g.PCI.DeviceName(), Counters: counters(counted)})
		}
	}
	var published []Slice
	for chunk := range slices.Chunk(counterSets, maxCounterSets) {
		published = append(published, Slice{SharedCounters: chunk})
	}
	order := view.order(node)
	for _, group := range order.Groups() {
		var list []resourceapi.Device
		for _, s := range group {
			list = append(list, d.device(s))
		}
		for chunk := range slices.Chunk(list, maxDevices) {
			published = append(published, Slice{Devices: chunk})
		}
	}
	if len(published) == 0 {
		published = []Slice{{Devices: []resourceapi.Device{}}}
	}
	return published
}

// NameExisting adds the UUID to the device of an existing partition.
func NameExisting(published []Slice, device, uuid string) {
	for _, s := range published {
		for i := range s.Devices {
			if s.Devices[i].Name == device {
				attributeSet(s.Devices[i].Attributes).text("uuid", uuid)
			}
		}
	}
}

// Objects are the same slices as complete API objects, as after a first publication.
func Objects(node *policy.Node, driver, nodeName string) *resourceapi.ResourceSliceList {
	published := Of(node, View{Compatible: driver == nvidia.DriverName})
	list := &resourceapi.ResourceSliceList{
		TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSliceList"},
	}
	for i, s := range published {
		list.Items = append(list.Items, resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, nodeName)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:         driver,
				NodeName:       &nodeName,
				Pool:           resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: int64(len(published))},
				Devices:        s.Devices,
				SharedCounters: s.SharedCounters,
			},
		})
	}
	return list
}

// countersOf are the counters of a GPU; nil if all its devices can be allocated at once: needless counters cost the scheduler time,
// and schedulers before Kubernetes 1.36 without PartitionableDevices, as in KAI up to 0.17, allocate no device with counters
// (KAI-Scheduler#2100).
//
// If the cluster drops counters, published ones would make its slices differ from the wanted ones forever.
//
// Allocated devices are always offered, and devices added to a GPU bring counters for the allocated ones, too: each publication on
// its own excludes all that cannot be allocated together.
func countersOf(g *gpu.GPU, offer *policy.Offer) []gpu.Counter {
	shapes := offer.Shapes(g)
	if len(shapes) == 0 || offer.Uncounted {
		return nil
	}
	all := g.Counters()
	var amounts []gpu.Counter
	for _, c := range g.AmountCounters() {
		if slices.Contains(offer.Publish.Counters, c.Name) {
			amounts = append(amounts, c)
		}
	}
	if amounts == nil && gpu.Coexist(shapes, all) {
		return nil
	}
	return append(all, amounts...)
}

func counters(list []gpu.Counter) map[string]resourceapi.Counter {
	m := map[string]resourceapi.Counter{}
	for _, c := range list {
		form := resource.DecimalSI
		if c.Name == gpu.CounterMemory {
			form = resource.BinarySI
		}
		m[c.Name] = resourceapi.Counter{Value: *resource.NewQuantity(c.Value, form)}
	}
	return m
}

// devices builds the devices of a node.
type devices struct {
	node         *policy.Node
	view         View
	nvlinkGroups map[gpu.PCIAddress]string
	counters     map[gpu.PCIAddress][]gpu.Counter
}

// device converts a shape for the scheduler.
func (ds *devices) device(s gpu.Shape) resourceapi.Device {
	offer := ds.node.Offer(s.GPU)
	d := resourceapi.Device{
		Name:       s.Name(),
		Attributes: ds.attributes(s),
		Capacity:   ds.capacity(s, offer),
	}
	if counted := ds.counters[s.GPU.PCI]; counted != nil {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: s.GPU.PCI.DeviceName(), Counters: counters(s.ConsumesOf(counted)),
		}}
	}
	if ds.view.Compatible {
		compatible(&d, s)
	}
	if s.IsShare() {
		many := true
		d.AllowMultipleAllocations = &many
	}
	if offer.IsWithdrawn(s) {
		d.Taints = append(d.Taints, Taint{Key: TaintWithdrawn}.api())
	}
	for _, t := range ds.view.Taints {
		if t.Device == d.Name {
			d.Taints = append(d.Taints, t.api())
		}
	}
	return d
}

// capacity of a shape; nil if nothing is known. Partitions have zeros only in compatible mode: manifests written for NVIDIA's
// driver may compare them, and CEL fails on missing capacities.
func (ds *devices) capacity(s gpu.Shape, offer *policy.Offer) capacities {
	if s.IsShare() {
		return sharedCapacity(offer.Sharing(s))
	}
	if !s.IsPartition() {
		if s.GPU.Memory == nil || *s.GPU.Memory > math.MaxInt64 { // all ones is NVML's "not available"
			return nil
		}
		return capacities{"memory": amount(int64(*s.GPU.Memory), resource.BinarySI)}
	}
	p := s.Profile
	all := capacities{}
	if p.Memory > 0 && p.Memory <= math.MaxInt64 {
		all["memory"] = amount(int64(p.Memory), resource.BinarySI)
	}
	for name, n := range engines(p) {
		if n > 0 || ds.view.Compatible {
			all[name] = amount(int64(n), resource.DecimalSI)
		}
	}
	return all
}

// engines are the engines of a profile's partitions, by the names of capacities.
func engines(p *gpu.Profile) map[resourceapi.QualifiedName]int {
	return map[resourceapi.QualifiedName]int{
		"multiprocessors": p.Multiprocessors, "copyEngines": p.CopyEngines, "decoders": p.Decoders,
		"encoders": p.Encoders, "jpegEngines": p.JPEGEngines, "ofaEngines": p.OFAEngines,
	}
}

// sharedCapacity is the capacity that claims divide. Every capacity of a shared device has a policy: without one, a claim that does
// not ask for it would take all (calculateConsumedCapacity of the scheduler's allocator).
func sharedCapacity(s *policy.Sharing) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		gpu.CapacityShares: cut(policy.Cut{Total: s.Shares, Default: 1, Minimum: 1, Step: 1}, resource.DecimalSI),
	}
	if s.Memory.Total > 0 {
		all[gpu.CapacityMemory] = cut(s.Memory, resource.BinarySI)
	}
	if s.Cores.Total > 0 {
		all[gpu.CapacityCores] = cut(s.Cores, resource.DecimalSI)
	}
	return all
}

func cut(c policy.Cut, form resource.Format) resourceapi.DeviceCapacity {
	valid := &resourceapi.CapacityRequestPolicyRange{Min: resource.NewQuantity(c.Minimum, form)}
	if c.Step <= c.Total-c.Minimum {
		valid.Step = resource.NewQuantity(c.Step, form)
	} else {
		// There is room only for the minimum. The API rejects the whole slice for a step that is too large.
		valid.Max = resource.NewQuantity(c.Minimum, form)
	}
	return resourceapi.DeviceCapacity{
		Value:         *resource.NewQuantity(c.Total, form),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: resource.NewQuantity(c.Default, form), ValidRange: valid},
	}
}

func amount(n int64, form resource.Format) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(n, form)}
}
