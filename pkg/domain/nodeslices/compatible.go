// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Most of what NVIDIA's DRA driver publishes has the same name, type and spelling here. The rest is in this file, which
// docs/nvidia-compatible.md lists.

type capacities = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity

// compatible gives a device what manifests written for NVIDIA's driver go by.
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

// memorySlices are the placement units of a partition: memorySlice4 to memorySlice7 of one in the upper half of a board.
func memorySlices(at gpu.Placement) capacities {
	all := capacities{}
	for i := range at.Size {
		all[resourceapi.QualifiedName(fmt.Sprintf("memorySlice%d", at.Start+i))] = amount(1, resource.DecimalSI)
	}
	return all
}

// mostOfPartitions are the most multiprocessors and engines that a partition of the GPU has, which for NVIDIA's driver are
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

// expendable are attributes that NVIDIA's driver does not have and that tell the least, the least of all first: they give
// way where a device would have more than the API allows.
var expendable = []resourceapi.QualifiedName{"minor", "index", "migCapable", "memoryEnforcement", "eccEnabled"}

// add adds capacities to a device, all or none: as many as the API allows when expendable attributes are gone, and with
// room left for others.
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
