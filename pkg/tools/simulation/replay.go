// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// samples is how often a replay is looked at.
const samples = 200

// warmUp is the part of the duration that is not counted: one in so many.
const warmUp = 4

// Result is the outcome of a strategy on a workload.
type Result struct {
	Strategy string `json:"strategy"`
	// Requests counts pods, and Slices the compute slices that they request; Rejected and RejectedSlices those without a
	// place. GivenUp counts the pods, not among the rejected, for which the search took longer than SearchLimit. The first
	// quarter of the duration is not counted.
	Requests       int     `json:"requests"`
	Rejected       int     `json:"rejected"`
	GivenUp        int     `json:"givenUp"`
	Slices         float64 `json:"slices"`
	RejectedSlices float64 `json:"rejectedSlices"`
	// WholeFree and LeastWholeFree are the untouched GPUs, on average and at least. Fragmentation is the average of the
	// measure's, Allocated that of the pool's compute slices that are allocated.
	WholeFree      float64 `json:"wholeGPUsFree"`
	LeastWholeFree int     `json:"leastWholeGPUsFree"`
	Fragmentation  float64 `json:"fragmentation"`
	Allocated      float64 `json:"allocated"`
	// Kinds are the same counts by kind of pods.
	Kinds []KindResult `json:"kinds"`
	// Samples are taken at equal intervals, from the beginning on.
	Samples []Sample `json:"samples"`
}

// KindResult counts the pods of one kind.
type KindResult struct {
	Name     string `json:"name"`
	Requests int    `json:"requests"`
	Rejected int    `json:"rejected"`
	GivenUp  int    `json:"givenUp"`
	// Evicted counts evictions of its pods, and Waited is how long they waited for a place, where pods have priorities.
	Evicted int     `json:"evicted,omitempty"`
	Waited  *Waited `json:"waited,omitempty"`
}

// Waited is how long pods waited for a place: half of them, and 95 of 100, for no longer than these times.
type Waited struct {
	Half time.Duration `json:"p50"`
	Most time.Duration `json:"p95"`
}

// Sample is the pool at a time.
type Sample struct {
	At time.Duration `json:"at"`
	// WholeFree, Fragmentation and Allocated as in Result, at this time. RejectedSlices is the part of the compute slices
	// requested since the sample before that was rejected.
	WholeFree      int     `json:"wholeGPUsFree"`
	Fragmentation  float64 `json:"fragmentation"`
	Allocated      float64 `json:"allocated"`
	RejectedSlices float64 `json:"rejectedSlices"`
}

// Report is a workload on a pool, with a result for each strategy.
type Report struct {
	Nodes    int           `json:"nodes"`
	Model    string        `json:"nodeModel"`
	GPUs     int           `json:"gpus"`
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration"`
	// Load is what would run at a time, in compute slices, over those that there are.
	Load    float64  `json:"load"`
	Results []Result `json:"results"`
}

// Run replays a workload on a pool with each strategy.
func Run(ctx context.Context, pool Pool, w *Workload, strategies []string, seed uint64) (*Report, error) {
	if pool.Nodes < 1 || pool.Nodes > MaxNodes {
		return nil, fmt.Errorf("simulate %d nodes: there may be 1 to %d", pool.Nodes, MaxNodes)
	}
	if !w.queued() && slices.Contains(strategies, Preempt) {
		return nil, fmt.Errorf("simulate strategy %s: no pods of the workload have a priority", Preempt)
	}
	p, err := newPlan(ctx, pool, w)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Nodes: pool.Nodes, Model: pool.Model, GPUs: pool.Nodes * p.gpus, Seed: seed, Duration: w.Duration.Duration,
		Results: make([]Result, len(strategies)),
	}
	for _, request := range p.requests {
		r.Load += float64(request.pods.Running) * request.share / float64(pool.Nodes)
	}
	trace := arrivals(w, seed)
	errs := make([]error, len(strategies))
	turn := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, s := range strategies {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			r.Results[i], errs[i] = p.replay(ctx, w, trace, s, seed)
		})
	}
	all.Wait()
	return r, errors.Join(errs...)
}

// replay is one strategy's.
type replay struct {
	chooser
	result  Result
	running []*leaving // by the time they leave
	// queue has the pods that wait, and evicts is whether others make room for more important ones; nil where pods are rejected.
	queue  *queue
	evicts bool
	// since the last sample
	slices, rejected float64
	counted          int // samples
}

// leaving is a pod that runs, and when it leaves.
type leaving struct {
	*placement
	until time.Duration
	// pod is what runs, since a time, where there is a queue.
	pod   waiting
	since time.Duration
}

func (p *plan) replay(ctx context.Context, w *Workload, trace []arrival, strategy string, seed uint64) (Result, error) {
	nodes, err := p.newNodes()
	if err != nil {
		return Result{}, err
	}
	r := replay{
		chooser: chooser{plan: p, nodes: nodes, strategy: strategy, random: newRandom(seed, samples)},
		result:  Result{Strategy: strategy, LeastWholeFree: p.gpus * len(nodes)},
		evicts:  strategy == Preempt,
	}
	if w.queued() {
		r.queue = newQueue(w)
	}
	for i := range w.Pods {
		r.result.Kinds = append(r.result.Kinds, KindResult{Name: w.Pods[i].Name})
	}
	every := w.Duration.Duration / samples
	for i, a := range trace {
		if err := ctx.Err(); err != nil {
			return r.result, err
		}
		for a.at >= time.Duration(len(r.result.Samples)+1)*every && len(r.result.Samples) < samples {
			if err := r.sample(ctx, every); err != nil {
				return r.result, err
			}
		}
		if err := r.leave(ctx, a.at); err != nil {
			return r.result, err
		}
		if err := r.arrive(ctx, a, i); err != nil {
			return r.result, err
		}
	}
	for len(r.result.Samples) < samples {
		if err := r.sample(ctx, every); err != nil {
			return r.result, err
		}
	}
	if r.queue != nil {
		r.finish(w.Duration.Duration)
	}
	n := float64(max(1, r.counted))
	r.result.WholeFree /= n
	r.result.Fragmentation /= n
	r.result.Allocated /= n
	return r.result, nil
}

// counts reports whether a time is counted.
func (r *replay) counts(sample int) bool { return sample >= samples/warmUp }

// arrive finds a place for a pod, or counts it as rejected. Where there is a queue, it waits.
func (r *replay) arrive(ctx context.Context, a arrival, i int) error {
	if r.queue != nil {
		pod := waiting{arrival: a, name: fmt.Sprintf("pod-%d", i), counted: r.counts(len(r.result.Samples))}
		if pod.counted {
			r.result.Requests++
			r.result.Kinds[a.kind].Requests++
			r.result.Slices += r.requests[a.kind].slices
		}
		return r.enqueue(ctx, pod)
	}
	placed, err := r.place(ctx, a.kind, fmt.Sprintf("pod-%d", i))
	givenUp := errors.Is(err, errGivenUp)
	if err != nil && !givenUp {
		return err
	}
	request, kind := &r.requests[a.kind], &r.result.Kinds[a.kind]
	counted := r.counts(len(r.result.Samples))
	r.slices += request.slices
	if counted {
		r.result.Requests++
		kind.Requests++
		r.result.Slices += request.slices
	}
	if placed != nil {
		r.run(&leaving{placement: placed, until: a.until})
		return nil
	}
	if givenUp {
		if counted {
			r.result.GivenUp++
			kind.GivenUp++
		}
		return nil
	}
	r.rejected += request.slices
	if counted {
		r.result.Rejected++
		kind.Rejected++
		r.result.RejectedSlices += request.slices
	}
	return nil
}

// run notes that a pod runs.
func (r *replay) run(l *leaving) {
	at, _ := slices.BinarySearchFunc(r.running, l.until, func(l *leaving, t time.Duration) int { return cmp.Compare(l.until, t) })
	r.running = slices.Insert(r.running, at, l)
}

// leave releases the devices of pods whose time is over. Others that wait get them at that time.
func (r *replay) leave(ctx context.Context, now time.Duration) error {
	for r.queue != nil && len(r.running) > 0 && r.running[0].until <= now {
		gone := r.running[0]
		r.running = slices.Delete(r.running, 0, 1)
		r.release(r.nodes, gone.placement)
		r.ended(gone)
		if err := r.try(ctx, gone.until); err != nil {
			return err
		}
	}
	n := 0
	for n < len(r.running) && r.running[n].until <= now {
		r.release(r.nodes, r.running[n].placement)
		n++
	}
	r.running = slices.Delete(r.running, 0, n)
	return nil
}

// sample looks at the pool, at the end of the next interval.
func (r *replay) sample(ctx context.Context, every time.Duration) error {
	at := time.Duration(len(r.result.Samples)+1) * every
	if err := r.leave(ctx, at); err != nil {
		return err
	}
	s := Sample{At: at, Fragmentation: packing.Fragmentation(states(r.nodes)...)}
	for _, n := range r.nodes {
		s.WholeFree += n.state.Untouched()
		s.Allocated += n.share / float64(len(r.nodes))
	}
	if r.slices > 0 {
		s.RejectedSlices = r.rejected / r.slices
	}
	r.slices, r.rejected = 0, 0
	if r.counts(len(r.result.Samples)) {
		r.counted++
		r.result.WholeFree += float64(s.WholeFree)
		r.result.LeastWholeFree = min(r.result.LeastWholeFree, s.WholeFree)
		r.result.Fragmentation += s.Fragmentation
		r.result.Allocated += s.Allocated
	}
	r.result.Samples = append(r.result.Samples, s)
	return nil
}
