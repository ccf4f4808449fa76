// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// sharing is a valid record of a claim with a time slice and an MPS share, all fields set.
func sharing(uid types.UID) *Record {
	r := sample(uid)
	slice, mps := &r.Devices[0], &r.Devices[1]
	slice.Device += "-timeslice"
	slice.Share = &Share{
		ID: "5e1d0a7a-0002-4a8e-9a57-6b1b0a7a5a02", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30, CgroupMemory: true, Interval: "Long",
	}
	slice.CDIDeviceIDs = append(slice.CDIDeviceIDs, "gpu.cleave.dev/claim="+string(uid)+"-"+slice.Device+"-"+slice.Share.ID)
	mps.Device += "-mps"
	mps.AdminAccess = false
	mps.Share = &Share{
		ID: "5e1d0a7a-0003-4a8e-9a57-6b1b0a7a5a03", Kind: gpu.MPS, Shares: 2, Memory: 40 << 30, Cores: 50,
		MPS: &MPS{
			ThreadPercentage: 25, Memory: 30 << 30, ManyClients: true, BelowNormal: true,
			PipeDir: "/run/cleave/mps/gpu-0000-2a-00-0/pipe", ShmDir: "/run/cleave/mps/gpu-0000-2a-00-0/shm",
		},
	}
	mps.CDIDeviceIDs = append(mps.CDIDeviceIDs, "gpu.cleave.dev/claim="+string(uid)+"-"+mps.Device+"-"+mps.Share.ID)
	return r
}

func TestRecord_Clone(t *testing.T) {
	ci := 3
	r := sharing(uidA)
	r.Devices = append(r.Devices, sample(uidA).Devices[0])
	r.Devices[2].Partition = &gpu.Partition{ProfileID: 19, GI: 9, CI: &ci}
	before := r.Clone()
	if diff := cmp.Diff(r, before); diff != "" {
		t.Fatalf("clone (-record +clone):\n%s", diff)
	}
	c := r.Clone()
	c.State, c.Claim.Name = Releasing, "other"
	for i := range c.Devices {
		d := &c.Devices[i]
		d.Request, d.CDIDeviceIDs[0] = "other", "other"
		if d.Share != nil {
			d.Share.Interval, d.Share.Memory = "Short", 1
		}
		if d.Share != nil && d.Share.MPS != nil {
			d.Share.MPS.PipeDir, d.Share.MPS.ThreadPercentage = "/other", 1
		}
		if d.Partition != nil {
			d.Partition.UUID = "other"
		}
	}
	if diff := cmp.Diff(before, r); diff != "" {
		t.Errorf("record after its clone was changed (-before +after):\n%s", diff)
	}
}

func TestShares(t *testing.T) {
	r := sharing(uidA)
	r.Devices = append(r.Devices, sample(uidA).Devices[0], r.Devices[0])
	for kind, want := range map[gpu.Share][]*Device{gpu.TimeSlice: {&r.Devices[0], &r.Devices[3]}, gpu.MPS: {&r.Devices[1]}, "other": nil} {
		if diff := cmp.Diff(want, r.Shares(kind)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
	if got := len(r.InSpec()); got != 3 {
		t.Errorf("%d devices are in the claim's own spec, want the 3 shares", got)
	}
	if got := r.Partitions(); got != nil {
		t.Errorf("got partitions %v, want none", got)
	}
	r.Shares(gpu.MPS)[0].Share.MPS.PipeDir = "/moved" // callers fill in what only the server knows
	if r.Devices[1].Share.MPS.PipeDir != "/moved" {
		t.Error("the devices that are listed are copies")
	}
}

func TestShare_Corrupt(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "format1-shares.json"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ from, to, want string }{
		"unknown kind":         {`"kind":"timeslice"`, `"kind":"vgpu"`, `devices[0] is no whole share, of kind "vgpu"`},
		"no kind":              {`"kind":"mps",`, ``, `devices[1] is no whole share, of kind ""`},
		"kind in other case":   {`"kind":"mps"`, `"kind":"MPS"`, `devices[1]`},
		"amounts as text":      {`"memory":21474836480`, `"memory":"20Gi"`, "decode"},
		"a share that is none": {`"mps":{"threadPercentage":25`, `"mps":[25],"x":{"y":1`, "decode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(string(data), tt.from, tt.to, 1)
			if bad == string(data) {
				t.Fatalf("%s is not in the golden file", tt.from)
			}
			s := openStore(t)
			if err := os.WriteFile(filepath.Join(s.Dir(), string(uidA)+".json"), []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := s.Read(uidA)
			if corrupt := (*store.CorruptError)(nil); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want a CorruptError that says %q", got, err, tt.want)
			}
		})
	}
}

// A shared partition has both. Releases before 0.2 set such a record aside.
func TestShare_OfPartition(t *testing.T) {
	s := openStore(t)
	r := sharing(uidA)
	ci := 0
	r.Devices[1].Partition = &gpu.Partition{ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}, GI: 2, CI: &ci, UUID: "MIG-1"}
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
	got, err := s.Read(uidA)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	d := &got.Devices[1]
	if d.Server() != "gpu-0000-2a-00-0-mig-9-4" || got.Devices[0].Server() != got.Devices[0].GPU {
		t.Errorf("MPS servers are %s and %s", d.Server(), got.Devices[0].Server())
	}
	pci, err := gpu.ParsePCIAddress("0000:2a:00.0")
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Allocated{Shared: []gpu.SharedPlace{{Place: d.Partition.Place(), Share: gpu.MPS}}}
	if diff := cmp.Diff(want, AllocatedOf([]*Record{r, r})(&gpu.GPU{PCI: pci})); diff != "" {
		t.Errorf("allocated (-want +got):\n%s", diff)
	}
	d.Share.Exclusive = true
	if has := AllocatedOf([]*Record{got})(&gpu.GPU{PCI: pci}); len(has.Places) != 1 || len(has.Shared) != 0 {
		t.Errorf("one claim has %+v, want a place", has)
	}
}

func TestShare_Exclusive(t *testing.T) {
	s := openStore(t)
	r := sharing(uidA)
	for i := range r.Devices {
		r.Devices[i].Share.ID, r.Devices[i].Share.Exclusive = ExclusiveID, true
	}
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
	got, err := s.Read(uidA)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if limits := r.Devices[1].Share.Limits(); limits != r.Devices[1].Share.MPS {
		t.Errorf("its server has limits %v, want the claim's", limits)
	}
	if limits := sharing(uidA).Devices[1].Share.Limits(); limits != nil {
		t.Errorf("a server that claims share has limits %v of one of them", limits)
	}
	pci, err := gpu.ParsePCIAddress("0000:2a:00.0")
	if err != nil {
		t.Fatal(err)
	}
	if has := AllocatedOf([]*Record{r})(&gpu.GPU{PCI: pci}); has.Tiers != (gpu.Tiers{Whole: true}) {
		t.Errorf("it holds %+v, want the whole GPU", has)
	}
}
