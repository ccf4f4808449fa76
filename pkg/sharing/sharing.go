// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/mps"
)

// Names of pkg/mps.
type (
	Sharing    = mps.Sharing
	Supervisor = mps.Supervisor
	Run        = mps.Run
)

// RunProgram as mps.RunProgram.
var RunProgram = mps.RunProgram

// New as mps.NewSharing.
func New(owner string, supervisor Supervisor, roots []driverroot.Root, run Run) *Sharing {
	return mps.NewSharing(owner, supervisor, roots, run)
}
