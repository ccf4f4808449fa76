// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

func TestArrivals_Running(t *testing.T) {
	w := &Workload{Duration: metav1.Duration{Duration: 2000 * time.Hour}, Pods: []Pods{kindOf("a", "c", 1, 20), kindOf("b", "c", 1, 5)}}
	first := arrivals(w, 3)
	if diff := cmp.Diff(first, arrivals(w, 3), cmp.AllowUnexported(arrival{})); diff != "" {
		t.Errorf("two traces of one seed differ:\n%s", diff)
	}
	if cmp.Equal(first, arrivals(w, 4), cmp.AllowUnexported(arrival{})) {
		t.Error("two seeds give the same trace")
	}
	// By Little's law, as many run as the workload has, from the beginning on.
	var running [2]time.Duration
	atBeginning := 0
	for _, a := range first {
		running[a.kind] += min(a.until, w.Duration.Duration) - a.at
		if a.at == 0 {
			atBeginning++
		}
	}
	for kind, want := range []float64{20, 5} {
		if got := running[kind].Hours() / w.Duration.Hours(); got < 0.95*want || got > 1.05*want {
			t.Errorf("kind %d: %.2f run at a time, want %.0f", kind, got, want)
		}
	}
	if atBeginning != 25 {
		t.Errorf("%d arrive at the beginning, want 25", atBeginning)
	}
}

// TestArrivals_LongLifetimes: what would leave after the last time that there is stays until then.
func TestArrivals_LongLifetimes(t *testing.T) {
	for _, lifetime := range []time.Duration{1_000_000 * time.Hour, math.MaxInt64} {
		for _, duration := range []time.Duration{time.Hour, math.MaxInt64} {
			kind := kindOf("a", "c", 1, 1000)
			kind.Lifetime.Duration = lifetime
			for i, a := range arrivals(&Workload{Duration: metav1.Duration{Duration: duration}, Pods: []Pods{kind}}, 1) {
				if a.at < 0 || a.until < a.at {
					t.Fatalf("lifetime %v in %v: pod %d arrives at %d and leaves at %d", lifetime, duration, i, a.at, a.until)
				}
			}
		}
	}
}

func TestFeasibleNodes(t *testing.T) {
	for nodes, want := range map[int]int{1: 1, 99: 99, 100: 100, 200: 100, 1000: 420, 5000: 500} {
		if got := feasibleNodes(nodes); got != want {
			t.Errorf("%d nodes: got %d, want %d", nodes, got, want)
		}
	}
}

// landed places pods of one kind by a strategy and counts nodes and GPUs.
func landed(t *testing.T, strategy, class string, pods int) (nodes, gpus int) {
	t.Helper()
	w := &Workload{Duration: metav1.Duration{Duration: time.Hour}, Pods: []Pods{kindOf("a", class, 1, 1)}}
	pool := poolOf(t, "hgx-h100", 4)
	p, err := newPlan(t.Context(), pool, w)
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.newNodes()
	if err != nil {
		t.Fatal(err)
	}
	c := chooser{plan: p, nodes: all, strategy: strategy, random: rand.New(rand.NewPCG(1, 1))}
	for range pods {
		placed, err := c.place(t.Context(), 0, "pod-"+strings.Repeat("x", pods))
		if err != nil || placed == nil {
			t.Fatalf("%s, %s: got %v, %v", strategy, class, placed, err)
		}
	}
	for _, n := range all {
		touched := p.gpus - n.state.Untouched()
		gpus += touched
		if touched > 0 {
			nodes++
		}
	}
	return nodes, gpus
}

func TestPlace_Strategies(t *testing.T) {
	for _, tt := range []struct {
		strategy, class string
		nodes, gpus     int
	}{
		{Default, "mig-1g.10gb.cleave.dev", 4, 4},
		{"pack", "mig-1g.10gb.cleave.dev", 1, 2},
		{"spread", "mig-1g.10gb.cleave.dev", 4, 4}, // the allocator chooses the GPU of a node
		{Default, "timeslice.cleave.dev", 4, 4},
		{"pack", "timeslice.cleave.dev", 1, 2},
		{"pack", "gpu.cleave.dev", 1, 8},
		{Default, "gpu.cleave.dev", 4, 8},
	} {
		nodes, gpus := landed(t, tt.strategy, tt.class, 8)
		if diff := cmp.Diff([2]int{tt.nodes, tt.gpus}, [2]int{nodes, gpus}); diff != "" {
			t.Errorf("%s, 8 of %s: nodes and GPUs (-want +got):\n%s", tt.strategy, tt.class, diff)
		}
	}
}

// The allocator takes the devices that the measure predicts, whatever is allocated.
func TestAllocate_AsMeasured(t *testing.T) {
	w := mixOf(t)
	p, err := newPlan(t.Context(), poolOf(t, "hgx-h100", 1), w)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := p.newNodes()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var running []*placement
	for i := range 400 {
		request := random.IntN(len(p.requests))
		want, fits, err := nodes[0].state.Fit(p.requests[request].fits...)
		if err != nil {
			t.Fatal(err)
		}
		placed, err := p.allocate(t.Context(), nodes, 0, request, "pod")
		if errors.Is(err, allocator.ErrNoFit) && !fits && len(running) > 0 {
			at := random.IntN(len(running))
			p.release(nodes, running[at])
			running = append(running[:at], running[at+1:]...)
			continue
		}
		if err != nil {
			t.Fatalf("step %d: %v, where the measure says %t", i, err, fits)
		}
		var predicted, got []int
		for _, u := range want {
			predicted = append(predicted, u.Device)
		}
		for _, u := range placed.uses {
			got = append(got, u.Device)
		}
		if diff := cmp.Diff(predicted, got); diff != "" {
			t.Fatalf("step %d: devices (-measure +allocator):\n%s", i, diff)
		}
		running = append(running, placed)
	}
	for _, r := range running {
		p.release(nodes, r)
	}
	if free := nodes[0].state.Untouched(); free != 8 || nodes[0].share > 1e-9 {
		t.Errorf("all gave back: %d GPUs are whole, %.3f is allocated", free, nodes[0].share)
	}
}

// TestPlace_GivenUp: on a node with room for 21 of 24 partitions, the allocator would try every subset. Such a request is given
// up, at once where nothing of the node has changed since, and not counted as rejected.
func TestPlace_GivenUp(t *testing.T) {
	for _, strategy := range Strategies() {
		w := &Workload{Duration: metav1.Duration{Duration: time.Hour}, Pods: []Pods{
			kindOf("whole", "gpu.cleave.dev", 1, 1), kindOf("large", "mig-2g.20gb.cleave.dev", 24, 1),
		}}
		p, err := newPlan(t.Context(), poolOf(t, "hgx-h100", 1), w)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := p.newNodes()
		if err != nil {
			t.Fatal(err)
		}
		r := replay{
			chooser: chooser{plan: p, nodes: nodes, strategy: strategy, random: rand.New(rand.NewPCG(1, 1))},
			result:  Result{Kinds: make([]KindResult, 2), Samples: make([]Sample, samples)},
		}
		for i, kind := range []int{0, 1, 1} {
			if i == 1 {
				p.limit = time.Nanosecond
			}
			if err := r.arrive(t.Context(), arrival{kind: kind}, i); err != nil {
				t.Fatal(err)
			}
		}
		want := []KindResult{{Requests: 1}, {Requests: 2, GivenUp: 2}}
		if diff := cmp.Diff(want, r.result.Kinds); diff != "" || r.result.GivenUp != 2 || r.result.Rejected+int(r.result.RejectedSlices) > 0 {
			t.Errorf("%s: kinds (-want +got):\n%s; in all %d given up, %d rejected", strategy, diff, r.result.GivenUp, r.result.Rejected)
		}
		p.release(nodes, r.running[0].placement)
		p.limit = SearchLimit
		if placed, err := r.place(t.Context(), 1, "again"); err != nil || placed == nil {
			t.Errorf("%s: on an empty node: %v, %v", strategy, placed, err)
		}
	}
}

func TestRun_Strategies(t *testing.T) {
	pool, w := poolOf(t, "hgx-h100", 4), mixOf(t)
	r, err := Run(t.Context(), pool, w, w.Strategies(), 1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Run(t.Context(), pool, w, w.Strategies(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("two runs of one seed differ:\n%s", diff)
	}
	byDefault, pack := r.Results[0], r.Results[1]
	if pack.Allocated <= byDefault.Allocated {
		t.Errorf("pack keeps %.2f of the pool allocated, default %.2f", pack.Allocated, byDefault.Allocated)
	}
	if pack.RejectedSlices >= byDefault.RejectedSlices || pack.Fragmentation >= byDefault.Fragmentation {
		t.Errorf("pack rejects %.0f slices at fragmentation %.2f, default %.0f at %.2f", pack.RejectedSlices, pack.Fragmentation,
			byDefault.RejectedSlices, byDefault.Fragmentation)
	}
	for _, s := range r.Results {
		requests, rejected := 0, 0
		for _, k := range s.Kinds {
			requests, rejected = requests+k.Requests, rejected+k.Rejected
		}
		if requests != byDefault.Requests || requests != s.Requests || rejected != s.Rejected || len(s.Samples) != samples {
			t.Errorf("%s: kinds have %d and %d, the total is %d and %d; %d samples", s.Strategy, requests, rejected, s.Requests, s.Rejected, len(s.Samples))
		}
	}
}

func TestRun_Invalid(t *testing.T) {
	for want, change := range map[string]func(*Pool, *Workload){
		"there may be 1 to":       func(p *Pool, _ *Workload) { p.Nodes = 0 },
		`no DeviceClass "absent"`: func(_ *Pool, w *Workload) { w.Pods[0].DeviceClassName = "absent" },
		"has no room for it":      func(_ *Pool, w *Workload) { w.Pods[0].Count = 9 },
	} {
		pool, w := poolOf(t, "hgx-h100", 1), mixOf(t)
		change(&pool, w)
		if _, err := Run(t.Context(), pool, w, w.Strategies(), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
