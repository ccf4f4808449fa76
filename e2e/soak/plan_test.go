// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// faultsOf are the first faults of a plan.
func faultsOf(p Plan, n int) []Fault {
	list := make([]Fault, n)
	for i := range list {
		list[i] = p.Fault(i)
	}
	return list
}

func podsOf(p Plan, n int) []Pod {
	list := make([]Pod, n)
	for i := range list {
		list[i] = p.Pod(i)
	}
	return list
}

func TestPlan_SameForASeed(t *testing.T) {
	const n = 300
	a, b := NewPlan(7, 8), NewPlan(7, 8)
	pods := podsOf(b, n) // before its faults: what is asked first makes no difference
	if diff := cmp.Diff(faultsOf(a, n), faultsOf(b, n)); diff != "" {
		t.Errorf("faults (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(podsOf(a, n), pods); diff != "" {
		t.Errorf("pods (-first +second):\n%s", diff)
	}
	other := NewPlan(8, 8)
	if cmp.Equal(faultsOf(a, n), faultsOf(other, n)) || cmp.Equal(podsOf(a, n), podsOf(other, n)) {
		t.Error("another seed gives the same plan")
	}
}

// What a seed means changes only where kinds of faults or shapes of pods are added, or a seed of an earlier report repeats nothing.
func TestPlan_Beginning(t *testing.T) {
	var kinds []Kind
	for _, f := range faultsOf(NewPlan(1, 8), 6) {
		kinds = append(kinds, f.Kind)
	}
	var shapes []string
	for _, p := range podsOf(NewPlan(1, 8), 6) {
		shapes = append(shapes, p.Shape.Name)
	}
	if diff := cmp.Diff([]Kind{ReleaseUpgraded, APIServerKilled, APIServerPartition, SchedulerKilled, OurSchedulerStopped, ReleaseRolledBack}, kinds); diff != "" {
		t.Errorf("faults of seed 1 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"group", "pair", "several", "mixed", "mps", "slices"}, shapes); diff != "" {
		t.Errorf("pods of seed 1 (-want +got):\n%s", diff)
	}
}

func TestPlan_RoundHasEveryKind(t *testing.T) {
	want, seconds := map[Kind]int{}, map[Kind]bool{}
	for _, k := range round {
		want[k]++
	}
	for seed := range uint64(20) {
		for number := range 3 {
			got, upgraded := map[Kind]int{}, false
			for i := range round {
				f := NewPlan(seed, 8).Fault(number*len(round) + i)
				got[f.Kind]++
				upgraded = upgraded || f.Kind == ReleaseUpgraded
				if f.Kind == ReleaseRolledBack && !upgraded {
					t.Errorf("seed %d, round %d: the release is rolled back before it is upgraded", seed, number)
				}
				if f.Kind == PartitionByHand && f.Meanwhile != PluginKilled {
					t.Errorf("seed %d: nobody starts and finds the partition: %+v", seed, f)
				}
				if f.Meanwhile != "" {
					seconds[f.Meanwhile] = true
				}
				if f.GPU < 0 || f.GPU > 7 || f.For < 0 {
					t.Errorf("seed %d: %+v", seed, f)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("seed %d, round %d (-want +got):\n%s", seed, number, diff)
			}
		}
	}
	for _, k := range crashes {
		if !seconds[k] {
			t.Errorf("%s never comes in the midst of another fault", k)
		}
	}
}

// Every shape has to fit the room that all have, or its first pod waits for ever.
func TestShapes_FitTheRoom(t *testing.T) {
	for _, s := range Shapes() {
		for what, n := range s.takes() {
			if n > room()[what] {
				t.Errorf("a pod of shape %s takes %d of %s, and there are %d", s.Name, n, what, room()[what])
			}
		}
	}
	var asks []Ask
	for _, s := range Shapes() {
		asks = append(asks, s.Claims...)
	}
	slices.Sort(asks)
	want := []Ask{AskAdmin, AskMPS, AskPair, AskPartMPS, AskPartSlice, AskSeveral, AskSlice, AskSmall, AskWhole}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(asks)); diff != "" {
		t.Errorf("what pods ask for (-want +got):\n%s", diff)
	}
}

func TestFaults_EveryKindHasAnInjector(t *testing.T) {
	want := Kinds()
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys((&faults{}).injectors()))); diff != "" {
		t.Errorf("kinds (-plan +injectors):\n%s", diff)
	}
}

func TestChurn_TakesRoomAndGivesItBack(t *testing.T) {
	c := newChurn(nil, NewPlan(1, modelGPUs), nil, nil)
	pair := map[resource]int{wholeGPUs: 2}
	if !c.take(t.Context(), pair) {
		t.Fatal("there is room for two GPUs, and they are not given")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c.take(ctx, map[resource]int{wholeGPUs: 1}) {
		t.Error("a third GPU is given, and there are two")
	}
	if !c.take(ctx, map[resource]int{timeShares: 1}) {
		t.Error("a share is refused because GPUs are taken")
	}
	waited := make(chan bool)
	go func() { waited <- c.take(t.Context(), pair) }()
	c.give(pair)
	if !<-waited {
		t.Error("what was given back is not given again")
	}
}
