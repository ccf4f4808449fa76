// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
)

// Place is a possible position of a partition of a profile.
type Place struct {
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
}

// Place of a partition.
func (p Partition) Place() Place { return Place{p.ProfileID, p.Placement} }

// Place of a shape that is a partition.
func (s Shape) Place() Place { return Place{s.Profile.ID, s.Placement} }

// DeviceName is the name of a partition's device at the place, given that of the whole GPU's device.
func (p Place) DeviceName(gpuDevice string) string {
	return fmt.Sprintf("%s-mig-%d-%d", gpuDevice, p.ProfileID, p.Placement.Start)
}

// SharedPlace is the place of a partition that many claims share, and the way of sharing.
type SharedPlace struct {
	Place
	Share Share
}

// SharedPlace of a shape that is a shared partition.
func (s Shape) SharedPlace() SharedPlace { return SharedPlace{s.Place(), s.Share} }

// Tiers are the ways to offer a GPU as a whole.
type Tiers struct {
	Whole, TimeSlice, MPS bool
}

// Allocated is the allocations of a GPU.
type Allocated struct {
	Tiers
	// Places of partitions with one claim each, Shared those of shared partitions.
	Places []Place
	Shared []SharedPlace
}

// AllPlaces are those of all partitions.
func (a *Allocated) AllPlaces() []Place {
	all := slices.Clone(a.Places)
	for _, s := range a.Shared {
		if !slices.Contains(all, s.Place) {
			all = append(all, s.Place)
		}
	}
	return all
}

// IsEmpty reports whether nothing is allocated.
func (a *Allocated) IsEmpty() bool {
	return a.Tiers == (Tiers{}) && len(a.Places) == 0 && len(a.Shared) == 0
}
