// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// BenchmarkPartition creates and destroys a partition of a node on disk.
func BenchmarkPartition(b *testing.B) {
	n, err := Create(b.TempDir()+"/root", "hgx-h100", WithoutDeviceNodes())
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Init(); err != nil {
		b.Fatal(err)
	}
	d, err := n.DeviceByIndex(0)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := d.MIG().SetMIGMode(true); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		gi, err := d.MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 6, Size: 1})
		if err != nil {
			b.Fatal(err)
		}
		ci, err := gi.CreateComputeInstance(0)
		if err != nil {
			b.Fatal(err)
		}
		if err := ci.Destroy(); err != nil {
			b.Fatal(err)
		}
		if err := gi.Destroy(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCall is the cheapest call of a node on disk.
func BenchmarkCall(b *testing.B) {
	n, err := Create(b.TempDir()+"/root", "hgx-h100", WithoutDeviceNodes())
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Init(); err != nil {
		b.Fatal(err)
	}
	d, err := n.DeviceByIndex(0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.UUID(); err != nil {
			b.Fatal(err)
		}
	}
}
