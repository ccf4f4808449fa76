// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// partitionAtRandom allocates partitions of GPU 0, and returns the same claims of a cluster.
func (m *machine) partitionAtRandom(dice *rand.Rand) []resourceapi.ResourceClaim {
	m.t.Helper()
	var claims []resourceapi.ResourceClaim
	shapes := m.gpu(0).Shapes()
	for range 1 + dice.IntN(5) {
		s := shapes[dice.IntN(len(shapes))]
		if !s.IsPartition() {
			continue
		}
		part, err := m.session.CreatePartition(m.t.Context(), s)
		if err != nil {
			continue // there is no room
		}
		name := fmt.Sprintf("ns/%s", s.Name())
		m.claim(name, m.partition(0, s.Profile.Name, s.Placement.Start, part))
		claims = append(claims, allocated(name, results{result(s.Name())}))
	}
	return claims
}

func TestOfMachine_StatesMatchHardware(t *testing.T) {
	for _, model := range []string{"hgx-h100", "a30", "rtx-pro-6000"} {
		for seed := range uint64(12) {
			m := newMachine(t, model)
			m.policy = policyOf(t, "- {tiers: [mig], mig: {profiles: ["+strings.Join(m.gpu(0).MIG.Catalog(), ", ")+"]}}\n")
			m.mig(0)
			claims := m.partitionAtRandom(rand.New(rand.NewPCG(seed, 1)))
			v := m.view().GPUs[0]
			for i := range v.Shapes {
				m.compareWithBoard(model, &v.Shapes[i])
			}
			p := m.published()
			p.Claims = claims
			fromCluster := viewOf(t, p).GPUs[0]
			if diff := cmp.Diff(states(&v), states(&fromCluster)); diff != "" {
				t.Errorf("%s: states of shapes (-machine +cluster):\n%s", model, diff)
			}
			if diff := cmp.Diff(v.Free, fromCluster.Free); diff != "" {
				t.Errorf("%s: free (-machine +cluster):\n%s", model, diff)
			}
		}
	}
}

func states(g *GPU) map[string]ShapeState {
	all := map[string]ShapeState{}
	for i := range g.Shapes {
		all[g.Shapes[i].Device] = g.Shapes[i].State
	}
	return all
}

// compareWithBoard tries to create a shape.
func (m *machine) compareWithBoard(model string, s *Shape) {
	m.t.Helper()
	if s.State == Allocated {
		return
	}
	shape := m.place(0, s.Profile, s.Placement.Start)
	part, err := m.session.CreatePartition(m.t.Context(), shape)
	if (err == nil) != (s.State == Free) {
		m.t.Errorf("%s: %s is shown as %s, but creating it returns %v", model, s.Device, s.State, err)
	}
	if err == nil {
		if err := m.session.DestroyPartition(m.t.Context(), shape.GPU.PCI, part); err != nil {
			m.t.Fatal(err)
		}
	}
}

func TestOfMachine_FreeCounts(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		m := newMachine(t, model)
		g := m.gpu(0)
		if !g.MIG.Capable {
			continue
		}
		m.mig(0)
		for _, a := range m.view().GPUs[0].Free {
			if a.Type != typeMIG {
				continue
			}
			most := 0
			for i := range g.MIG.Profiles {
				if g.MIG.Profiles[i].Name == a.Profile {
					most = g.MIG.Profiles[i].MaxInstances
				}
			}
			if int(a.Count) != most {
				t.Errorf("%s: %d of %s are shown as free on an empty board, which takes %d", model, a.Count, a.Profile, most)
			}
		}
	}
}

func TestOfMachine_MissingGPU(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	gone := m.whole(3)
	gone.Device, gone.GPU = "gpu-0000-ff-00-0", "gpu-0000-ff-00-0"
	m.claim("ml/orphan", gone)
	want := []string{"claim ml/orphan is allocated a part of gpu-0000-ff-00-0, which is missing"}
	if diff := cmp.Diff(want, m.view().Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestOfMachine_NoRecords(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	m.make(0, "1g.10gb", 0)
	if got := text(t, m.view(), Options{}); len(lines(got, "nvidia-smi mig")) != 1 {
		t.Errorf("it is not published how to remove the partition:\n%s", got)
	}
	m.NoRecords = "/var/lib/kubelet/plugins/gpu.cleave.dev/claims"
	got := text(t, m.view(), Options{})
	if len(lines(got, "nvidia-smi mig")) > 0 || len(lines(got, m.NoRecords)) != 1 {
		t.Errorf("without records:\n%s", got)
	}
}

func TestOfMachine_LayoutPending(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	m.policy = policyOf(t, "- {tiers: [mig], mig: {layout: {3g.40gb: 2}}}\n")
	m.make(0, "3g.40gb", 0)
	g := m.view().GPUs[0]
	want := map[string]ShapeState{g.Device + "-mig-9-0": Free, g.Device + "-mig-9-4": Blocked}
	if diff := cmp.Diff(want, states(&g)); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestOfMachine_ReleasingRecord(t *testing.T) {
	m := newMachine(t, "l40s")
	m.claim("dev/a", m.whole(0), m.share(1, records.Share{ID: "i", Kind: gpu.TimeSlice, Shares: 1})).State = records.Releasing
	released := m.claim("dev/b", m.whole(2))
	released.State, released.Devices[0].Released = records.Releasing, true
	for i, want := range []string{"-, nothing", "-, all", "-, all"} { // processes are left on the first
		g := &m.view().GPUs[i]
		if got := g.AllocatedText() + ", " + g.FreeText(); got != want || (len(g.Notes) == 1) != (i == 0) {
			t.Errorf("%s: got %s with notes %q, want %s", g.Name, got, g.Notes, want)
		}
	}
}
