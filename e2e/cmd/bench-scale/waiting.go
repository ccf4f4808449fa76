// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// crowd is the class of the pods that wait: there is no room for one, because each node has an allocated claim, and a pod of the
// crowd asks for all GPUs of a node.
const crowd = whole

// rounds is in how many parts the pods that fit come and go: each part that goes gives the waiting ones a reason to be tried.
const rounds = 4

// amongWaiting measures how fast pods that fit are placed while others wait that do not. It runs with claims allocated on all
// nodes.
func (b *bench) amongWaiting(ctx context.Context, r *report, s *scheduler) error {
	if b.waiting == 0 || b.allocated < b.nodes {
		return nil
	}
	waiting := b.names("waiting", b.waiting)
	if _, err := b.create(ctx, s.name, crowd, int64(b.published.gpus()), waiting); err != nil {
		return err
	}
	if err := b.refused(ctx, waiting); err != nil {
		return err
	}
	for _, k := range b.kinds {
		var took time.Duration
		each := max(1, b.pods/rounds)
		for range rounds {
			names := b.names(k.prefix(), each)
			began, err := b.create(ctx, s.name, k.class, 1, names)
			if err != nil {
				return err
			}
			last, err := b.bound(ctx, names)
			if err != nil {
				return err
			}
			took += last.Sub(began)
			if err := b.remove(ctx, names); err != nil {
				return err
			}
		}
		rate := float64(rounds*each) / took.Seconds()
		r.set(fmt.Sprintf(podRateWaiting, rounds*each, k.name, b.waiting), s.name, rate)
		fmt.Fprintf(os.Stderr, "%s: %d pods of %s in %d parts while %d wait, %.1f in a second\n",
			s.name, rounds*each, k.name, rounds, b.waiting, rate)
	}
	for _, name := range waiting {
		if p := b.watch.get(name); p.node != "" {
			return fmt.Errorf("pod %s was to wait and is on node %s", name, p.node)
		}
	}
	return b.remove(ctx, waiting)
}

// refused waits until the scheduler has found no node for pods.
func (b *bench) refused(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	left := slices.Clone(names)
	err := b.watch.until(ctx, func(pods map[string]placed) bool {
		left = slices.DeleteFunc(left, func(name string) bool { return pods[name].refused })
		return len(left) == 0
	})
	if err != nil {
		return fmt.Errorf("wait for %d of %d pods to find no node: %w", len(left), len(names), err)
	}
	return nil
}
