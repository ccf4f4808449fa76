// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// A direct session opens the GPU that is asked for: others can be reset meanwhile.
func TestDirect_OpensOneGPU(t *testing.T) {
	root := filepath.Join(t.TempDir(), "node")
	node, err := sim.Create(root, "dgx-a100", sim.WithoutDeviceNodes())
	must(t, err)
	known := open(t, node)
	gpus := known.Node().GPUs
	must(t, known.Close())
	own, err := sim.Open(root)
	must(t, err)
	d, err := nvml.OpenDirectLibrary(t.Context(), simulated.Library(own))
	must(t, err)
	ctx, pci, uuid := t.Context(), gpus[1].PCI, gpus[1].UUID
	must(t, d.SetComputeMode(ctx, pci, uuid, nvml.ComputeModeExclusive))
	if mode, err := d.ComputeMode(ctx, pci, ""); mode != nvml.ComputeModeExclusive || err != nil { // without a UUID
		t.Errorf("mode %d, %v", mode, err)
	}
	if err := node.Hardware().Reset(0); err != nil {
		t.Errorf("Reset of another GPU: %v", err)
	}
	mustFail(t, node.Hardware().Reset(1), gpu.ErrInUse)
	mustFail(t, d.SetComputeMode(ctx, pci, uuid, 7), gpu.ErrInvalidArgument)
	mustFail(t, d.SetComputeMode(ctx, pci, gpus[0].UUID, 0), gpu.ErrNotFound)
	mustFail(t, d.SetComputeMode(ctx, gpu.PCIAddress{Bus: 0xff}, "", 0), gpu.ErrNotFound)
	must(t, d.Close())
	if err := node.Hardware().Reset(1); err != nil {
		t.Errorf("Reset after Close: %v", err)
	}
}
