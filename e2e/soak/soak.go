// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

// Options of a soak.
type Options struct {
	// Source is the root of the repository.
	Source string
	// Dir is the cluster's directory.
	Dir string
	// Duration is how long pods and faults come.
	Duration time.Duration
	Seed     uint64
	// History is the file that the history is recorded in.
	History string
	// Only are the kinds of faults to inject; none for all.
	Only []Kind
	// Output gets the progress.
	Output io.Writer
}

// endTimeout bounds the time after the last fault until all pods are gone.
const endTimeout = 5 * time.Minute

// Run starts a cluster, keeps it under fire, takes it down and reports. The report is nil if there was nothing to report on.
func Run(ctx context.Context, opts Options) (report *Report, err error) {
	b, err := setUp(ctx, opts)
	defer func() { err = errors.Join(err, b.tearDown(context.WithoutCancel(ctx), opts.Dir)) }()
	if err != nil {
		return nil, err
	}
	count := newTally(opts.Output, opts.Seed)
	plan, pods := NewPlan(opts.Seed, modelGPUs), &podList{}
	f := &faults{bed: b, plan: plan, report: count, pods: pods}
	if err := f.learn(ctx); err != nil {
		return nil, err
	}
	before, err := b.footprint(ctx)
	if err != nil {
		return nil, err
	}
	if f.recorder, err = b.record(ctx, opts.History); err != nil {
		return nil, err
	}
	count.log("%d devices, seed %d: pods and faults come for %s", len(f.want), opts.Seed, opts.Duration)
	took := underFire(ctx, f, opts)
	if ctx.Err() != nil {
		_, err := f.recorder.Stop()
		return count.report(took, nil), errors.Join(ctx.Err(), err)
	}
	leaks, err := b.leaks(ctx, before)
	if err = errors.Join(err, count.check(f.recorder, f.pods, cluster.PodGroups(f.bed.cluster))); err != nil {
		return count.report(took, nil), err
	}
	return count.report(took, leaks), nil
}

// underFire lets pods and faults come, and waits until all pods are gone. It returns how long they came.
func underFire(ctx context.Context, f *faults, opts Options) time.Duration {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, opts.Duration+endTimeout)
	defer cancel()
	more, enough := context.WithTimeout(ctx, opts.Duration)
	defer enough()
	var watching, passing sync.WaitGroup
	looking, done := context.WithCancel(ctx)
	watching.Go(func() { f.pods.watch(looking, f.bed) })
	pods := newChurn(f.bed, f.plan, f.pods, f.report)
	passing.Go(func() { pods.run(ctx, more) })
	passing.Go(func() { pods.randomPods(ctx, more) })
	passing.Go(func() { pods.rivals(ctx, more) })
	passing.Go(func() { pods.urgentPods(ctx, more) })
	if !f.run(ctx, more, opts.Only) {
		enough() // what follows a fault without recovery says nothing
	}
	took := time.Since(start)
	passing.Wait()
	if left := f.pods.names(); ctx.Err() == nil && len(left) > 0 {
		f.report.violation("pod", "%d pods are left: %v", len(left), left)
	}
	done()
	watching.Wait()
	return took
}
