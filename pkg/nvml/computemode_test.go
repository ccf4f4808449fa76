// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
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
