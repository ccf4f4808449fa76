// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestCompareInventory_ModeNeedsReset(t *testing.T) {
	inventory := func(needsReset bool) *gpu.Node {
		g := gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-a", ProductName: "NVIDIA H100", Virtualization: gpu.PassThrough}
		g.MIG = gpu.MIG{Capable: true, NeedsReset: needsReset}
		return &gpu.Node{GPUs: []gpu.GPU{g}}
	}
	p := &Plan{}
	p.compareInventory(&Observed{Inventory: inventory(true), Memory: Memory{Inventory: inventory(false)}})
	if len(p.Reports) != 1 || p.Reports[0].Reason != "MIGModeNeedsReset" || !strings.Contains(p.Reports[0].Message, "reboot") || !p.NewInventory {
		t.Errorf("new inventory %t, reports %+v; want MIGModeNeedsReset", p.NewInventory, p.Reports)
	}
}
