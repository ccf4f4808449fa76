// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func allBoards(t *testing.T) []Board {
	t.Helper()
	boards, err := Boards()
	must(t, err)
	return boards
}

func TestBoards(t *testing.T) {
	var names []string
	for _, b := range allBoards(t) {
		names = append(names, b.Name)
		if err := b.validate(); err != nil {
			t.Error(err)
		}
	}
	want := []string{"A100-40", "A100-80", "A30", "B200", "B300", "GB200", "GB300", "GH200", "H100-80", "H100-94", "H200", "L40S", "RTX-PRO-6000", "T4"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("boards (-want +got):\n%s", diff)
	}
}

// Names follow from memory by the rule that nvidia-smi and go-nvlib use, which needs the board's true total.
func TestBoards_ProfileNames(t *testing.T) {
	for _, b := range allBoards(t) {
		if b.MIG == nil {
			continue
		}
		for _, p := range b.MIG.Profiles {
			eighths := math.Ceil(float64(p.MemoryMiB) / float64(b.MemoryMiB) * 8)
			gb := math.Round(eighths / 8 * math.Ceil(float64(b.MemoryMiB)/1024))
			want := strconv.Itoa(p.ComputeSlices) + "g." + strconv.Itoa(int(gb)) + "gb"
			if got, _, _ := strings.Cut(strings.ReplaceAll(p.Name, "-", "+"), "+"); got != want {
				t.Errorf("%s: profile %s is %s by its memory of %d MiB", b.Name, p.Name, want, p.MemoryMiB)
			}
		}
	}
}

// The greatest number of instances that the driver reports is what the placements and engines of an empty board allow.
func TestBoards_MaxInstances(t *testing.T) {
	for _, b := range allBoards(t) {
		if b.MIG == nil {
			continue
		}
		for i := range b.MIG.Profiles {
			p := b.MIG.Profiles[i]
			reported := p.MaxInstances
			p.MaxInstances = len(p.Starts)
			var st gpuState
			for _, start := range p.Starts {
				if st.admit(&b, &p, start) == nil {
					st.Instances = append(st.Instances, gpuInstance{Profile: p.ID, Start: start})
				}
			}
			if len(st.Instances) != reported {
				t.Errorf("%s: %d of %s fit, the driver reports %d", b.Name, len(st.Instances), p.Name, reported)
			}
		}
	}
}

func TestBoards_InstanceIDs(t *testing.T) {
	tests := []struct {
		units, size int
		starts      []int
		want        []int
	}{
		{8, 8, []int{0}, []int{0}},
		{8, 4, []int{0, 4}, []int{1, 2}},
		{8, 2, []int{0, 2, 4, 6}, []int{3, 4, 5, 6}},
		{8, 1, []int{0, 1, 2, 3, 4, 5, 6}, []int{7, 8, 9, 10, 11, 12, 13}},
		{4, 4, []int{0}, []int{0}},
		{4, 2, []int{0, 2}, []int{1, 2}},
		{4, 1, []int{0, 1, 2, 3}, []int{3, 4, 5, 6}},
		{12, 12, []int{0}, []int{0}},
		{12, 6, []int{0, 6}, []int{1, 2}},
		{12, 3, []int{0, 3, 6, 9}, []int{3, 4, 5, 6}},
	}
	for _, tt := range tests {
		var got []int
		for _, start := range tt.starts {
			got = append(got, instanceID(tt.units, start, tt.size))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("IDs of size %d on %d units (-want +got):\n%s", tt.size, tt.units, diff)
		}
	}
}

func TestBoards_EnumsAndIDs(t *testing.T) {
	for _, b := range allBoards(t) {
		if b.MIG == nil {
			continue
		}
		enums, ids := map[int]bool{}, map[int]bool{}
		differ := false
		for _, p := range b.MIG.Profiles {
			if enums[p.Enum] || ids[p.ID] {
				t.Errorf("%s: enum %d or ID %d of %s is taken", b.Name, p.Enum, p.ID, p.Name)
			}
			enums[p.Enum], ids[p.ID] = true, true
			differ = differ || p.Enum != p.ID
		}
		if !differ {
			t.Errorf("%s: profile IDs equal the enums, as on no real board", b.Name)
		}
	}
}
