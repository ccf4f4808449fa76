// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// bed is a session on a simulated node.
type bed struct {
	*nvml.Session
	t         *testing.T
	node      *sim.Node
	meter     *nvml.Meter
	allocated map[gpu.PCIAddress]bool
}

// newBed opens a node in memory.
func newBed(t *testing.T, model string, opts ...sim.Option) *bed {
	t.Helper()
	node, err := sim.New(model, opts...)
	must(t, err)
	return open(t, node)
}

// newBedAfter opens a node in memory to which something has happened.
func newBedAfter(t *testing.T, model string, before func(*sim.Node) error) *bed {
	t.Helper()
	node, err := sim.New(model)
	must(t, err)
	must(t, before(node))
	return open(t, node)
}

// newSharedBed opens a node that other processes use, too: the bed's is theirs.
func newSharedBed(t *testing.T, model string) *bed {
	t.Helper()
	root := filepath.Join(t.TempDir(), "node")
	node, err := sim.Create(root, model, sim.WithoutDeviceNodes())
	must(t, err)
	own, err := sim.Open(root)
	must(t, err)
	b := open(t, own)
	b.node = node
	return b
}

func open(t *testing.T, node *sim.Node) *bed {
	t.Helper()
	session, err := simulated.OpenNode(t.Context(), node)
	must(t, err)
	return &bed{session, t, node, nvml.NewMeter(session), map[gpu.PCIAddress]bool{}}
}

func asItIs(*sim.Node) error { return nil }

// quirk makes a driver odd.
func quirk(q sim.Quirk) func(*sim.Node) error {
	return func(n *sim.Node) error { return n.Driver().SetQuirk(q, true) }
}

func (b *bed) gpu(i int) *gpu.GPU { return &b.Node().GPUs[i] }

// rediscover looks for GPUs.
func (b *bed) rediscover() (changed bool, err error) {
	return b.Rediscover(b.t.Context(), func(pci gpu.PCIAddress) bool { return b.allocated[pci] })
}

// setMIGMode turns the MIG mode of a GPU on, as another process does.
func setMIGMode(t *testing.T, node *sim.Node, i int) {
	t.Helper()
	must(t, node.Init())
	if activation, err := node.Device(i).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Fatal(activation, err)
	}
}

// shape is a partition of GPU 0, by profile ID and start.
func (b *bed) shape(profile, start int) gpu.Shape {
	b.t.Helper()
	shapes := b.gpu(0).Shapes()
	i := slices.IndexFunc(shapes, func(s gpu.Shape) bool {
		return s.IsPartition() && s.Profile.ID == profile && s.Placement.Start == start
	})
	if i < 0 {
		b.t.Fatalf("GPU 0 offers no profile %d at %d", profile, start)
	}
	return shapes[i]
}

func (b *bed) enable() {
	b.t.Helper()
	must(b.t, b.SetMIG(b.t.Context(), b.gpu(0).PCI, true))
}

func (b *bed) create(profile, start int) gpu.Partition {
	b.t.Helper()
	part, err := b.CreatePartition(b.t.Context(), b.shape(profile, start))
	must(b.t, err)
	return part
}

// status is GPU 0 as it is, without a call.
func (b *bed) status() sim.GPUStatus {
	b.t.Helper()
	st, err := b.node.Status()
	must(b.t, err)
	return st.GPUs[0]
}

// instances lists the GPU instances of GPU 0 as "profile@start/compute instances".
func (b *bed) instances() []string {
	b.t.Helper()
	list := []string{}
	for _, gi := range b.status().Instances {
		list = append(list, fmt.Sprintf("%d@%d/%d", gi.ProfileID, gi.Start, len(gi.Compute)))
	}
	return list
}

// calls counts the NVML calls of an action.
func (b *bed) calls(action func()) int64 {
	b.node.Calls().Reset()
	action()
	return b.node.Calls().Total()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func mustFail(t *testing.T, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
