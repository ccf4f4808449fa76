// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestParentID(t *testing.T) {
	g := &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}}
	whole := testDriver + "/gpu=" + g.PCI.DeviceName()
	tests := map[string]struct {
		shape gpu.Shape
		want  string
	}{
		"whole GPU":        {g.Whole(), whole},
		"time slice":       {gpu.Shape{GPU: g, Share: gpu.TimeSlice}, whole},
		"partition":        {gpu.Shape{GPU: g, Profile: &gpu.Profile{Name: "1g.24gb"}}, whole + "-mig"},
		"graphics profile": {gpu.Shape{GPU: g, Profile: &gpu.Profile{Name: "1g.24gb+gfx"}}, whole},
	}
	for name, tt := range tests {
		if got := parentID(&fakeCDI{}, tt.shape); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}
