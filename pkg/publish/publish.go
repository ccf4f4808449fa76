// Package publish turns an inventory into the ResourceSlices of a node. It is pure: the same inventory gives the same
// slices, byte for byte, in the same order, so that nothing is rewritten without need.
package publish

import (
	"fmt"
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Limits of the resource API (k8s.io/api/resource/v1): devices of a slice that use counters, and counter sets of a
// slice.
const (
	maxDevices     = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	maxCounterSets = resourceapi.ResourceSliceMaxCounterSets
)

// Resources are the slices of a node, one pool named after it: first the counter sets of all GPUs, then the whole
// GPUs, the last GPU first. A node without GPUs has one empty slice, which tells "nothing here" from "not running".
func Resources(node *gpu.Node, pool string) resourceslice.DriverResources {
	var counterSets []resourceapi.CounterSet
	for i := range node.GPUs {
		counterSets = append(counterSets, counterSet(&node.GPUs[i]))
	}
	var devices []resourceapi.Device
	for _, g := range gpu.WholeOrder(node.GPUs) {
		devices = append(devices, wholeGPU(node, g))
	}
	var published []resourceslice.Slice
	for chunk := range slices.Chunk(counterSets, maxCounterSets) {
		published = append(published, resourceslice.Slice{SharedCounters: chunk})
	}
	for chunk := range slices.Chunk(devices, maxDevices) {
		published = append(published, resourceslice.Slice{Devices: chunk})
	}
	if len(published) == 0 {
		published = []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: published}}}
}

// Objects are the same slices as complete API objects, as they stand after a first publication.
func Objects(node *gpu.Node, driver, nodeName string) *resourceapi.ResourceSliceList {
	published := Resources(node, nodeName).Pools[nodeName].Slices
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

// counterSet is what shapes of a GPU consume.
func counterSet(g *gpu.GPU) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: g.PCI.DeviceName(), Counters: counters(g)}
}

func counters(g *gpu.GPU) map[string]resourceapi.Counter {
	m := map[string]resourceapi.Counter{}
	for _, c := range g.Counters() {
		m[c.Name] = resourceapi.Counter{Value: *resource.NewQuantity(c.Value, resource.DecimalSI)}
	}
	return m
}

// wholeGPU is the exclusive shape: it consumes all counters of its GPU.
func wholeGPU(node *gpu.Node, g *gpu.GPU) resourceapi.Device {
	d := resourceapi.Device{
		Name:             g.PCI.DeviceName(),
		Attributes:       attributes(node, g),
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: g.PCI.DeviceName(), Counters: counters(g)}},
	}
	if g.Memory != nil && *g.Memory <= math.MaxInt64 { // all ones is NVML's "not available"
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: *resource.NewQuantity(int64(*g.Memory), resource.BinarySI)},
		}
	}
	return d
}
