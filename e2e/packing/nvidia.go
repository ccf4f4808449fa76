// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// NVIDIA is what NVIDIA's own DRA driver publishes for a node, names and all, by how it is configured. Its source says what
// (kubernetes-sigs/dra-driver-nvidia-gpu at 0545e9e, cmd/gpu-kubelet-plugin: deviceinfo.go, mig.go, partitions.go, driver.go,
// consumable_shares.go). Schedulers meet it in clusters that do not run Cleave.
type NVIDIA struct {
	// DynamicMIG publishes partitions that do not exist yet, with counters.
	DynamicMIG bool
	// Combined has counters and devices of a GPU in one slice, as for Kubernetes 1.34.
	Combined bool
	// Static is how many of the GPUs were partitioned beforehand, into as many of the smallest partitions as they have.
	Static int
	// Shares is its flag --consumable-shares: memory, unlimited, or a number; empty where devices are not shared.
	Shares string
}

// Publish is an Order.
func (n NVIDIA) Publish(node *policy.Node) []*resourceapi.ResourceSlice {
	var specs []resourceapi.ResourceSliceSpec
	var counters resourceapi.ResourceSliceSpec
	for i := range node.GPUs {
		g := &node.GPUs[i]
		spec := resourceapi.ResourceSliceSpec{Devices: n.devices(node, g, i < n.Static)}
		if set := counterSet(g); n.DynamicMIG && set != nil {
			counters.SharedCounters = append(counters.SharedCounters, *set)
		}
		specs = append(specs, spec)
	}
	switch {
	case !n.DynamicMIG: // one slice
		for _, s := range specs[1:] {
			specs[0].Devices = append(specs[0].Devices, s.Devices...)
		}
		specs = specs[:1]
	case n.Combined:
		for i := range counters.SharedCounters {
			specs[i].SharedCounters = counters.SharedCounters[i : i+1]
		}
	default:
		specs = slices.Insert(specs, 0, counters)
	}
	name := nodeName
	var published []*resourceapi.ResourceSlice
	for i, spec := range specs {
		spec.Driver, spec.NodeName = nvidia.DriverName, &name
		spec.Pool = resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(specs))}
		s := &resourceapi.ResourceSlice{Spec: spec}
		s.Name = fmt.Sprintf("%05x-%s-%s", i, nvidia.DriverName, name)
		published = append(published, s)
	}
	return published
}

// devices of a GPU, by name.
func (n NVIDIA) devices(node *policy.Node, g *gpu.GPU, static bool) []resourceapi.Device {
	shapes := []gpu.Shape{g.Whole()}
	switch {
	case n.DynamicMIG:
		shapes = append(shapes, g.PartitionShapes()...)
	case static && len(g.MIG.Profiles) > 0:
		smallest := &g.MIG.Profiles[0]
		shapes = nil
		for _, at := range smallest.Placements[:smallest.MaxInstances] {
			shapes = append(shapes, gpu.Shape{GPU: g, Profile: smallest, Placement: at})
		}
	}
	devices := make([]resourceapi.Device, 0, len(shapes))
	for _, s := range shapes {
		d := resourceapi.Device{Name: peerName(s), Attributes: peerAttributes(node, s)}
		if s.IsPartition() {
			d.Capacity = amounts(*s.Profile)
		} else {
			d.Capacity = amountsOf(g, n.DynamicMIG)
		}
		switch {
		case n.DynamicMIG && counterSet(g) != nil:
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{consumption(s)}
		case s.IsPartition():
			d.Attributes["uuid"] = text("MIG-" + d.Name)
			for i := range s.Placement.Size {
				d.Capacity[resourceapi.QualifiedName(fmt.Sprintf("memorySlice%d", s.Placement.Start+i))] = number(1)
			}
		}
		n.share(&d)
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	return devices
}

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

// version has three parts without leading zeros.
func version(s string) resourceapi.DeviceAttribute {
	parts := append(strings.Split(s, "."), "0", "0")[:3]
	for i, p := range parts {
		number, _ := strconv.Atoi(p)
		parts[i] = strconv.Itoa(number)
	}
	joined := strings.Join(parts, ".")
	return resourceapi.DeviceAttribute{VersionValue: &joined}
}

func peerAttributes(node *policy.Node, s gpu.Shape) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	g := s.GPU
	a := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "uuid": text(g.UUID), "productName": text(g.ProductName), "brand": text("Nvidia"),
		"architecture": text(g.Architecture), "driverVersion": version(node.DriverVersion),
		"cudaDriverVersion": version(node.CUDAVersion.String()), "cudaComputeCapability": version(g.ComputeCapability.String()),
		deviceattribute.StandardDeviceAttributePCIBusID: text(g.PCI.String()),
	}
	if root := g.PCIeRoot(); root != "" {
		a[deviceattribute.StandardDeviceAttributePCIeRoot] = text(root)
	}
	if g.NUMANode != nil {
		numa := int64(*g.NUMANode)
		a[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &numa}
	}
	if s.IsPartition() {
		delete(a, "uuid")
		a["type"], a["parentUUID"], a["profile"] = text("mig"), text(g.UUID), text(s.Profile.Name)
	}
	return a
}

func number(n int) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.BinarySI)}
}

func bytesOf(n uint64) resourceapi.DeviceCapacity { return number(int(n)) }

// amounts of a partition.
func amounts(p gpu.Profile) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		"memory": bytesOf(p.Memory), "multiprocessors": number(p.Multiprocessors), "copyEngines": number(p.CopyEngines),
		"decoders": number(p.Decoders), "encoders": number(p.Encoders), "jpegEngines": number(p.JPEGEngines), "ofaEngines": number(p.OFAEngines),
	}
}

// amountsOf a whole GPU: with dynamic MIG, the most that a partition has of each, else its memory.
func amountsOf(g *gpu.GPU, dynamic bool) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	if g.TotalMemory != nil {
		all["memory"] = bytesOf(*g.TotalMemory)
	}
	if !dynamic || len(g.MIG.Profiles) == 0 {
		return all
	}
	clear(all)
	for _, p := range g.MIG.Profiles {
		for name, c := range amounts(p) {
			if known, ok := all[name]; !ok || c.Value.Cmp(known.Value) > 0 {
				all[name] = c
			}
		}
	}
	return all
}

// consumption is what a shape takes of its GPU's counters: one for each capacity, and one for each memory slice.
func consumption(s gpu.Shape) resourceapi.DeviceCounterConsumption {
	capacities, start, size := amountsOf(s.GPU, true), 0, s.GPU.MIG.Slices
	if s.IsPartition() {
		capacities, start, size = amounts(*s.Profile), s.Placement.Start, s.Placement.Size
	}
	kebab := strings.NewReplacer("copyEngines", "copy-engines", "jpegEngines", "jpeg-engines", "ofaEngines", "ofa-engines")
	c := resourceapi.DeviceCounterConsumption{Counters: map[string]resourceapi.Counter{}}
	c.CounterSet = fmt.Sprintf("gpu-%d-counter-set", s.GPU.Minor)
	for name, amount := range capacities {
		c.Counters[kebab.Replace(string(name))] = resourceapi.Counter{Value: amount.Value}
	}
	for i := range size {
		c.Counters[fmt.Sprintf("memory-slice-%d", start+i)] = resourceapi.Counter{Value: resource.MustParse("1")}
	}
	return c
}

// counterSet of a GPU; nil where it has no partitions.
func counterSet(g *gpu.GPU) *resourceapi.CounterSet {
	if len(g.PartitionShapes()) == 0 {
		return nil
	}
	c := consumption(g.Whole())
	return &resourceapi.CounterSet{Name: c.CounterSet, Counters: c.Counters}
}

// share lets several claims have a device.
func (n NVIDIA) share(d *resourceapi.Device) {
	memory, ok := d.Capacity["memory"]
	if n.Shares == "" || !ok {
		return
	}
	yes, zero, step := true, resource.MustParse("0"), resource.MustParse("1Mi")
	d.AllowMultipleAllocations = &yes
	most := resource.NewQuantity(memory.Value.Value()/step.Value()*step.Value(), resource.BinarySI)
	policy := &resourceapi.CapacityRequestPolicy{
		Default: &zero, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &zero, Max: most, Step: &step},
	}
	if n.Shares == "memory" {
		policy.Default, policy.ValidRange.Min = most, &step
	}
	d.Capacity["memory"] = resourceapi.DeviceCapacity{Value: *most, RequestPolicy: policy}
	if shares, err := strconv.Atoi(n.Shares); err == nil {
		one, all := resource.MustParse("1"), *resource.NewQuantity(int64(shares), resource.DecimalSI)
		d.Capacity["shares"] = resourceapi.DeviceCapacity{Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: &one, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &one, Max: &all, Step: &one},
		}}
	}
}
