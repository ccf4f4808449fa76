// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// partitionShareBench measures shares of a partition, of a plugin with a policy that has them.
type partitionShareBench struct{ *bench }

const (
	sharingPolicy = `[{mig: {share: [{profile: 3g.40gb, mps: {shares: 8}}]}}]`
	// sharedPartition is the upper 3g.40gb of a GPU.
	sharedPartition = "-mig-9-4"
	// firstRounds is how often a first share is measured: each starts an MPS server.
	firstRounds = 10
)

// measure restarts the plugin with the policy, and without it in the end.
func (b partitionShareBench) measure(ctx context.Context, r *report) (err error) {
	dir, err := os.MkdirTemp("", "cleave-bench")
	if err != nil {
		return fmt.Errorf("create a directory for the policy: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writePolicy(dir, "default", sharingPolicy); err != nil {
		return err
	}
	if err := b.restart(ctx, "--policy", dir); err != nil {
		return err
	}
	if err := b.measureFirst(ctx, r); err != nil {
		return err
	}
	if err := b.measureFurther(ctx, r); err != nil {
		return err
	}
	return b.restart(ctx)
}

func (b partitionShareBench) restart(ctx context.Context, flags ...string) error {
	if err := b.node.Stop(); err != nil {
		return err
	}
	b.node.SetFlags(flags...)
	if err := b.node.Start(ctx); err != nil {
		return err
	}
	if err := b.node.WaitReady(ctx); err != nil {
		return err
	}
	next, err := workload.Dial(b.node.Socket())
	if err != nil {
		return err
	}
	_ = b.plugin.Close() // of the plugin that has ended
	b.plugin = next
	return nil
}

func (b partitionShareBench) share(ctx context.Context, name string) (*drapb.Claim, error) {
	amounts := map[string]int64{gpu.CapacityShares: 1, gpu.CapacityMemory: 1 << 30, gpu.CapacityCores: 10}
	return b.allocate(ctx, name, workload.OneShare(b.cluster.NodeName(), b.devices[0]+sharedPartition+"-mps", amounts))
}

// measureFirst compares the first share of a partition with what it is made of: the partition, and the first share of a GPU,
// which starts an MPS server.
func (b partitionShareBench) measureFirst(ctx context.Context, r *report) error {
	partition, err := b.makeClaim(ctx, "partition-3g", b.devices[0]+sharedPartition, false)
	if err != nil {
		return err
	}
	server, err := shareBench(b).create(ctx, "server", b.devices[0], gpu.MPS)
	if err != nil {
		return err
	}
	first, err := b.share(ctx, "partition-share-first")
	if err != nil {
		return err
	}
	var took [3]samples
	for range firstRounds {
		for i, claim := range []*drapb.Claim{partition, server, first} {
			if err := timed(&took[i], func() error { return prepare(ctx, b.plugin, claim) }); err != nil {
				return err
			}
			if err := unprepare(ctx, b.plugin, claim); err != nil {
				return err
			}
		}
	}
	p50 := func(i int) time.Duration { return took[i].percentile(50) }
	r.add(result{Name: "partition share: first, creates partition and server, prepare p50", Value: millis(p50(2)),
		Limit: millis(p50(0) + p50(1)), Unit: "ms", Rule: "a partition + the first MPS share of a GPU"})
	return nil
}

func (b partitionShareBench) measureFurther(ctx context.Context, r *report) error {
	first, err := b.share(ctx, "partition-share-1")
	if err != nil {
		return err
	}
	further, err := b.share(ctx, "partition-share-2")
	if err != nil {
		return err
	}
	if err := prepare(ctx, b.plugin, first); err != nil {
		return err
	}
	o, err := b.singles(ctx, []*drapb.Claim{further})
	if err != nil {
		return err
	}
	r.addSingles("partition share: ", o, 2*millis(o.floor.percentile(50)), "2 x floor alongside it")
	return unprepare(ctx, b.plugin, first)
}
