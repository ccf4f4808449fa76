// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
)

// Place is where a partition of a profile lies or may lie.
type Place struct {
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
}

// Place of a partition.
func (p Partition) Place() Place { return Place{p.ProfileID, p.Placement} }

// Place of a shape that is a partition.
func (s Shape) Place() Place { return Place{s.Profile.ID, s.Placement} }

// DeviceName is the name of the device of a partition at the place, of a GPU whose device has a name.
func (p Place) DeviceName(gpuDevice string) string {
	return fmt.Sprintf("%s-mig-%d-%d", gpuDevice, p.ProfileID, p.Placement.Start)
}

// SharedPlace is the place of a partition that many claims have at once, and the way in which they share it.
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

// Allocated is what is allocated of a GPU.
type Allocated struct {
	Tiers
	// Places of partitions that one claim has each, Shared those that many have.
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
