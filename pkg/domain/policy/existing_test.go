// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestApply_ExistingPartitionsExcludeTheWholeGPU(t *testing.T) {
	node := model(t, "hgx-h100")
	g := &node.GPUs[0]
	device := g.PCI.DeviceName()
	tests := map[string]struct {
		rule      string
		there     []string
		allocated gpu.Allocated
		want      []string
		pending   []string // withdrawn
	}{
		"a partition":          {"{mig: {mode: existing}}", []string{"3g.40gb@4"}, gpu.Allocated{}, []string{device + "-mig-9-4"}, nil},
		"none":                 {"{mig: {mode: existing}}", nil, gpu.Allocated{}, []string{device, device + "-timeslice", device + "-mps"}, nil},
		"allocated as a whole": {"{mig: {mode: existing}}", []string{"3g.40gb@4"}, gpu.Allocated{Tiers: gpu.Tiers{Whole: true}}, []string{device, device + "-mig-9-4"}, []string{device}},
		"allocated as shares":  {"{mig: {mode: existing}}", []string{"3g.40gb@4"}, gpu.Allocated{Tiers: gpu.Tiers{TimeSlice: true}}, []string{device + "-timeslice", device + "-mig-9-4"}, []string{device + "-timeslice"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := policyOf(t, tt.rule)
			offered := Apply(p, node, Capabilities{
				Allocated:  func(*gpu.GPU) gpu.Allocated { return tt.allocated },
				Partitions: func(of *gpu.GPU) []gpu.Place { return places(t, of, tt.there...) },
			})
			var got, withdrawn []string
			for _, s := range offered.Shapes(&offered.GPUs[0]) {
				got = append(got, s.Name())
				if offered.Offer(s.GPU).IsWithdrawn(s) {
					withdrawn = append(withdrawn, s.Name())
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.pending, withdrawn); diff != "" {
				t.Errorf("withdrawn (-want +got):\n%s", diff)
			}
		})
	}
}
