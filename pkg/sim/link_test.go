// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// linkFacts is how a GPU is linked.
type linkFacts struct {
	Links, Up int
	Version   int
	Type      int      // of the first link
	Remotes   []string // distinct, in order of links
}

func readLinks(t *testing.T, d *Device) linkFacts {
	t.Helper()
	var f linkFacts
	for link := 0; ; link++ {
		up, err := d.Links().NVLinkState(link)
		if errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotSupported) {
			f.Links = link
			return f
		}
		must(t, err)
		if f.Version, err = d.Links().NVLinkVersion(link); err != nil {
			t.Fatal(err)
		}
		kind, err := d.Links().NVLinkRemoteDeviceType(link)
		must(t, err)
		if link == 0 {
			f.Type = kind
		}
		if !up {
			continue
		}
		f.Up++
		remote, err := d.Links().NVLinkRemotePCI(link)
		must(t, err)
		if len(f.Remotes) == 0 || f.Remotes[len(f.Remotes)-1] != remote.BusID && len(f.Remotes) < 4 {
			f.Remotes = append(f.Remotes, remote.BusID)
		}
	}
}

func TestNVLinks(t *testing.T) {
	tests := []struct {
		model string
		index int
		want  linkFacts
	}{
		{"hgx-h100", 0, linkFacts{18, 18, 6, LinkToSwitch, []string{"00000000:07:00.0", "00000000:08:00.0", "00000000:09:00.0", "00000000:0A:00.0"}}},
		{"a100-pcie-nvlink-pairs", 2, linkFacts{12, 12, 5, LinkToGPU, []string{"00000000:E3:00.0"}}},
		{"gb200-nvl72", 0, linkFacts{18, 18, 7, LinkToSwitch, []string{"00000000:00:00.0"}}},
		{"gb200-nvl4", 1, linkFacts{18, 18, 7, LinkToGPU, []string{"00000008:01:00.0", "00000018:01:00.0", "00000019:01:00.0"}}},
		{"gh200", 0, linkFacts{18, 0, 6, LinkToUnknown, nil}},
		{"a30", 0, linkFacts{4, 0, 5, LinkToUnknown, nil}},
		{"l40s", 0, linkFacts{}},
	}
	for _, tt := range tests {
		got := readLinks(t, testNode(t, tt.model).Device(tt.index))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("links of GPU %d of %s (-want +got):\n%s", tt.index, tt.model, diff)
		}
	}
}

func TestTopology(t *testing.T) {
	tests := []struct {
		model string
		a, b  int
		want  int
	}{
		{"hgx-h100", 0, 0, TopologyInternal},
		{"hgx-h100", 0, 1, TopologyNode},
		{"hgx-h100", 0, 4, TopologySystem},
		{"dgx-a100", 0, 1, TopologyMultiple},
		{"dgx-a100", 0, 2, TopologySystem},
		{"rtx-pro-6000", 0, 1, TopologySingle},
		{"rtx-pro-6000", 0, 2, TopologyNode},
		{"rtx-pro-6000", 0, 7, TopologySystem},
	}
	for _, tt := range tests {
		n := testNode(t, tt.model)
		got, err := n.Device(tt.a).Links().TopologyCommonAncestor(n.Device(tt.b))
		if err != nil || got != tt.want {
			t.Errorf("%s: common ancestor of %d and %d = %d, %v, want %d", tt.model, tt.a, tt.b, got, err, tt.want)
		}
	}
	n := testNode(t, "hgx-h100")
	near, err := n.Device(1).Links().TopologyNearestGPUs(TopologyNode)
	var indexes []int
	for _, d := range near {
		indexes = append(indexes, d.Number())
	}
	if diff := cmp.Diff([]int{0, 2, 3}, indexes); diff != "" || err != nil {
		t.Errorf("nearest, %v (-want +got):\n%s", err, diff)
	}
}

func TestP2P(t *testing.T) {
	tests := []struct {
		model            string
		a, b, capability int
		want             int
	}{
		{"hgx-h100", 0, 7, P2PNVLink, P2PStatusOK},
		{"hgx-h100", 0, 7, P2PRead, P2PStatusOK},
		{"hgx-h100", 0, 7, P2PPCI, P2PStatusChipsetNotSupported},
		{"a100-pcie-nvlink-pairs", 0, 1, P2PNVLink, P2PStatusOK},
		{"a100-pcie-nvlink-pairs", 0, 2, P2PNVLink, P2PStatusNotSupported},
		{"l40s", 0, 1, P2PRead, P2PStatusOK},
		{"l40s", 0, 1, P2PAtomics, P2PStatusNotSupported},
		{"l40s", 0, 2, P2PWrite, P2PStatusChipsetNotSupported},
	}
	for _, tt := range tests {
		n := testNode(t, tt.model)
		got, err := n.Device(tt.a).Links().P2PStatus(n.Device(tt.b), tt.capability)
		if err != nil || got != tt.want {
			t.Errorf("%s: P2P status %d of %d and %d = %d, %v, want %d", tt.model, tt.capability, tt.a, tt.b, got, err, tt.want)
		}
	}
	n := testNode(t, "hgx-h100")
	intoMIG(t, n.Device(0))
	if got, err := n.Device(1).Links().P2PStatus(n.Device(0), P2PNVLink); got != P2PStatusGPUNotSupported || err != nil {
		t.Errorf("P2P with a GPU in MIG mode = %d, %v", got, err)
	}
}

func TestFabric(t *testing.T) {
	info, err := testNode(t, "gb200-nvl72").Device(1).Links().Fabric()
	want := FabricInfo{State: FabricCompleted, Clique: 32766, ClusterUUID: [16]byte{0x6f, 0xbb, 0x1d, 0xe4, 0x2f, 0x8a, 0x4d, 0x3c, 0x9d, 0x2f, 0x7c, 0x14, 0xa1, 0xf0, 0xc2, 0xe5}}
	if diff := cmp.Diff(want, info); diff != "" || err != nil {
		t.Errorf("fabric, %v (-want +got):\n%s", err, diff)
	}
	if _, err := testNode(t, "l40s").Device(0).Links().Fabric(); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("fabric of an L40S = %v", err)
	}
}

func TestAffinity(t *testing.T) {
	n := testNode(t, "hgx-h100")
	node, err := n.Device(7).Links().MemoryAffinity()
	if node != 1 || err != nil {
		t.Errorf("MemoryAffinity = %d, %v", node, err)
	}
	cpus, err := n.Device(7).Links().CPUAffinity()
	if diff := cmp.Diff([]CPURange{{56, 111}, {168, 223}}, cpus); diff != "" || err != nil {
		t.Errorf("CPUAffinity, %v (-want +got):\n%s", err, diff)
	}
	if _, err := n.Device(7).Links().NUMANodeID(); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("NUMANodeID on a PCIe GPU = %v", err)
	}
	if _, err := testNode(t, "t4").Device(0).Links().MemoryAffinity(); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("MemoryAffinity without NUMA = %v", err)
	}
	for _, model := range []string{"gb200-nvl72", "gh200"} {
		if id, err := testNode(t, model).Device(0).Links().NUMANodeID(); id < 2 || err != nil {
			t.Errorf("NUMANodeID on Grace (%s) = %d, %v", model, id, err)
		}
	}
}

func TestFieldValues(t *testing.T) {
	n := testNode(t, "hgx-h100")
	must(t, n.Hardware().SetRecoveryAction(0, 1))
	for _, tt := range []struct {
		field, scope int
		want         uint64
	}{
		{fieldNVLinkCount, 0, 18}, {fieldNVLinkSpeedCommon, 0, 26562}, {fieldNVLinkState, 17, 1}, {fieldNVLinkVersion, 0, 6},
		{fieldMIGQueryIndependent, 0, 1}, {fieldRecoveryAction, 0, 1}, {fieldNVSwitchLinks, 0, 18}, {fieldNVLinkSpeed, 2, 26562},
	} {
		got, err := n.Device(0).FieldValue(tt.field, tt.scope)
		if got != tt.want || err != nil {
			t.Errorf("field %d = %d, %v, want %d", tt.field, got, err, tt.want)
		}
	}
	if _, err := n.Device(0).FieldValue(fieldNVLinkState, 18); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("state of link 18 = %v", err)
	}
	if _, err := testNode(t, "l40s").Device(0).FieldValue(fieldNVLinkCount, 0); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("NVLinks of an L40S = %v", err)
	}
}
