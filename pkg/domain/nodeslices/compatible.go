// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Most attributes and capacities of NVIDIA's DRA driver have the same name, type and spelling here. The others are in this file;
// docs/nvidia-compatible.md lists them.

type capacities = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity

// compatible adds to a device the attributes and capacities that manifests written for NVIDIA's driver use.
func compatible(d *resourceapi.Device, s gpu.Shape) {
	switch {
	case s.IsPartition() && !s.IsShare():
		add(d, memorySlices(s.Placement), 1) // its UUID may come later
	case s.IsWhole():
		if total := s.GPU.TotalMemory; total != nil && *total <= math.MaxInt64 {
			d.Capacity = capacities{"memory": amount(int64(*total), resource.BinarySI)}
		}
		add(d, mostOfPartitions(s.GPU), 0)
	}
}

// memorySlices are the placement units of a partition: memorySlice4 to memorySlice7 for the upper half of a board.
func memorySlices(at gpu.Placement) capacities {
	all := capacities{}
	for i := range at.Size {
		all[resourceapi.QualifiedName(fmt.Sprintf("memorySlice%d", at.Start+i))] = amount(1, resource.DecimalSI)
	}
	return all
}

// mostOfPartitions are the most multiprocessors and engines that a partition of the GPU has, which NVIDIA's driver publishes as
// those of the GPU.
func mostOfPartitions(g *gpu.GPU) capacities {
	most := map[resourceapi.QualifiedName]int{}
	for i := range g.MIG.Profiles {
		for name, n := range engines(&g.MIG.Profiles[i]) {
			most[name] = max(most[name], n)
		}
	}
	all := capacities{}
	for name, n := range most {
		all[name] = amount(int64(n), resource.DecimalSI)
	}
	return all
}

// expendable are the least useful attributes that NVIDIA's driver does not have, the least useful first: they are dropped if a
// device would have more than the API allows.
var expendable = []resourceapi.QualifiedName{"minor", "index", "migCapable", "memoryEnforcement", "eccEnabled"}

// add adds capacities to a device, all or none, within the API's limit, leaving room for others: if necessary, it drops expendable
// attributes.
func add(d *resourceapi.Device, more capacities, room int) {
	over := len(d.Attributes) + len(d.Capacity) + len(more) + room - resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice
	var gone []resourceapi.QualifiedName
	for _, name := range expendable {
		if _, ok := d.Attributes[name]; ok && len(gone) < over {
			gone = append(gone, name)
		}
	}
	if len(gone) < over {
		return
	}
	for _, name := range gone {
		delete(d.Attributes, name)
	}
	if d.Capacity == nil && len(more) > 0 {
		d.Capacity = capacities{}
	}
	for name, c := range more {
		d.Capacity[name] = c
	}
}
