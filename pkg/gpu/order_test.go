// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
)

// wholeOrder is the order of whole GPUs by their index, with these free.
func wholeOrder(gpus []gpu.GPU, free func(*gpu.GPU) bool) []int {
	var order []int
	for _, s := range gpu.OrderWhole(gpus, free) {
		order = append(order, s.GPU.Index)
	}
	return order
}

// within tells of a set of GPUs, as bits by index.
func within(set uint) func(*gpu.GPU) bool {
	return func(g *gpu.GPU) bool { return set>>g.Index&1 == 1 }
}

func TestOrderOfWholeGPUs(t *testing.T) {
	tests := []struct {
		model string
		held  []int
		want  string
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
		{"gb200-nvl4", []int{2}, "1 0 3 2"},
		{"a30", []int{1}, "1 0"}, // nothing joins the two, so nothing moves
		{"t4", []int{0}, "0"},
	}
	for _, tt := range tests {
		node := modelNode(t, tt.model)
		got := wholeOrder(node.GPUs, func(g *gpu.GPU) bool { return !slices.Contains(tt.held, g.Index) })
		if diff := cmp.Diff(tt.want, strings.Trim(fmt.Sprint(got), "[]")); diff != "" {
			t.Errorf("%s, %v held (-want +got):\n%s", tt.model, tt.held, diff)
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

func TestWholeGPUsOfOneRequestBelongTogetherIfTheyCan(t *testing.T) {
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
				g.NVLinks, g.Fabric = switched(), joined("a", clique)
			}
			g.PCIePath = []string{"pci", "0", fmt.Sprint(random.IntN(3)), "1", "2"}
		}
		nodeOf(gpus...)
		for free := range uint(1) << len(gpus) {
			checkOrder(t, describeBlocks(gpus), gpus, free)
		}
	}
}

func TestAGPUThatIsHeldKeepsItsPlaceAmongThoseOfItsSwitch(t *testing.T) {
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

func TestMoreGPUsThanASliceHoldsStayInOrder(t *testing.T) {
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

func TestWhatIsFreeMovesWholeGPUsAlone(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offering(t, model, false)
		all, some := gpu.OrderShapes(node.GPUs, nil), gpu.OrderShapes(node.GPUs, within(0b10110))
		all.Whole, some.Whole = nil, nil
		names := func(o gpu.Order) (names []string) {
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
