// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

var seed = flag.Uint64("seed", 1, "seed of random tests")

// walk visits every set of partitions that counters admit on a board, made for real, and compares at each one what
// counters and board say of every further partition. As both look only at the set, not at how it came about, this
// covers every order of making it; and as any part of a creatable set is creatable, every creatable set.
type walk struct {
	t      *testing.T
	device *sim.Device
	parts  []gpu.Shape
	left   budget
	made   []gpu.Shape
	sets   int
	// needed are the counters that were the only one to refuse something that the board refuses.
	needed map[string]bool
}

func (w *walk) from(first int) {
	w.sets++
	for i, s := range w.parts {
		lacks := w.left.lacks(s)
		gi, err := w.device.MIG().CreateGPUInstanceWithPlacement(s.Profile.ID, s.Placement)
		if err != nil && !errors.Is(err, gpu.ErrInsufficientResources) {
			w.t.Fatalf("%s on %s: %v", s.Name(), names(w.made), err)
		}
		if created, admitted := err == nil, len(lacks) == 0; created != admitted {
			w.t.Fatalf("%s (%s) alongside %s: the counters admit it: %t (lacking %v), the board: %v", s.Name(), s.Profile.Name, names(w.made), admitted, lacks, err)
		}
		if len(lacks) == 1 {
			w.needed[lacks[0]] = true
		}
		if err != nil {
			continue
		}
		if i >= first {
			w.left.take(s)
			w.made = append(w.made, s)
			w.from(i + 1)
			w.made = w.made[:len(w.made)-1]
			w.left.giveBack(s)
		}
		if err := gi.Destroy(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func names(shapes []gpu.Shape) []string {
	list := []string{}
	for _, s := range shapes {
		list = append(list, fmt.Sprintf("%s at %d:%d", s.Profile.Name, s.Placement.Start, s.Placement.Size))
	}
	return list
}

// exhaustive are the boards on which every set is tried; on the others, which are on disk or have the geometry of one
// of these, random sets are.
var exhaustive = []string{"A30", "A100-80", "H100-80", "GB200", "RTX-PRO-6000"}

func TestCounters_MatchHardware(t *testing.T) {
	for _, name := range exhaustive {
		t.Run(name, func(t *testing.T) {
			device, g := board(t, name)
			w := &walk{t: t, device: device, parts: partitionsOf(g), left: budgetOf(g), needed: map[string]bool{}}
			if len(w.parts) == 0 {
				t.Fatal("the board offers no partitions")
			}
			w.from(0)
			t.Logf("%d sets of %d partitions", w.sets, len(w.parts))
			for _, c := range g.Counters() {
				if !w.needed[c.Name] {
					t.Errorf("counter %s refuses nothing that another counter does not: it costs the scheduler time for nothing", c.Name)
				}
			}
		})
	}
}

func TestCounters_RandomSets(t *testing.T) {
	for _, name := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			device, g := board(t, name)
			rounds := 400
			if boardModels[name] == "" {
				rounds = 40 // on disk
			}
			parts, left := partitionsOf(g), budgetOf(g)
			random := rand.New(rand.NewPCG(*seed, 0))
			for round := range rounds {
				set := randomSet(random, parts, left)
				if amounts := g.AmountCounters(); len(amounts) != 2 || !gpu.Coexist(set, amounts) {
					t.Fatalf("seed %d, round %d: the counters of amounts %v refuse %v", *seed, round, amounts, names(set))
				}
				random.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
				var made []*sim.GPUInstance
				for _, s := range set {
					gi, err := device.MIG().CreateGPUInstanceWithPlacement(s.Profile.ID, s.Placement)
					if err != nil {
						t.Fatalf("seed %d, round %d: %s of %v: %v", *seed, round, s.Name(), names(set), err)
					}
					made = append(made, gi)
				}
				for _, gi := range made {
					if err := gi.Destroy(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// randomSet is a maximal set that the counters admit.
func randomSet(random *rand.Rand, parts []gpu.Shape, left budget) []gpu.Shape {
	parts = slices.Clone(parts)
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	var set []gpu.Shape
	for _, s := range parts {
		if len(left.lacks(s)) == 0 {
			left.take(s)
			set = append(set, s)
		}
	}
	for _, s := range set {
		left.giveBack(s)
	}
	return set
}

func TestCounters_WholeExcludesPartitions(t *testing.T) {
	for _, name := range partitionable(t) {
		_, g := board(t, name)
		left := budgetOf(g)
		for _, s := range partitionsOf(g) {
			left.take(s)
			if len(left.lacks(g.Whole())) == 0 {
				t.Errorf("%s: the whole GPU fits alongside %s", name, s.Name())
			}
			left.giveBack(s)
			left.take(g.Whole())
			if len(left.lacks(s)) == 0 {
				t.Errorf("%s: %s fits alongside the whole GPU", name, s.Name())
			}
			left.giveBack(g.Whole())
			if !s.Overlaps(g.Whole()) || !g.Whole().Overlaps(s) {
				t.Errorf("%s: %s does not overlap the whole GPU", name, s.Name())
			}
		}
	}
}

func TestCounters_WithinCapacity(t *testing.T) {
	for _, name := range partitionable(t) {
		_, g := board(t, name)
		left, counters := budgetOf(g), g.Counters()
		for _, s := range append(partitionsOf(g), g.Whole()) {
			if lacks := left.lacks(s); len(lacks) > 0 {
				t.Errorf("%s: an empty board has not enough of %v for %s", name, lacks, s.Name())
			}
			for _, c := range s.Consumes() {
				if c.Value <= 0 || !slices.ContainsFunc(counters, func(have gpu.Counter) bool { return have.Name == c.Name }) {
					t.Errorf("%s: %s consumes %d of %s", name, s.Name(), c.Value, c.Name)
				}
			}
		}
	}
}

func TestCounters_NotPartitionable(t *testing.T) {
	tests := map[string]gpu.MIG{
		"no MIG":           {},
		"unknown geometry": {Capable: true},
		"nothing offered":  {Capable: true, Slices: 8, Profiles: []gpu.Profile{{ID: 1, Name: "1g.10gb+new", Placements: []gpu.Placement{{Size: 1}}}}},
	}
	for name, mig := range tests {
		g := gpu.GPU{MIG: mig}
		want := []gpu.Counter{{Name: "gpu", Value: 1}}
		if got := g.Counters(); !slices.Equal(got, want) {
			t.Errorf("%s: got counters %v, want %v", name, got, want)
		}
		if got := g.Whole().Consumes(); !slices.Equal(got, want) {
			t.Errorf("%s: the whole GPU consumes %v, want %v", name, got, want)
		}
	}
}
