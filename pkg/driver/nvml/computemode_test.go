// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestComputeMode(t *testing.T) {
	b := newBed(t, "hgx-h100")
	must(t, b.node.Device(1).Modes().SetComputeMode(nvml.ComputeModeExclusive))
	var got []int
	for i := range 3 {
		mode, err := b.ComputeMode(t.Context(), b.gpu(i).PCI)
		must(t, err)
		got = append(got, mode)
	}
	equal(t, "modes", []int{nvml.ComputeModeDefault, nvml.ComputeModeExclusive, nvml.ComputeModeDefault}, got)
	_, err := b.ComputeMode(t.Context(), gpu.PCIAddress{Bus: 0xff})
	mustFail(t, err, gpu.ErrNotFound)
}

// A driver may answer with the compute mode that a GPU had before its MIG mode.
func TestComputeMode_InMIGMode(t *testing.T) {
	for _, quirk := range []bool{false, true} {
		s := newBed(t, "hgx-h100")
		must(t, s.node.Driver().SetQuirk(sim.QuirkModeInMIG, quirk))
		pci := s.gpu(0).PCI
		must(t, s.node.Device(0).Modes().SetComputeMode(nvml.ComputeModeExclusive))
		s.enable()
		_, err := s.ComputeMode(t.Context(), pci)
		mustFail(t, err, gpu.ErrNotSupported)
		must(t, s.SetMIG(t.Context(), pci, false))
		if mode, err := s.ComputeMode(t.Context(), pci); err != nil || mode != nvml.ComputeModeExclusive {
			t.Errorf("mode %d, %v after MIG mode, want that from before", mode, err)
		}
	}
}
