// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// wholeNode is a node of a model none of whose GPUs is in MIG mode, and which are offered in these tiers.
func wholeNode(t *testing.T, model string, tiers ...v1alpha1.Tier) *policy.Node {
	t.Helper()
	inventory, err := Inventory(t.Context(), model)
	must(t, err)
	return offered(inventory, v1alpha1.Rule{Tiers: tiers})
}

// state is a node of which some GPUs are allocated, and those that are free, as bits by index.
type state struct {
	*cluster
	free uint
}

// holding takes the GPUs that are not free: the first whole, the second by a partition, and so on, where there are any.
func (c *cluster) holding(free uint) state {
	c.t.Helper()
	for i := range c.inventory.GPUs {
		if free>>i&1 == 1 {
			continue
		}
		shapes := c.inventory.Shapes(&c.inventory.GPUs[i])
		name := shapes[i*7%len(shapes)].Name()
		c.Take(resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: "gpu.cleave.dev", Pool: nodeName, Device: name},
		}}})
	}
	return state{c, free}
}

// possible reports whether one NVLink group or NUMA node has so many free GPUs.
func (s state) possible(n int) bool {
	sets := map[string]int{}
	groups := gpu.NVLinkGroups(s.inventory.GPUs)
	for i := range s.inventory.GPUs {
		g := &s.inventory.GPUs[i]
		if s.free>>i&1 == 0 {
			continue
		}
		if group := groups[g.PCI]; group != "" {
			sets[group]++
		}
		if g.NUMANode != nil {
			sets[fmt.Sprint(*g.NUMANode)]++
		}
	}
	for _, have := range sets {
		if have >= n {
			return true
		}
	}
	return false
}

// torn counts the numbers of GPUs for which the scheduler does not give GPUs of one NVLink group or NUMA node, though one
// has so many.
func (s state) torn() (torn int) {
	s.t.Helper()
	for n := 2; n <= bits.OnesCount(s.free); n++ {
		devices, release, err := s.try(newClaimOf(fmt.Sprintf("claim-%d", n), workload.ClaimSpec("gpu.cleave.dev", int64(n))))
		if err != nil {
			s.t.Fatalf("free %b: %d GPUs: %v", s.free, n, err)
		}
		release()
		if s.possible(n) && !together(s.inventory, devices) {
			torn++
		}
	}
	return torn
}

// TestTopology_EveryState tries all numbers of GPUs in all states of a node through the
// scheduler's allocator.
func TestTopology_EveryState(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		t.Run(model, func(t *testing.T) {
			inventory := wholeNode(t, model, v1alpha1.TierExclusive)
			for free := range uint(1) << len(inventory.GPUs) {
				c := newCluster(t, inventory)
				c.Follow(inventory, false)
				if torn := c.holding(free).torn(); torn > 0 {
					t.Errorf("free %0*b: %d numbers of GPUs are torn apart", len(inventory.GPUs), free, torn)
				}
			}
		})
	}
}

func TestTopology_WithPartitionsAndShares(t *testing.T) {
	for _, model := range []string{"hgx-h100", "rtx-pro-6000"} {
		inventory := offeredNode(t, model)
		step := 5
		if testing.Short() {
			step = 31
		}
		for free := 0; free < 1<<len(inventory.GPUs); free += step {
			c := newCluster(t, inventory)
			c.Follow(inventory, false)
			if torn := c.holding(uint(free)).torn(); torn > 0 {
				t.Errorf("%s, free %08b: %d numbers of GPUs are torn apart", model, free, torn)
			}
		}
	}
}

// TestTopology_StaticOrder: without it, the tests above would show nothing.
func TestTopology_StaticOrder(t *testing.T) {
	for _, model := range []string{"rtx-pro-6000", "a100-pcie-nvlink-pairs"} {
		inventory := wholeNode(t, model, v1alpha1.TierExclusive)
		torn := 0
		for free := range uint(1) << len(inventory.GPUs) {
			torn += newCluster(t, inventory).holding(free).torn()
		}
		if torn == 0 {
			t.Errorf("%s: the order of an empty node does as well", model)
		}
	}
}

// TestTopology_FreeFirstOrder compares with the same order that does not follow.
func TestTopology_FreeFirstOrder(t *testing.T) {
	for name, node := range map[string]*policy.Node{
		"rtx-pro-6000":           wholeNode(t, "rtx-pro-6000", v1alpha1.TierExclusive),
		"a100-pcie-nvlink-pairs": wholeNode(t, "a100-pcie-nvlink-pairs", v1alpha1.TierExclusive),
	} {
		static, late, follows := compareStatic(t, node, WholeMixes)
		t.Logf("%s: of the requests for several GPUs that were served, of one NVLink group or NUMA node: static %.1f %%, following late %.1f %%, following %.1f %%",
			name, 100*static.togetherShare(), 100*late.togetherShare(), 100*follows.togetherShare())
		if !(static.togetherShare() < late.togetherShare() && late.togetherShare() < follows.togetherShare()) {
			t.Errorf("%s: following what is free does not keep more GPUs together", name)
		}
	}
	compareStatic(t, wholeNode(t, "hgx-h100"), []Mix{Mixes[1], SharedMixes[0]})
}

// compareStatic replays mixes with and without following what is free. Following must reject no more, but for noise.
func compareStatic(t *testing.T, node *policy.Node, mixes []Mix) (static, late, follows Tally) {
	t.Helper()
	result, err := Compare(t.Context(), Options{
		Node: node, Mixes: mixes, Classes: manifestClasses(t), Seeds: (*seeds + 1) / 2, Requests: *requests, FirstSeed: *firstSeed, Static: true,
	})
	must(t, err)
	if err := result.Print(t.Output()); err != nil {
		t.Error(err)
	}
	for _, cell := range result {
		static, late, follows = static.plus(cell.Static), late.plus(cell.Late), follows.plus(cell.Cleave)
	}
	t.Logf("rejected: static %.2f %%, following late %.2f %%, following %.2f %%", 100*static.Share(), 100*late.Share(), 100*follows.Share())
	if most := 1.02 * static.Share(); follows.Share() > most || late.Share() > most {
		t.Errorf("following what is free rejects %.2f %%, and %.2f %% when it is late; not following %.2f %%",
			100*follows.Share(), 100*late.Share(), 100*static.Share())
	}
	return static, late, follows
}

// togetherShare is the part of the requests for several GPUs that were served from one group or node.
func (t Tally) togetherShare() float64 { return float64(t.Together) / float64(max(1, t.Several)) }

func TestTopology_Examples(t *testing.T) {
	tests := []struct {
		example, model string
		free           uint
		want           string
	}{
		{"topology-four-nvlink", "hgx-h100", 0b01011101, "6 4 3 2"},
		{"topology-four-nvlink", "hgx-h100", 0b00000111, ""},
		{"topology-four-nvlink", "gb200-nvl72", 0b1111, "3 2 1 0"},
		{"topology-four-nvlink", "a100-pcie-nvlink-pairs", 0b1111, ""}, // pairs
		{"topology-four-nvlink", "rtx-pro-6000", 0b11111111, ""},       // no NVLink
		{"topology-two-numa", "rtx-pro-6000", 0b00110001, "5 4"},
		{"topology-two-numa", "rtx-pro-6000", 0b10000001, ""},
		{"topology-two-numa", "a100-pcie-nvlink-pairs", 0b1011, "1 0"},
		{"topology-two-numa", "t4", 0b1, ""},
	}
	for _, tt := range tests {
		inventory := wholeNode(t, tt.model, v1alpha1.TierExclusive)
		c := newCluster(t, inventory) // in any order: the constraint is the guarantee
		c.holding(tt.free)
		_, claims := podClaims(t, example(t, tt.example), c.class)
		var got []string
		devices, _, err := c.try(claims[tt.example]...)
		if err != nil && !errors.Is(err, allocator.ErrNoFit) {
			t.Fatal(err)
		}
		for _, d := range devices {
			got = append(got, fmt.Sprint(c.parent(d)))
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s on %s, free %b (-want +got):\n%s", tt.example, tt.model, tt.free, diff)
		}
	}
}

// TestTopology_Links has the expression of docs/topology.md.
func TestTopology_Links(t *testing.T) {
	fast := func(class string) *resourceapi.ResourceClaim {
		return newClaimOf("fast", workload.ClaimSpec(class, 1, `device.attributes["gpu.cleave.dev"].?nvlinkBandwidthMBps.orValue(0) >= 400000`))
	}
	for model, want := range map[string]bool{"hgx-h100": true, "gb200-nvl72": true, "dgx-a100": false, "l40s": false} {
		claim := fast("gpu.cleave.dev")
		checkSelectors(t, claim.Spec.Devices.Requests[0].Exactly.Selectors)
		_, _, err := newCluster(t, wholeNode(t, model)).try(claim)
		if err != nil && !errors.Is(err, allocator.ErrNoFit) || (err == nil) != want {
			t.Errorf("%s: got %v, want a GPU: %t", model, err, want)
		}
	}
	if _, _, err := newCluster(t, wholeNode(t, "hgx-h100")).try(fast("mig.cleave.dev")); !errors.Is(err, allocator.ErrNoFit) {
		t.Errorf("a partition with NVLinks: got %v, want none", err)
	}
}
