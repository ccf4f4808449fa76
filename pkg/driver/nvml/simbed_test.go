// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// bed is a session on a simulated node in memory.
type bed struct {
	*nvml.Session
	t     *testing.T
	node  *sim.Node
	meter *nvml.Meter
}

func newBed(t *testing.T, model string, opts ...sim.Option) *bed {
	t.Helper()
	node, err := sim.New(model, opts...)
	if err != nil {
		t.Fatal(err)
	}
	session, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	return &bed{session, t, node, nvml.NewMeter(session)}
}

// gpu0 is the GPU of index 0.
func (b *bed) gpu0() *gpu.GPU { return &b.Node().GPUs[0] }

// shape is a partition of GPU 0, by profile ID and start.
func (b *bed) shape(profile, start int) gpu.Shape {
	b.t.Helper()
	shapes := b.gpu0().Shapes()
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
	if err := b.SetMIG(b.t.Context(), b.gpu0().PCI, true); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) create(profile, start int) gpu.Partition {
	b.t.Helper()
	part, err := b.CreatePartition(b.t.Context(), b.shape(profile, start))
	if err != nil {
		b.t.Fatal(err)
	}
	return part
}

// status is GPU 0 as it is, without a call.
func (b *bed) status() sim.GPUStatus {
	b.t.Helper()
	st, err := b.node.Status()
	if err != nil {
		b.t.Fatal(err)
	}
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

func mustFail(t *testing.T, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
