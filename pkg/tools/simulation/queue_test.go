// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// queues is a workload that asks for more than there is.
const queues = `duration: 96h
pods:
  - {name: urgent, deviceClassName: gpu.cleave.dev, running: 3, lifetime: 1h, priority: 1000}
  - {name: small, deviceClassName: mig-1g.10gb.cleave.dev, running: 4, lifetime: 1h, priority: 1000}
  - {name: backfill, deviceClassName: gpu.cleave.dev, running: 20, lifetime: 6h, priority: -1000}
`

// TestRun_Queues: pods without a place wait, and urgent ones do not where others are evicted for them. Nobody is lost.
func TestRun_Queues(t *testing.T) {
	w, err := Decode([]byte(queues))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{Default, "pack", Preempt}, w.Strategies()); diff != "" {
		t.Errorf("strategies (-want +got):\n%s", diff)
	}
	report, err := Run(t.Context(), poolOf(t, "hgx-h100", 1), w, w.Strategies(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Rejected > 0 {
			t.Errorf("%s: %d pods are rejected, want them to wait", r.Strategy, r.Rejected)
		}
		urgent, small, backfill := r.Kinds[0], r.Kinds[1], r.Kinds[2]
		t.Log(r.Strategy, *urgent.Waited, *small.Waited, *backfill.Waited, backfill.Evicted)
		if evicts := r.Strategy == Preempt; evicts != (urgent.Waited.Most == 0) || evicts != (small.Waited.Most == 0) || evicts != (backfill.Evicted > 0) {
			t.Errorf("%s: urgent pods waited %s and %s, backfill was evicted %d times", r.Strategy, urgent.Waited.Most, small.Waited.Most, backfill.Evicted)
		}
		if urgent.Evicted+small.Evicted > 0 {
			t.Errorf("%s: urgent pods are evicted", r.Strategy)
		}
		if backfill.Waited.Most < time.Hour {
			t.Errorf("%s: backfill waited %s on GPUs for half of it", r.Strategy, backfill.Waited.Most)
		}
	}
	if _, err := Run(t.Context(), poolOf(t, "hgx-h100", 1), &Workload{Duration: w.Duration, Pods: []Pods{{Name: "a", DeviceClassName: "gpu.cleave.dev",
		Count: 1, Running: 1, Lifetime: w.Duration}}}, []string{Preempt}, 1); err == nil ||
		err.Error() != "simulate strategy preempt: no pods of the workload have a priority" {
		t.Errorf("without priorities: %v", err)
	}
}

// TestQueue_Conserves: what runs and what waits are all that came, whoever was evicted. Nobody ends here.
func TestQueue_Conserves(t *testing.T) {
	w, err := Decode([]byte(queues))
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(t.Context(), poolOf(t, "hgx-h100", 1), w)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := p.newNodes()
	if err != nil {
		t.Fatal(err)
	}
	r := replay{chooser: chooser{plan: p, nodes: nodes, strategy: Preempt, random: newRandom(1, samples)}, evicts: true, queue: newQueue(w),
		result: Result{Kinds: make([]KindResult, len(w.Pods))}}
	for i, a := range arrivals(w, 1)[:200] {
		if err := r.enqueue(t.Context(), waiting{arrival: a, name: fmt.Sprint("pod-", i)}); err != nil {
			t.Fatal(err)
		}
		there := len(r.running)
		for _, q := range r.queue.kinds {
			there += len(q)
		}
		if there != i+1 {
			t.Fatalf("after %d pods, %d run or wait", i+1, there)
		}
	}
}
