// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// creatable are all sets of partitions that a board can have at once, by how many they are of each profile. That they are
// just these is shown by the tests of the counters.
type creatable map[string][][]gpu.Place

func creatableOn(g *gpu.GPU) creatable {
	all := creatable{}
	parts, left := partitionsOf(g), budgetOf(g)
	var from func(first int, made []gpu.Place)
	from = func(first int, made []gpu.Place) {
		key := keyOf(countsOf(made))
		all[key] = append(all[key], slices.Clone(made))
		for i := first; i < len(parts); i++ {
			if len(left.lacks(parts[i])) == 0 {
				left.take(parts[i])
				from(i+1, append(made, parts[i].Place()))
				left.giveBack(parts[i])
			}
		}
	}
	from(0, nil)
	return all
}

// countsOf are how many places are of each profile, by profile ID.
func countsOf(places []gpu.Place) []gpu.ProfileCount {
	counts := map[int]int{}
	for _, p := range places {
		counts[p.ProfileID]++
	}
	var list []gpu.ProfileCount
	for id := range 256 {
		if counts[id] > 0 {
			list = append(list, gpu.ProfileCount{ProfileID: id, Count: counts[id]})
		}
	}
	return list
}

func keyOf(want []gpu.ProfileCount) string { return fmt.Sprint(want) }

// kept is how many of the preferred places are among others.
func kept(prefer, places []gpu.Place) int {
	n := 0
	for _, p := range prefer {
		if slices.Contains(places, p) {
			n++
		}
	}
	return n
}

// blocked is how many places overlap others that are not among them.
func blocked(prefer, places []gpu.Place) int {
	n := 0
	for _, p := range places {
		if slices.ContainsFunc(prefer, func(q gpu.Place) bool { return q != p && q.Placement.Overlaps(p.Placement) }) {
			n++
		}
	}
	return n
}

func TestFit_Exhaustive(t *testing.T) {
	for _, name := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			device, g := board(t, name)
			all := creatableOn(g)
			random := rand.New(rand.NewPCG(*seed, 1))
			fit, not := 0, 0
			for key, sets := range all {
				want := countsOf(sets[0])
				places, err := g.Fit(want, nil)
				if err != nil {
					t.Fatalf("%s can be had, as %v, but: %v", key, sets[0], err)
				}
				if got := keyOf(countsOf(places)); got != key {
					t.Fatalf("got %v for %s", places, key)
				}
				if fit++; boardModels[name] != "" || fit%50 == 0 { // others are on disk, which is slow
					create(t, device, places, random)
				}
				// One more of a profile is there or not; where it is not, the error says so.
				for _, p := range g.MIG.Profiles {
					if !p.InCatalog() {
						continue
					}
					more := countsOf(append(slices.Clone(sets[0]), gpu.Place{ProfileID: p.ID}))
					if _, err := g.Fit(more, nil); (err == nil) != (all[keyOf(more)] != nil) {
						t.Fatalf("%s: got error %v, want it to fit: %t", keyOf(more), err, all[keyOf(more)] != nil)
					} else if err != nil {
						not++
						if !strings.Contains(err.Error(), " fit an NVIDIA ") || !strings.Contains(err.Error(), "; free after ") {
							t.Fatalf("%s: the error does not say what fits: %v", keyOf(more), err)
						}
					}
				}
			}
			t.Logf("%d combinations fit, %d with one more do not", fit, not)
		})
	}
}

// create makes partitions in the order of places and in another one.
func create(t *testing.T, device *sim.Device, places []gpu.Place, random *rand.Rand) {
	t.Helper()
	for range 2 {
		var made []*sim.GPUInstance
		for _, p := range places {
			gi, err := device.MIG().CreateGPUInstanceWithPlacement(p.ProfileID, p.Placement)
			if err != nil {
				t.Fatalf("%v of %v: %v", p, places, err)
			}
			made = append(made, gi)
		}
		for _, gi := range made {
			if err := gi.Destroy(); err != nil {
				t.Fatal(err)
			}
		}
		places = slices.Clone(places)
		random.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	}
}

func TestFit_Prefer(t *testing.T) {
	for _, name := range exhaustive {
		t.Run(name, func(t *testing.T) {
			_, g := board(t, name)
			all := creatableOn(g)
			var keys []string
			for key := range all {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			random := rand.New(rand.NewPCG(*seed, 2))
			for range 1000 {
				some := func() [][]gpu.Place { return all[keys[random.IntN(len(keys))]] }
				sets, others := some(), some()
				prefer := others[random.IntN(len(others))]
				places, err := g.Fit(countsOf(sets[0]), prefer)
				if err != nil {
					t.Fatal(err)
				}
				for _, set := range sets {
					if k, b := kept(prefer, set), blocked(prefer, set); k > kept(prefer, places) || k == kept(prefer, places) && b < blocked(prefer, places) {
						t.Fatalf("with %v there: got %v, though %v keeps %d and blocks %d", prefer, places, set, k, b)
					}
				}
				// What is there and fits is not touched, and the order of input says nothing.
				again, want := slices.Clone(places), countsOf(sets[0])
				random.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
				slices.Reverse(want)
				if same, err := g.Fit(want, again); err != nil || !slices.Equal(same, places) {
					t.Fatalf("with %v there: got %v, %v", places, same, err)
				}
			}
		})
	}
}

// fitOn finds places on the first GPU of a node model for partitions by name, and words them.
func fitOn(t *testing.T, model string, want map[string]int, prefer ...string) (string, error) {
	t.Helper()
	g := &modelNode(t, model).GPUs[0]
	var counts []gpu.ProfileCount
	var there []gpu.Place
	for i := range g.MIG.Profiles {
		p := &g.MIG.Profiles[i]
		if want[p.Name] != 0 {
			counts = append(counts, gpu.ProfileCount{ProfileID: p.ID, Count: want[p.Name]})
		}
		for _, at := range p.Placements {
			if slices.Contains(prefer, fmt.Sprintf("%s@%d", p.Name, at.Start)) {
				there = append(there, gpu.Place{ProfileID: p.ID, Placement: at})
			}
		}
	}
	places, err := g.Fit(counts, there)
	var words []string
	for _, p := range places {
		words = append(words, fmt.Sprintf("%s@%d", g.MIG.ProfileName(p.ProfileID), p.Placement.Start))
	}
	return strings.Join(words, " "), err
}

func TestFit_Order(t *testing.T) {
	type counts = map[string]int
	tests := []struct {
		model  string
		want   counts
		prefer []string
		places string
	}{
		{"dgx-a100", counts{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}, nil, "1g.10gb@0 1g.10gb@1 2g.20gb@2 3g.40gb@4"},
		{"dgx-a100", counts{"1g.10gb": 7}, nil, "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6"},
		{"dgx-a100", counts{"4g.40gb": 1, "3g.40gb": 1}, nil, "4g.40gb@0 3g.40gb@4"},
		{"dgx-a100", counts{"1g.10gb": 1, "1g.10gb+me": 1}, nil, "1g.10gb@5 1g.10gb+me@6"},
		{"dgx-a100", counts{"7g.80gb": 1}, nil, "7g.80gb@0"},
		{"dgx-a100", counts{}, nil, ""},
		{"dgx-a100", counts{"3g.40gb": 1, "1g.10gb": 2}, []string{"3g.40gb@0", "1g.10gb@6"}, "3g.40gb@0 1g.10gb@5 1g.10gb@6"},
		{"dgx-a100", counts{"3g.40gb": 1}, []string{"1g.10gb@6"}, "3g.40gb@0"},
		{"dgx-a100", counts{"3g.40gb": 1}, []string{"1g.10gb@6", "1g.10gb@0"}, "3g.40gb@4"},
		{"a30", counts{"1g.6gb": 2, "2g.12gb": 1}, nil, "1g.6gb@0 1g.6gb@1 2g.12gb@2"},
		{"rtx-pro-6000", counts{"1g.24gb": 2, "2g.48gb": 1}, nil, "1g.24gb@0 1g.24gb@3 2g.48gb@6"},
		{"hgx-b200", counts{"1g.45gb": 4}, nil, "1g.45gb@0 1g.45gb@2 1g.45gb@4 1g.45gb@6"},
	}
	for _, tt := range tests {
		got, err := fitOn(t, tt.model, tt.want, tt.prefer...)
		if err != nil || got != tt.places {
			t.Errorf("%v on %s alongside %v: got %q, %v, want %q", tt.want, tt.model, tt.prefer, got, err, tt.places)
		}
	}
}

func TestFit_Errors(t *testing.T) {
	type counts = map[string]int
	tests := []struct {
		model string
		want  counts
		err   string
	}{
		{"dgx-a100", counts{"3g.40gb": 2, "1g.10gb": 1}, "3g.40gb ×2 and 1g.10gb ×1 do not fit an NVIDIA A100-SXM4-80GB; free after 3g.40gb ×2: none"},
		{"dgx-a100", counts{"1g.10gb": 8}, "1g.10gb ×8 do not fit an NVIDIA A100-SXM4-80GB; free after 1g.10gb ×7: none"},
		{"dgx-a100", counts{"1g.10gb": 1<<31 - 1}, "1g.10gb ×2147483647 do not fit an NVIDIA A100-SXM4-80GB; free after 1g.10gb ×7: none"},
		{"dgx-a100", counts{"4g.40gb": 2, "2g.20gb": 1, "1g.10gb": 1}, "4g.40gb ×2, 2g.20gb ×1 and 1g.10gb ×1 do not fit an NVIDIA A100-SXM4-80GB; free after 4g.40gb ×1, 2g.20gb ×1 and 1g.10gb ×1: none"},
		{"dgx-a100", counts{"1g.10gb+me": 2}, "1g.10gb+me ×2 do not fit an NVIDIA A100-SXM4-80GB; free after 1g.10gb+me ×1: 1g.10gb ×6 or 1g.20gb ×3 or 2g.20gb ×3 or 3g.40gb ×1 or 4g.40gb ×1"},
		{"hgx-h100", counts{"4g.40gb": 2}, "4g.40gb ×2 do not fit an NVIDIA H100 80GB HBM3; free after 4g.40gb ×1: 1g.10gb ×3 or 1g.10gb+me ×1 or 1g.20gb ×2 or 2g.20gb ×1 or 3g.40gb ×1"},
		{"dgx-a100", counts{"3g.40gb": -1}, "-1 partitions of 3g.40gb are wanted: want 0 or more"},
		{"l40s", nil, ""},
	}
	for _, tt := range tests {
		_, err := fitOn(t, tt.model, tt.want)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
			t.Errorf("%v on %s:\ngot  %v\nwant %s", tt.want, tt.model, err, tt.err)
		}
	}
}

func TestFit_UnknownProfile(t *testing.T) {
	_, g := board(t, "A30")
	got := []string{}
	for _, id := range []int{99, g.MIG.Profiles[0].ID} {
		_, err := g.Fit([]gpu.ProfileCount{{ProfileID: id, Count: 1}}, nil)
		got = append(got, fmt.Sprint(err))
	}
	_, err := (&gpu.GPU{ProductName: "Tesla T4"}).Fit([]gpu.ProfileCount{{ProfileID: 1, Count: 1}}, nil)
	got = append(got, fmt.Sprint(err))
	want := []string{
		"an NVIDIA A30 has no profile 99 to offer: it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb",
		"<nil>", "a Tesla T4 cannot be partitioned",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}
