// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// extent is the part of a GPU that a device takes: what overlaps are computed with, while records.Device is what is stored.
type extent struct {
	// gpu is the name of the whole GPU's device.
	gpu string
	// place of a partition; nil for all of the GPU.
	place *gpu.Place
	// share is how the GPU or partition is shared with other claims; empty where it is not.
	share gpu.Share
}

// extentOf is what a device on record takes.
func extentOf(d *records.Device) extent {
	e := extent{gpu: d.GPU}
	if d.Partition != nil {
		at := d.Partition.Place()
		e.place = &at
	}
	if d.IsShared() {
		e.share = d.Share.Kind
	}
	return e
}

// extentOfShape is what a shape takes once it is allocated.
func extentOfShape(s gpu.Shape) extent {
	d := device{shape: s, gpu: s.GPU.PCI.DeviceName()}
	return d.extent()
}

// extentAt is what a partition takes.
func extentAt(gpuDevice string, at gpu.Place) extent { return extent{gpu: gpuDevice, place: &at} }

// overlaps reports whether two devices of one driver name exclude each other: two partitions may not, two shares of one
// device do not.
func (e extent) overlaps(o extent) bool { return e.collides(o) && !e.shares(o) }

// shares reports whether both are of one device that is shared by intent: a GPU or partition, in one way.
func (e extent) shares(o extent) bool {
	return e.gpu == o.gpu && e.share != "" && e.share == o.share &&
		(e.place == nil && o.place == nil || e.place != nil && o.place != nil && *e.place == *o.place)
}

// collides reports whether what is allocated under one driver name leaves no room for a device of another: only two partitions
// in different places leave it. The scheduler counts the shares of each name alone.
func (e extent) collides(o extent) bool {
	return e.gpu == o.gpu && (e.place == nil || o.place == nil || e.place.Placement.Overlaps(o.place.Placement))
}

// is reports whether a partition is what the extent names.
func (e extent) is(p gpu.Partition) bool { return e.place != nil && *e.place == p.Place() }

// extentsOf are what a record's claim has of a GPU. Claims with admin access look at a device without having it.
func extentsOf(r *records.Record, gpuDevice string) []extent {
	var all []extent
	for i := range r.Devices {
		if d := &r.Devices[i]; d.GPU == gpuDevice && !d.AdminAccess {
			all = append(all, extentOf(d))
		}
	}
	return all
}

// takes reports whether a record's claim has something of what a device needs, hasShare whether it has a share of the same
// device.
func takes(r *records.Record, want extent) bool {
	return slices.ContainsFunc(extentsOf(r, want.gpu), want.overlaps)
}

func hasShare(r *records.Record, want extent) bool {
	return slices.ContainsFunc(extentsOf(r, want.gpu), want.shares)
}

func samePlace(a, b gpu.Partition) bool { return a.Place() == b.Place() }
