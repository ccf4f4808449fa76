// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/cluster"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/processes"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/smi"
	"github.com/cleave-dra/cleave/pkg/store"
)

// openModes lets the MIG mode of GPUs be changed that need a reset for it.
func openModes(s *service) (*claims.ModeOptions, error) {
	kept, err := records.OpenModes(store.NewDisk(), filepath.Join(s.config.pluginDir(), modesDir))
	if err != nil {
		return nil, err
	}
	s.smi = smi.New(s.config.driverRoots(), mps.RunProgram)
	return &claims.ModeOptions{Store: kept, Tool: s.smi, Holders: holders{s.smi}.of, Claims: cluster.Claims{Client: s.client}.Each}, nil
}

// holders finds the processes that have GPUs open.
type holders struct{ tool *smi.Tool }

func (h holders) of(ctx context.Context, g *gpu.GPU) ([]claims.Holder, error) {
	root := h.tool.Root().Devices()
	all, err := processes.Host().Holding(ctx, filepath.Join(root.Here, fmt.Sprintf("dev/nvidia%d", g.Minor)))
	var found []claims.Holder
	for _, p := range all {
		found = append(found, claims.Holder(p))
	}
	return found, err
}
