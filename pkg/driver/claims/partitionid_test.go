// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Release 0.1.0 gave partitions the CDI device of the whole GPU. Its claims keep that, and their partitions: pods run in
// them.
func TestPrepare_PartitionOfAnEarlierRelease(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	device := b.name(0, 19, 6)
	was := b.prepare("a", device)
	old := []string{testDriver + "/gpu=" + b.name(0), testDriver + "/claim=a-" + device}
	r := b.Preparer.Ledger.index.get("a").Clone()
	r.Devices[0].CDIDeviceIDs = old
	must(t, b.Ledger.write(r))
	b = b.restart()
	got := b.prepare("a", device)
	equal(t, "CDI devices", old, got[0].CDIDeviceIDs)
	if got[0].Partition.UUID != was[0].Partition.UUID {
		t.Errorf("partition %s is now %s: it was destroyed under its pods", was[0].Partition.UUID, got[0].Partition.UUID)
	}
}

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
