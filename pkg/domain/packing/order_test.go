// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func modelNode(t *testing.T, model string) *gpu.Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	node := *session.Node()
	return &node
}

// offeredNode is a node of a model whose GPUs offer all tiers, in MIG mode or not.
func offeredNode(t *testing.T, model string, mig bool) *policy.Node {
	t.Helper()
	node := &policy.Node{Node: modelNode(t, model)}
	for i := range node.GPUs {
		node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
		node.Offers = append(node.Offers, policy.Offer{
			Whole: true, Partitions: &policy.PartitionOffer{Mode: policy.OnDemand}, TimeSlice: &policy.Sharing{Shares: 4}, MPS: &policy.Sharing{Shares: 10},
		})
	}
	return node
}

// nodeOf gives GPUs bus numbers from 1.
func nodeOf(gpus ...gpu.GPU) []gpu.GPU {
	for i := range gpus {
		gpus[i].PCI = gpu.PCIAddress{Bus: uint8(i + 1)}
		gpus[i].Index = i
	}
	return gpus
}

// wholeOrder is the order of whole GPUs by their index, with these free.
func wholeOrder(gpus []gpu.GPU, free func(*gpu.GPU) bool) []int {
	var order []int
	for _, s := range packing.OrderWhole(gpus, (*gpu.GPU).Shapes, free) {
		order = append(order, s.GPU.Index)
	}
	return order
}

// within reports of a set of GPUs, as bits by index.
func within(set uint) func(*gpu.GPU) bool {
	return func(g *gpu.GPU) bool { return set>>g.Index&1 == 1 }
}

func TestOrderWhole_Models(t *testing.T) {
	tests := []struct {
		model     string
		allocated []int
		want      string
	}{
		{"hgx-h100", nil, "7 6 5 4 3 2 1 0"},
		{"hgx-h100", []int{7}, "3 2 1 0 7 6 5 4"},    // four are left on the first NUMA node
		{"hgx-h100", []int{0, 7}, "7 6 5 4 3 2 1 0"}, // as many on each
		{"hgx-h100", []int{4, 5, 6, 7}, "3 2 1 0 7 6 5 4"},
		{"hgx-h100", []int{0, 1, 2, 3, 4, 5, 6, 7}, "7 6 5 4 3 2 1 0"},
		{"a100-pcie-nvlink-pairs", nil, "3 2 1 0"},
		{"a100-pcie-nvlink-pairs", []int{3}, "1 0 3 2"},
		{"a100-pcie-nvlink-pairs", []int{3, 0}, "3 2 1 0"},
		{"rtx-pro-6000", nil, "7 6 5 4 3 2 1 0"},
		{"rtx-pro-6000", []int{7}, "3 2 1 0 5 4 7 6"},
		{"rtx-pro-6000", []int{7, 5, 3}, "1 0 3 2 7 6 5 4"},
		{"rtx-pro-6000", []int{7, 5, 3, 2}, "1 0 3 2 7 6 5 4"}, // two on each node, but one switch has both
		{"gb200-nvl72", []int{2}, "1 0 3 2"},
		{"a30", []int{1}, "1 0"}, // nothing joins the two, so nothing moves
		{"t4", []int{0}, "0"},
	}
	for _, tt := range tests {
		node := modelNode(t, tt.model)
		got := wholeOrder(node.GPUs, func(g *gpu.GPU) bool { return !slices.Contains(tt.allocated, g.Index) })
		if diff := cmp.Diff(tt.want, strings.Trim(fmt.Sprint(got), "[]")); diff != "" {
			t.Errorf("%s, %v allocated (-want +got):\n%s", tt.model, tt.allocated, diff)
		}
	}
}

// groupsOf are the NVLink groups and NUMA nodes of GPUs, as bits by index.
func groupsOf(gpus []gpu.GPU) []uint {
	sets := map[string]uint{}
	groups := gpu.NVLinkGroups(gpus)
	for i := range gpus {
		if name := groups[gpus[i].PCI]; name != "" {
			sets[name] |= 1 << gpus[i].Index
		}
		if n := gpus[i].NUMANode; n != nil {
			sets[fmt.Sprint("NUMA node ", *n)] |= 1 << gpus[i].Index
		}
	}
	var all []uint
	for _, set := range sets {
		all = append(all, set)
	}
	return all
}

// checkOrder checks, for any number of GPUs, that the first free ones are of one NVLink group or NUMA node if any has so
// many free.
func checkOrder(t *testing.T, what string, gpus []gpu.GPU, free uint) {
	t.Helper()
	order := wholeOrder(gpus, within(free))
	if sorted := slices.Sorted(slices.Values(order)); len(sorted) != len(gpus) || len(slices.Compact(sorted)) != len(gpus) {
		t.Fatalf("%s: the order %v does not have each GPU once", what, order)
	}
	sets := groupsOf(gpus)
	for n := 2; n <= bits.OnesCount(free); n++ {
		taken := uint(0)
		for _, i := range order {
			if free>>i&1 == 1 && bits.OnesCount(taken) < n {
				taken |= 1 << i
			}
		}
		possible := slices.ContainsFunc(sets, func(set uint) bool { return bits.OnesCount(set&free) >= n })
		if possible && !slices.ContainsFunc(sets, func(set uint) bool { return set&taken == taken }) {
			t.Fatalf("%s, free %0*b: %d GPUs are %b in order %v, though one group or node has so many", what, len(gpus), free, n, taken, order)
		}
	}
}

func describeBlocks(gpus []gpu.GPU) string {
	var words []string
	groups := gpu.NVLinkGroups(gpus)
	for i := range gpus {
		numa := "-"
		if n := gpus[i].NUMANode; n != nil {
			numa = fmt.Sprint(*n)
		}
		words = append(words, fmt.Sprintf("%d: group %q node %s switch %s", i, groups[gpus[i].PCI], numa, gpus[i].PCIeSwitch()))
	}
	return strings.Join(words, ", ")
}

func TestOrderWhole_TogetherWhereTheyCan(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := modelNode(t, model)
		for free := range uint(1) << len(node.GPUs) {
			checkOrder(t, model, node.GPUs, free)
		}
	}
	// Nodes that nobody builds: links across NUMA nodes, GPUs without either.
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		gpus := make([]gpu.GPU, 1+random.IntN(8))
		for i := range gpus {
			g := &gpus[i]
			if n := random.IntN(4); n > 0 {
				g.NUMANode = &n
			}
			if clique := random.IntN(4); clique > 0 {
				g.NVLinks, g.Fabric = &gpu.NVLinks{Active: 18, Switched: true}, &gpu.Fabric{ClusterUUID: "a", CliqueID: clique}
			}
			g.PCIePath = []string{"pci", "0", fmt.Sprint(random.IntN(3)), "1", "2"}
		}
		nodeOf(gpus...)
		for free := range uint(1) << len(gpus) {
			checkOrder(t, describeBlocks(gpus), gpus, free)
		}
	}
}

func TestOrderWhole_AllocatedKeepsItsPlace(t *testing.T) {
	node := modelNode(t, "rtx-pro-6000")
	for free := range uint(256) {
		order := wholeOrder(node.GPUs, within(free))
		for i := 0; i < len(order); i += 2 {
			if order[i] != order[i+1]+1 || order[i+1]%2 != 0 {
				t.Errorf("free %08b: %v: switches are torn apart", free, order)
			}
		}
	}
}

func TestOrderWhole_MoreThanASlice(t *testing.T) {
	gpus := make([]gpu.GPU, 70)
	for i := range gpus {
		numa := i % 2
		gpus[i].NUMANode = &numa
	}
	nodeOf(gpus...)
	var want []int
	for i := range slices.Backward(gpus) {
		want = append(want, i)
	}
	if diff := cmp.Diff(want, wholeOrder(gpus, nil)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got := wholeOrder(gpus[:64], nil); got[1] != 61 {
		t.Errorf("64 GPUs of two NUMA nodes that take turns: %v, want those of one node together", got)
	}
}

func TestOrderShapes_FreeMovesWholeGPUsAlone(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offeredNode(t, model, false)
		all, some := packing.OrderShapes(node.GPUs, node.Shapes, nil), packing.OrderShapes(node.GPUs, node.Shapes, within(0b10110))
		all.Whole, some.Whole = nil, nil
		names := func(o packing.Order) (names []string) {
			for _, group := range slices.Concat([][]gpu.Shape{o.Shared}, o.Partitions, [][]gpu.Shape{o.Largest}) {
				for _, s := range group {
					names = append(names, s.Name())
				}
			}
			return names
		}
		if diff := cmp.Diff(names(all), names(some)); diff != "" {
			t.Errorf("%s (-all free +some free):\n%s", model, diff)
		}
	}
}

// orderOf words an order as one line per group.
func orderOf(gpus []gpu.GPU, offered func(*gpu.GPU) []gpu.Shape) []string {
	order := packing.OrderShapes(gpus, offered, nil)
	var lines []string
	for _, group := range slices.Concat([][]gpu.Shape{order.Whole}, order.Partitions, [][]gpu.Shape{order.Largest}) {
		var words []string
		for _, s := range group {
			word := fmt.Sprintf("%d:whole", s.GPU.Index)
			if s.IsPartition() {
				word = fmt.Sprintf("%d:%s@%d", s.GPU.Index, s.Profile.Name, s.Placement.Start)
			}
			words = append(words, word)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

func TestOrderShapes_HGXH100(t *testing.T) {
	got := strings.Join(orderOf(modelNode(t, "hgx-h100").GPUs, (*gpu.GPU).Shapes), "\n") + "\n"
	golden.Check(t, filepath.Join("testdata", "order-hgx-h100.txt"), got)
}

// The packing stated as rules, for every model: a golden file alone would freeze a mistake.
func TestOrderShapes_Rules(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		gpus := modelNode(t, model).GPUs
		for i := range gpus {
			gpus[i].MIG.Enabled = gpus[i].MIG.NeedsReset && i%2 == 0
		}
		order := packing.OrderShapes(gpus, (*gpu.GPU).Shapes, nil)
		total := len(order.Whole) + len(order.Largest)
		for _, group := range [][]gpu.Shape{order.Whole, order.Largest} {
			for i := 1; i < len(group); i++ {
				if group[i-1].GPU.PCI.Compare(group[i].GPU.PCI) < 0 {
					t.Errorf("%s: what fills GPU %s comes before what fills %s", model, group[i-1].GPU.PCI, group[i].GPU.PCI)
				}
			}
		}
		for _, s := range order.Largest {
			if s.Placement.Size != s.GPU.MIG.Slices {
				t.Errorf("%s: %s is among the largest", model, s.Name())
			}
		}
		for n, group := range order.Partitions {
			total += len(group)
			if n > 0 && order.Partitions[n-1][0].GPU.PCI.Compare(group[0].GPU.PCI) >= 0 {
				t.Errorf("%s: groups %d and %d are not in order of GPUs", model, n-1, n)
			}
			for i := 1; i < len(group); i++ {
				a, b := group[i-1], group[i]
				if a.GPU != b.GPU || a.Placement.Size > b.Placement.Size || a.Profile == b.Profile && a.Placement.Start <= b.Placement.Start {
					t.Errorf("%s: %s comes before %s", model, a.Name(), b.Name())
				}
			}
		}
		want := 0
		for i := range gpus {
			want += len(gpus[i].Shapes())
		}
		if total != want {
			t.Errorf("%s: %d shapes are in order, want all %d", model, total, want)
		}
	}
	if got := packing.OrderShapes(nil, (*gpu.GPU).Shapes, nil); len(got.Whole)+len(got.Partitions)+len(got.Largest) != 0 {
		t.Errorf("no GPUs: got %v", got)
	}
}

func TestOrderShapes_SharedFromTheMiddle(t *testing.T) {
	tests := map[string]string{
		"hgx-h100":               "3 4 2 5 1 6 0 7",
		"a100-pcie-nvlink-pairs": "1 2 0 3",
		"a30":                    "0 1",
		"t4":                     "0",
	}
	for model, want := range tests {
		node := offeredNode(t, model, false)
		order := packing.OrderShapes(node.GPUs, node.Shapes, nil)
		var got []string
		for i, s := range order.Shared {
			if s.Share != gpu.Shares()[i%2] {
				t.Errorf("%s: %s is at %d: want each GPU's time slices, then its MPS", model, s.Name(), i)
			}
			at := slices.IndexFunc(node.GPUs, func(g gpu.GPU) bool { return g.PCI == s.GPU.PCI })
			if s.Share == gpu.TimeSlice {
				got = append(got, fmt.Sprint(at))
			}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", model, diff)
		}
	}
}

// TestOrderShapes_SharesMoveNothingElse: with shares, all else stays in the measured order, and every
// shape is in one group.
func TestOrderShapes_SharesMoveNothingElse(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offeredNode(t, model, mig)
			with := packing.OrderShapes(node.GPUs, node.Shapes, nil)
			total := len(with.Whole) + len(with.Shared) + len(with.Largest)
			for _, group := range with.Partitions {
				total += len(group)
			}
			want := 0
			for i := range node.GPUs {
				want += len(node.Shapes(&node.GPUs[i]))
			}
			if total != want {
				t.Errorf("%s: %d shapes are in order, want all %d", model, total, want)
			}
			lines := orderOf(node.GPUs, node.Shapes)
			for i := range node.Offers {
				node.Offers[i] = policy.Offer{Whole: true, Partitions: node.Offers[i].Partitions}
			}
			if diff := cmp.Diff(orderOf(node.GPUs, node.Shapes), lines); diff != "" {
				t.Errorf("%s (-without +with shares):\n%s", model, diff)
			}
		}
	}
}
