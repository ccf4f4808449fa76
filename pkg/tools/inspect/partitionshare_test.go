// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// sharedPartitions is a node whose partitions 3g.40gb are shared by MPS, three claims in one of them.
func sharedPartitions(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "hgx-h100")
	m.policy = &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}, MIG: &v1alpha1.MIGPolicy{
		Share: []v1alpha1.PartitionShare{{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}}},
	}}}}
	m.claim("ml/half", m.made(0, "4g.40gb", 0))
	shared := m.made(0, "3g.40gb", 4)
	for _, name := range []string{"infer/a", "infer/b", "infer/c"} {
		d := shared
		d.Device += "-mps"
		d.Share = &records.Share{ID: "i", Kind: gpu.MPS, Shares: 1, Memory: 4 * gib, Cores: 12, MPS: &records.MPS{}}
		m.claim(name, d)
	}
	return m
}

func TestPrint_SharedPartitions(t *testing.T) {
	v := only(sharedPartitions(t).view(), 0, 1)
	checkGolden(t, "shared-partitions.txt", text(t, v, Options{Width: 110, Wide: true}))
}

func TestOfMachine_SharedPartitions(t *testing.T) {
	g := &sharedPartitions(t).view().GPUs[0]
	if got, want := g.AllocatedText(), "3 of 10 MPS shares of 3g.40gb, 4g.40gb"; got != want {
		t.Errorf("allocated: %s, want %s", got, want)
	}
	if got, want := g.FreeText(), "6 MPS shares of 3g.40gb"; got != want {
		t.Errorf("free: %s, want %s", got, want)
	}
	if len(g.Partitions) != 2 || g.Partitions[1].State != PartitionAllocated || len(g.Partitions[1].Claims) != 3 {
		t.Errorf("partitions %+v, want the second allocated to three claims", g.Partitions)
	}
	states := map[string]ShapeState{}
	for _, s := range g.Shapes {
		if s.Profile == "3g.40gb" && s.Placement.Start == 4 {
			states[s.Type] = s.State
		}
	}
	if diff := cmp.Diff(map[string]ShapeState{typeMIG: Blocked, typeMIGMPS: Shared}, states); diff != "" {
		t.Errorf("states of the upper half (-want +got):\n%s", diff)
	}
}

// What the slices of the node say is the same.
func TestOfPool_SharedPartitions(t *testing.T) {
	m := sharedPartitions(t)
	p := m.published()
	for _, r := range m.Records {
		claim := allocated(r.Claim.Namespace+"/"+r.Claim.Name, results{result(r.Devices[0].Device)})
		if r.Devices[0].IsShared() {
			claim = allocated(r.Claim.Namespace+"/"+r.Claim.Name, results{part(r.Devices[0].Device, "4Gi", "12")})
		}
		p.Claims = append(p.Claims, claim)
	}
	machine, cluster := &m.view().GPUs[0], &viewOf(t, p).GPUs[0]
	if machine.AllocatedText() != cluster.AllocatedText() || machine.FreeText() != cluster.FreeText() {
		t.Errorf("the slices say %q are allocated and %q free, the machine %q and %q", cluster.AllocatedText(), cluster.FreeText(),
			machine.AllocatedText(), machine.FreeText())
	}
	if len(cluster.Partitions) != 2 || len(cluster.Partitions[1].Claims) != 3 {
		t.Errorf("partitions %+v, want the second allocated to three claims", cluster.Partitions)
	}
	var labels []string
	for _, s := range cluster.Segments() {
		labels = append(labels, s.Label)
	}
	if diff := cmp.Diff([]string{"4g.40gb", "3g.40gb"}, labels); diff != "" {
		t.Errorf("slice map (-want +got):\n%s", diff)
	}
}
