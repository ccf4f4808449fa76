// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestReadLinks_Active(t *testing.T) {
	full := make([]bool, 18)
	for i := range full {
		full[i] = true
	}
	tests := map[string]struct {
		links []bool
		want  *int
	}{
		"none on the board": {nil, nil},
		"all down":          {[]bool{false, false}, ptr(0)},
		"first down":        {[]bool{false, true, true}, ptr(2)},
		"all 18 of an H100": {full, ptr(18)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := h100(0)
			d.links = tt.links
			got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].NVLinks
			var active *int
			if got != nil {
				active = &got.Active
			}
			equal(t, "active links", tt.want, active)
		})
	}
}

func TestReadLinks_Peers(t *testing.T) {
	d := h100(0)
	d.links = []bool{true, true, false, true}
	d.remotes = map[int]string{0: "00000000:3B:00.0", 1: "00000000:1B:00.0", 2: "00000000:1B:00.0", 3: "00000000:1B:00.0"}
	got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].NVLinks
	want := &gpu.NVLinks{Active: 3, Version: gpu.Version{Major: 4}, MBps: 3 * 26562, Peers: []gpu.NVLinkPeer{
		{PCI: gpu.PCIAddress{Bus: 0x1b}, Links: 2}, {PCI: gpu.PCIAddress{Bus: 0x3b}, Links: 1},
	}}
	equal(t, "links", want, got)
	d.errs["NVLinkRemotePCIInfo"] = gpu.ErrNotSupported
	want.Peers = nil
	got = mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].NVLinks
	equal(t, "links without addresses", want, got)
}

func TestReadLinks_Speed(t *testing.T) {
	tests := map[string]struct {
		speeds map[int]uint64
		common error
		want   int64
	}{
		"all that links have":          {nil, nil, 3 * 26562},
		"each its own":                 {map[int]uint64{0: 1000, 1: 2000, 2: 4000}, gpu.ErrNotSupported, 7000},
		"one of its own":               {map[int]uint64{1: 1000}, nil, 2*26562 + 1000},
		"one that says nothing":        {map[int]uint64{0: 1000, 1: 0, 2: 1000}, nil, 26562 + 2000},
		"one unknown":                  {map[int]uint64{0: 1000, 1: 1000}, gpu.ErrNotSupported, 0},
		"one that is beyond all reach": {map[int]uint64{0: 1000, 1: 1000, 2: 1 << 40}, nil, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := h100(0)
			d.speeds = tt.speeds
			d.errs["field 90"] = tt.common
			if got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].NVLinks.MBps; got != tt.want {
				t.Errorf("got %d MB/s, want %d", got, tt.want)
			}
		})
	}
}

func TestReadFabric(t *testing.T) {
	uuid := [16]byte{0x6f, 0xbb, 0x1d, 0xe4, 0x2f, 0x8a, 0x4d, 0x3c, 0x9d, 0x2f, 0x7c, 0x14, 0xa1, 0xf0, 0xc2, 0x05}
	joined := &gpu.Fabric{ClusterUUID: "6fbb1de4-2f8a-4d3c-9d2f-7c14a1f0c205", CliqueID: 7}
	tests := map[string]struct {
		info FabricInfo
		want *gpu.Fabric
	}{
		"joined":             {FabricInfo{ClusterUUID: uuid, CliqueID: 7, State: 3}, joined},
		"of a single node":   {FabricInfo{CliqueID: 7, State: 3}, nil},
		"joining":            {FabricInfo{ClusterUUID: uuid, CliqueID: 7, State: 2}, nil},
		"could not join":     {FabricInfo{ClusterUUID: uuid, CliqueID: 7, State: 3, Status: errors.New("unknown error")}, nil},
		"knows of no fabric": {FabricInfo{}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := h100(0)
			d.fabric = tt.info
			got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].Fabric
			equal(t, "fabric", tt.want, got)
		})
	}
	d := h100(0)
	d.links, d.fabric = []bool{false, false}, FabricInfo{ClusterUUID: uuid, State: 3}
	if got := mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs[0].Fabric; got != nil {
		t.Errorf("a GPU without a link that is up is in fabric %v", got)
	}
}

// Nothing but advice follows from topology: a driver with odd answers must not keep the GPU from being served.
func TestReadLinks_InvalidAnswers(t *testing.T) {
	tests := map[string]func(g *gpu.GPU){
		"NVLinkVersion":          func(g *gpu.GPU) { g.NVLinks.Version = gpu.Version{} },
		"NVLinkRemoteDeviceType": func(g *gpu.GPU) { g.NVLinks.Switched = false },
		"FieldValues":            func(g *gpu.GPU) { g.NVLinks.MBps = 0 },
		"FabricInfo":             func(*gpu.GPU) {},
	}
	for call, change := range tests {
		d, want := h100(0), wantH100(0)
		d.errs[call] = errors.New("unknown error")
		change(&want)
		equal(t, call, []gpu.GPU{want}, mustDiscover(t, &fakeLibrary{devices: []*fakeDevice{d}}).GPUs)
	}
}

func TestNVLinkVersions(t *testing.T) {
	want := map[int]string{1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
	got := map[int]string{}
	for enum, v := range nvlinkVersions {
		got[enum] = v.String()
	}
	equal(t, "NVML_NVLINK_VERSION_*", want, got)
}
