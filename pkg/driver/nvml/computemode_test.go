// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func TestSetComputeMode(t *testing.T) {
	s, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	gpus := s.Node().GPUs
	if err := s.SetComputeMode(t.Context(), gpus[1].PCI, nvml.ComputeModeExclusive); err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, g := range gpus[:3] {
		mode, err := s.ComputeMode(t.Context(), g.PCI)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, mode)
	}
	if diff := cmp.Diff([]int{nvml.ComputeModeDefault, nvml.ComputeModeExclusive, nvml.ComputeModeDefault}, got); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
	mustFail(t, s.SetComputeMode(t.Context(), gpus[0].PCI, 7), gpu.ErrInvalidArgument)
	mustFail(t, s.SetComputeMode(t.Context(), gpu.PCIAddress{Bus: 0xff}, 0), gpu.ErrNotFound)
	if _, err := s.ComputeMode(t.Context(), gpu.PCIAddress{Bus: 0xff}); err == nil {
		t.Error("read the compute mode of a GPU that is not there")
	}
}

// A driver may answer with the compute mode that a GPU had before its MIG mode.
func TestComputeMode_InMIGMode(t *testing.T) {
	for _, quirk := range []bool{false, true} {
		node, err := sim.New("hgx-h100")
		if err != nil {
			t.Fatal(err)
		}
		s, err := simulated.OpenNode(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Driver().SetQuirk(sim.QuirkModeInMIG, quirk); err != nil {
			t.Fatal(err)
		}
		pci := s.Node().GPUs[0].PCI
		for _, set := range []func() error{
			func() error { return s.SetComputeMode(t.Context(), pci, nvml.ComputeModeExclusive) },
			func() error { return s.SetMIG(t.Context(), pci, true) },
		} {
			if err := set(); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.ComputeMode(t.Context(), pci)
		mustFail(t, err, gpu.ErrNotSupported)
		mustFail(t, s.SetComputeMode(t.Context(), pci, 0), gpu.ErrNotSupported)
		if err := s.SetMIG(t.Context(), pci, false); err != nil {
			t.Fatal(err)
		}
		if mode, err := s.ComputeMode(t.Context(), pci); err != nil || mode != nvml.ComputeModeExclusive {
			t.Errorf("mode %d, %v after MIG mode, want that from before", mode, err)
		}
	}
}
