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

// openModes lets the MIG mode of GPUs be changed that need a reset for it.
func openModes(s *service) (*claims.ModeOptions, error) {
	kept, err := records.OpenModes(store.NewDisk(), filepath.Join(s.config.nodeDir(), records.ModesDir))
	if err != nil {
		return nil, err
	}
	return &claims.ModeOptions{
		Store: kept, Tool: s.smi, HasDRM: deviceFiles{&s.config, s.smi}.hasDRM,
		Claims: cluster.Claims{Client: s.client}.Each, Overtaken: overtaken{s.events}.report,
	}, nil
}

// reasonOvertaken is of Events about claims whose device went while they were being allocated.
const reasonOvertaken = "ClaimOvertaken"

// overtaken reports claims that were allocated a GPU too late to be seen before its MIG mode changed.
type overtaken struct{ events *cluster.Events }

func (o overtaken) report(g *gpu.GPU, all []records.Claim) {
	change := controller.Describe(g) + " has left MIG mode"
	if g.MIG.Enabled {
		change = controller.Describe(g) + " has entered MIG mode"
	}
	var names []string
	for _, claim := range all {
		names = append(names, claim.String())
		o.events.WarnClaim(claim, reasonOvertaken, change+", and the device of this claim is gone. Delete its pods: they are scheduled again")
	}
	o.events.Warn(reasonOvertaken, change+" while it was being allocated to claims, whose devices are gone: "+strings.Join(names, ", ")+
		". Delete their pods: they are scheduled again")
}
