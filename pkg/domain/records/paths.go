// SPDX-License-Identifier: Apache-2.0

package records

// SharedDir is the directory, in the kubelet's plugins directory, of what all plugins of a node share, whatever their driver's name. No
// driver can have this name.
const SharedDir = "_cleave"

// Directories of records in SharedDir.
const (
	ClaimsDir  = "claims"
	LayoutsDir = "layouts"
	ModesDir   = "modes"
)
