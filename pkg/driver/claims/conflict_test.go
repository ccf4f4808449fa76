// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func TestExcludes(t *testing.T) {
	const on, elsewhere = "gpu-0000-10-00-0", "gpu-0000-11-00-0"
	partition := func(start, size int) *records.Device {
		return &records.Device{GPU: on, Partition: &gpu.Partition{Placement: gpu.Placement{Start: start, Size: size}}}
	}
	share := func(kind gpu.Share) *records.Device {
		return &records.Device{GPU: on, Share: &records.Share{Kind: kind}}
	}
	whole := &records.Device{GPU: on}
	for name, test := range map[string]struct {
		allocated, want *records.Device
		excludes        bool
	}{
		"the whole GPU":             {whole, whole, true},
		"another GPU":               {whole, &records.Device{GPU: elsewhere}, false},
		"whole, partition":          {whole, partition(0, 1), true},
		"partition, whole":          {partition(0, 1), whole, true},
		"partitions, apart":         {partition(0, 2), partition(2, 1), false},
		"partitions, overlapping":   {partition(0, 2), partition(1, 1), true},
		"partition, share":          {partition(0, 2), share(gpu.MPS), true},
		"shares of one kind":        {share(gpu.MPS), share(gpu.MPS), true},
		"shares of different kinds": {share(gpu.MPS), share(gpu.TimeSlice), true},
		"admin access":              {&records.Device{GPU: on, AdminAccess: true}, whole, false},
	} {
		allocated := extentsOf(&records.Record{Devices: []records.Device{*test.allocated}}, test.allocated.GPU)
		if got := slices.ContainsFunc(allocated, extentOf(test.want).collides); got != test.excludes {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestDeviceNamed(t *testing.T) {
	session, err := simulated.OpenNode(t.Context(), newSimNode(t, "hgx-h100"))
	must(t, err)
	node := session.Node()
	// Whatever a node can publish is found again by its name.
	for i := range node.GPUs {
		for _, s := range node.GPUs[i].Shapes() {
			d := deviceNamed(s.Name(), node)
			if d.GPU != s.GPU.PCI.DeviceName() || s.IsPartition() != (d.Partition != nil) || s.IsPartition() && d.Partition.Place() != s.Place() {
				t.Errorf("device %s is %+v", s.Name(), d)
			}
		}
	}
	name := node.GPUs[0].PCI.DeviceName()
	for device, gpuDevice := range map[string]string{
		name + "-mps": name, name + "-timeslice": name, name + "-mig-99-0": name, name + "-mig-19": name, name + "-mig-x-y": name,
		name + "-other": name, "gpu-0": "gpu-0", "": "", "gpu-0000-ff-00-0-mig-19-0": "gpu-0000-ff-00-0",
	} {
		d := deviceNamed(device, node)
		if d.GPU != gpuDevice || d.Partition != nil || (d.Share != nil) != (strings.HasSuffix(device, "-mps") || strings.HasSuffix(device, "-timeslice")) {
			t.Errorf("device %q is %+v, want of GPU %q", device, d, gpuDevice)
		}
	}
}

// What was made ahead of claims under the other name is Cleave's, and is destroyed when the policy no longer has it.
func TestKeepLayouts_OfAnotherName(t *testing.T) {
	node := newSimNode(t, "hgx-h100")
	root := t.TempDir()
	before := startProcess(t, root, nameA, node)
	g := before.backend.Load().hardware.Node().GPUs[0]
	cutTo := func(e *Preparer, places ...gpu.Place) {
		t.Helper()
		o := e.backend.Load().hardware.(offeredHardware)
		o.offers = make([]policy.Offer, len(o.Node().GPUs))
		o.offers[0] = policy.Offer{Partitions: &policy.PartitionOffer{Mode: policy.Layout, Places: places}}
		e.backend.Store(&backend{hardware: o, cdi: e.backend.Load().cdi, holders: noHolders})
		if problems := e.Partitions.KeepLayouts(t.Context()); len(problems) > 0 {
			t.Fatal(problems)
		}
	}
	at := func(start int) gpu.Place {
		return gpu.Place{ProfileID: 19, Placement: gpu.Placement{Start: start, Size: 1}}
	}
	cutTo(before.Preparer, at(0), at(1))
	before.die()

	now := startProcess(t, root, nameB, node)
	cutTo(now.Preparer, at(1), at(2))
	if got := instancesOf(t, node); !slices.Equal(got, []string{"0 19@1", "0 19@2"}) {
		t.Errorf("partitions of %s are %v", g.PCI, got)
	}
}
