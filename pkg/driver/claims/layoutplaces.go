// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// takenPlaces reports which places of GPUs are allocated, to claims that are prepared or not.
type takenPlaces struct{ *Ledger }

// allocatedAt reports whether a claim has a device that overlaps with a place.
func (t takenPlaces) allocatedAt(gpuDevice string, at gpu.Place) bool {
	want := extentAt(gpuDevice, at)
	return t.recordedAt(gpuDevice, at) || len(t.allocated.unrecordedOn(gpuDevice).taking(want)) > 0
}

// allocatedInTheWay is allocatedAt for a partition to create ahead of claims: a claim that was allocated exactly that
// partition and is not prepared yet does not count, as it will get it.
func (t takenPlaces) allocatedInTheWay(gpuDevice string, at gpu.Place) bool {
	want := extentAt(gpuDevice, at)
	return t.recordedAt(gpuDevice, at) || slices.ContainsFunc(t.allocated.unrecordedOn(gpuDevice).all, func(r *records.Record) bool {
		return slices.ContainsFunc(extentsOf(r, gpuDevice), func(e extent) bool {
			return e.collides(want) && (e.place == nil || *e.place != at)
		})
	})
}

// promised are the partitions of a GPU that claims without a record were allocated, but for those that exist or are about to: what
// is created ahead of claims must leave them their engines.
func (t takenPlaces) promised(gpuDevice string, known []gpu.Partition) (all []gpu.Partition) {
	for _, r := range t.allocated.unrecordedOn(gpuDevice).all {
		for _, e := range extentsOf(r, gpuDevice) {
			if e.place == nil {
				continue
			}
			part := gpu.Partition{ProfileID: e.place.ProfileID, Placement: e.place.Placement}
			if !containsPlace(known, part) && !containsPlace(all, part) {
				all = append(all, part)
			}
		}
	}
	return all
}

// recordedAt reports whether a claim with a record has a device that overlaps with a place, or had one that is Released.
func (t takenPlaces) recordedAt(gpuDevice string, at gpu.Place) bool {
	return slices.ContainsFunc(t.index.on(gpuDevice, "").all, func(r *records.Record) bool {
		return slices.ContainsFunc(extentsOf(r, gpuDevice), extentAt(gpuDevice, at).overlaps)
	})
}

// LayoutPlaces returns the places in which the layout of a GPU was last offered, in any boot.
func (p *Partitions) LayoutPlaces(g *gpu.GPU) []gpu.Place { return p.ledger.layouts.offered(g) }
