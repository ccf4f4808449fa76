// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// extent is the part of a GPU that a device takes; overlaps are computed on extents, while records.Device is stored.
type extent struct {
	// gpu is the name of the whole GPU's device.
	gpu string
	// place of a partition; nil for a whole GPU.
	place *gpu.Place
	// share is how the GPU or partition is shared with other claims; empty if it is not.
	share gpu.Share
}

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

// extentOfShape returns the extent of a shape once it is allocated.
func extentOfShape(s gpu.Shape) extent {
	d := device{shape: s, gpu: s.GPU.PCI.DeviceName()}
	return d.extent()
}

// extentAt returns the extent of a partition.
func extentAt(gpuDevice string, at gpu.Place) extent { return extent{gpu: gpuDevice, place: &at} }

// overlaps reports whether two devices of one driver name exclude each other: two shares of one device do not.
func (e extent) overlaps(o extent) bool { return e.collides(o) && !e.shares(o) }

// shares reports whether both are shares of the same GPU or partition, shared in the same way.
func (e extent) shares(o extent) bool {
	return e.gpu == o.gpu && e.share != "" && e.share == o.share &&
		(e.place == nil && o.place == nil || e.place != nil && o.place != nil && *e.place == *o.place)
}

// collides reports whether an allocation under one driver name excludes a device of another: always, except for partitions
// in different places. The scheduler counts the shares of each name separately.
func (e extent) collides(o extent) bool {
	return e.gpu == o.gpu && (e.place == nil || o.place == nil || e.place.Placement.Overlaps(o.place.Placement))
}

// is reports whether the extent is exactly this partition.
func (e extent) is(p gpu.Partition) bool { return e.place != nil && *e.place == p.Place() }

// extentsOf returns the extents of a claim's devices on a GPU, also of those that are Released: the API server may have them allocated.
// Devices with admin access take nothing.
func extentsOf(r *records.Record, gpuDevice string) []extent {
	return extentsWhere(r, gpuDevice, func(*records.Device) bool { return true })
}

func extentsWhere(r *records.Record, gpuDevice string, test func(d *records.Device) bool) []extent {
	var all []extent
	for i := range r.Devices {
		if d := &r.Devices[i]; d.GPU == gpuDevice && !d.AdminAccess && test(d) {
			all = append(all, extentOf(d))
		}
	}
	return all
}

// extentsLeft is extentsOf without devices that are Released.
func extentsLeft(r *records.Record, gpuDevice string) []extent {
	return extentsWhere(r, gpuDevice, func(d *records.Device) bool { return !d.Released })
}

// takes reports whether devices that a claim still has overlap with a device, hasShare whether it still has a share of the same
// device.
func takes(r *records.Record, want extent) bool {
	return slices.ContainsFunc(extentsLeft(r, want.gpu), want.overlaps)
}

func hasShare(r *records.Record, want extent) bool {
	return slices.ContainsFunc(extentsLeft(r, want.gpu), want.shares)
}

func samePlace(a, b gpu.Partition) bool { return a.Place() == b.Place() }
