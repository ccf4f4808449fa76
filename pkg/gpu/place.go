// SPDX-License-Identifier: Apache-2.0

package gpu

// Place is where a partition of a profile lies or may lie.
type Place struct {
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
}

// Place of a partition.
func (p Partition) Place() Place { return Place{p.ProfileID, p.Placement} }

// Place of a shape that is a partition.
func (s Shape) Place() Place { return Place{s.Profile.ID, s.Placement} }

// Tiers are the ways to offer a GPU as a whole.
type Tiers struct {
	Whole, TimeSlice, MPS bool
}

// Allocated is what is allocated of a GPU.
type Allocated struct {
	Tiers
	// Places of partitions.
	Places []Place
}
