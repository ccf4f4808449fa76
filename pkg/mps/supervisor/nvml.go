// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
)

// NVML is the Hardware behind the driver's library.
type NVML struct {
	Options nvml.Options
}

// Open starts a session.
func (n NVML) Open(ctx context.Context) (GPUs, error) {
	session, err := nvml.Open(ctx, n.Options)
	if err != nil {
		return nil, err
	}
	return openNVML{session}, nil
}

type openNVML struct {
	*nvml.Session
}

func (o openNVML) ComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string) (int, error) {
	if err := o.verify(ctx, pci, uuid); err != nil {
		return 0, err
	}
	return o.Session.ComputeMode(ctx, pci)
}

func (o openNVML) SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error {
	if err := o.verify(ctx, pci, uuid); err != nil {
		return err
	}
	return o.Session.SetComputeMode(ctx, pci, mode)
}

// verify keeps hands off a GPU that took another one's place. A record that was lost leaves no UUID.
func (o openNVML) verify(_ context.Context, pci gpu.PCIAddress, uuid string) error {
	g := o.Node().Find(pci.DeviceName()) // read when the session was opened, just now
	if problems := o.Node().Problems; g == nil && len(problems) > 0 {
		return fmt.Errorf("find GPU at %s, it may be one that cannot be read: %w", pci, problems[0].Err)
	}
	if g == nil {
		return fmt.Errorf("find GPU at %s: %w", pci, gpu.ErrNotFound)
	}
	if uuid != "" && g.UUID != uuid {
		return fmt.Errorf("find GPU %s at %s, where %s is now: %w", uuid, pci, g.UUID, gpu.ErrNotFound)
	}
	return nil
}
