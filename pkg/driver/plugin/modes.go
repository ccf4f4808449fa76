// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"path/filepath"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// openModes prepares changing the MIG mode of GPUs that need a reset for it, and resets on request.
func openModes(s *service) (*claims.ModeOptions, error) {
	kept, err := records.OpenModes(store.Disk{}, filepath.Join(s.config.nodeDir(), records.ModesDir))
	if err != nil {
		return nil, err
	}
	return &claims.ModeOptions{
		Store: kept, Tool: s.smi, HasDRM: deviceFiles{&s.config, s.smi}.hasDRM, InPods: inPods(s.config.PodUID),
		Claims: cluster.Claims{Client: s.client}.Each, Overtaken: overtaken{s.events}.report,
		Last: records.NewResetFile(store.Disk{}, filepath.Join(s.config.nodeDir(), records.ResetFile)), WasReset: s.health.wasReset,
	}, nil
}

// The reason of Events about claims whose device disappeared while they were being allocated.
const reasonOvertaken = "ClaimOvertaken" // a GPU's MIG mode changed while it was being allocated to claims: their devices no longer exist

// overtaken reports claims that were allocated a GPU too late to be noticed before its MIG mode changed.
type overtaken struct{ events *cluster.Events }

func (o overtaken) report(g *gpu.GPU, enabled bool, all []records.Claim) {
	change := controller.Describe(g) + " has left MIG mode"
	if enabled {
		change = controller.Describe(g) + " has entered MIG mode"
	}
	var names []string
	for _, claim := range all {
		names = append(names, claim.String())
		o.events.WarnClaim(claim, reasonOvertaken, change+"; the device of this claim no longer exists. "+
			"Delete its pods so that they are scheduled again")
	}
	o.events.Warn(reasonOvertaken, change+" while it was being allocated to claims. Their devices no longer exist: "+strings.Join(names, ", ")+
		". Delete their pods so that they are scheduled again")
}
