// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// buses makes GPUs at these bus numbers, in this order.
func buses(numbers ...uint8) []GPU {
	var gpus []GPU
	for i, n := range numbers {
		gpus = append(gpus, GPU{PCI: PCIAddress{Bus: n}, Index: i})
	}
	return gpus
}

// busNumbers are the bus numbers of GPUs, in their order.
func busNumbers(gpus []*GPU) []uint8 {
	var numbers []uint8
	for _, g := range gpus {
		numbers = append(numbers, g.PCI.Bus)
	}
	return numbers
}

func pointers(gpus []GPU) []*GPU {
	var p []*GPU
	for i := range gpus {
		p = append(p, &gpus[i])
	}
	return p
}

func TestVersionString(t *testing.T) {
	if got, want := (Version{Major: 12, Minor: 0}).String(), "12.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSortGPUs(t *testing.T) {
	gpus := buses(0xc1, 0x18, 0x9a, 0x02)
	gpus[3].PCI.Domain = 1
	SortGPUs(gpus)
	if diff := cmp.Diff([]uint8{0x18, 0x9a, 0xc1, 0x02}, busNumbers(pointers(gpus))); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestNode_Find(t *testing.T) {
	node := &Node{GPUs: buses(0x18, 0x2a)}
	if got := node.Find("gpu-0000-2a-00-0"); got != &node.GPUs[1] {
		t.Errorf("got %v, want the second GPU", got)
	}
	for _, name := range []string{"", "gpu-0000-2b-00-0", "GPU-0000-2A-00-0", "0000:2a:00.0"} {
		if got := node.Find(name); got != nil {
			t.Errorf("Find(%q): got %v, want nil", name, got)
		}
	}
	if got := (&Node{}).Find("gpu-0000-2a-00-0"); got != nil {
		t.Errorf("Find on a node without GPUs: got %v, want nil", got)
	}
}

func TestPlacement_Overlaps(t *testing.T) {
	for a := range 6 {
		for b := range 6 {
			for sizeA := 1; sizeA < 4; sizeA++ {
				for sizeB := 1; sizeB < 4; sizeB++ {
					want := false
					for u := a; u < a+sizeA; u++ {
						want = want || (u >= b && u < b+sizeB)
					}
					p, q := Placement{a, sizeA}, Placement{b, sizeB}
					if got := p.Overlaps(q); got != want {
						t.Errorf("%v.Overlaps(%v): got %t, want %t", p, q, got, want)
					}
				}
			}
		}
	}
}

func TestSortProfiles(t *testing.T) {
	profile := func(id, size, compute int) Profile {
		p := Profile{ID: id, ComputeSlices: compute}
		if size > 0 {
			p.Placements = []Placement{{Start: 0, Size: size}}
		}
		return p
	}
	// An H100: 1g (19), 1g+me (20), 1g double memory (15), 2g (14), 3g (9), 4g (5), 7g (0).
	profiles := []Profile{
		profile(0, 8, 7), profile(20, 1, 1), profile(5, 4, 4), profile(9, 4, 3), profile(15, 2, 1), profile(19, 1, 1),
		profile(14, 2, 2), profile(99, 0, 1),
	}
	SortProfiles(profiles)
	var ids []int
	for _, p := range profiles {
		ids = append(ids, p.ID)
	}
	if diff := cmp.Diff([]int{99, 19, 20, 15, 14, 9, 5, 0}, ids); diff != "" {
		t.Errorf("order of profile IDs (-want +got):\n%s", diff)
	}
}
