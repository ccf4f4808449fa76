// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// SharePlacement is which GPU of a node a share goes to. The values are those of cleave-scheduler's strategies, which are about nodes.
type SharePlacement string

// The placements.
const (
	// PlacementPack fills GPUs that are shared already.
	PlacementPack SharePlacement = "pack"
	// PlacementSpread prefers the GPU with the fewest claims: one that is not shared yet, if there is one.
	PlacementSpread SharePlacement = "spread"
)

// SharePlacements lists them.
func SharePlacements() []SharePlacement { return []SharePlacement{PlacementPack, PlacementSpread} }
