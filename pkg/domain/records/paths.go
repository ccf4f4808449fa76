// SPDX-License-Identifier: Apache-2.0

package records

// SharedDir is the directory, in the kubelet's plugins directory, of the state that all plugins of a node share, whatever their driver
// name. It is not a valid driver name.
const SharedDir = "_cleave"

// Subdirectories of SharedDir for records.
const (
	ClaimsDir  = "claims"
	LayoutsDir = "layouts"
	ModesDir   = "modes"
)
