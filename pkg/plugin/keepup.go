// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy/live"
)

// startUp is when the first publication is over, informers' first lists included.
const startUp = 2 * time.Second

// settle is how long partitions must have stood still before the hardware is looked at again: the plugin's own
// changes cause events, too.
const settle = time.Second

// finishEvery is the time between attempts to finish what claims have begun to give back: a partition that was in use, a
// share whose supervisor was away; and to cut GPUs that something is in the way of.
const finishEvery = 10 * time.Second

// keepUp keeps hardware, records, API server and slices in line, now, every so often and after partitions changed, until
// ctx ends or the driver is to be let go of, which it gives the reason for. Slices come after the first look at the
// hardware, so that a restart does not take taints away and put them back.
func (s *service) keepUp(ctx context.Context, hw *hardware, p *publisher) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	s.watchAll(ctx, &wg)
	wg.Go(func() {
		s.finder.run(ctx, hw.Session, func(pci gpu.PCIAddress) bool { return holds(s.engine.Records(), pci) })
	})
	tick := time.NewTicker(s.config.ReconcileEvery)
	defer tick.Stop()
	s.recover(ctx, hw, p)
	s.engine.Reconcile(ctx, apiClaims{s.client})
	var settled <-chan time.Time
	left := s.leaving(hw)
	unfinished := time.NewTicker(finishEvery)
	defer unfinished.Stop()
	askSupervisor := time.NewTicker(supervisorEvery)
	defer askSupervisor.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-askSupervisor.C:
			if why := s.mustLetGo(); why != nil {
				return why
			}
			if s.supervisor.ask(ctx) {
				s.reportSupervisor(ctx)
				s.recover(ctx, hw, p)
			}
		case <-unfinished.C:
			if s.engine.Unfinished() || s.uncut != "" {
				s.recover(ctx, hw, p)
			}
		case <-s.spec.changed:
			s.reportSpec(ctx)
			s.publish(hw, p)
		case <-s.health.changed:
			s.publish(hw, p)
		case <-s.finder.found:
			s.takeIn(ctx, hw, p)
		case <-s.ranking.changed:
			s.ranking.start()
		case <-s.ranking.due:
			s.rank(ctx, hw, p)
		case <-s.changed:
			settled = time.After(settle)
		case <-settled:
			settled = nil
			signal(s.finder.links) // partitions take a GPU's links down
			s.engine.Partitions.FindUnmanaged(ctx)
			s.reoffer(ctx, hw, p)
		case <-s.outside:
			if why := s.mustLetGo(); why != nil {
				return why
			}
			if s.lookOutside(ctx, hw, false) {
				left = s.leaving(hw)
				s.reoffer(ctx, hw, p)
			}
		case <-left:
			left, hw.before = nil, nil
			s.reoffer(ctx, hw, p)
		case <-tick.C:
			s.lists.ask(ctx, s.client, s.config)
			signal(s.finder.links)
			s.engine.Reconcile(ctx, apiClaims{s.client})
			if s.lookOutside(ctx, hw, true) {
				left = s.leaving(hw)
			}
			s.recover(ctx, hw, p)
		}
	}
}

// watchAll starts what watches the supervisor and the policy files, until ctx ends, and gives back what the start took.
func (s *service) watchAll(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(startUp):
			// Start-up leaves as much garbage as all that stays, and an idle process makes too little to collect it.
			debug.FreeOSMemory()
		}
	})
	if s.supervisor.client != nil {
		wg.Go(func() { s.watchMPS(ctx) })
	}
	if path := s.config.PolicyFile; path != "" {
		wg.Go(func() {
			if err := live.Watch(ctx, path, func() { signal(s.outside) }); err != nil {
				klog.FromContext(ctx).Error(err, "Changes of the node policy are seen late", "every", s.config.ReconcileEvery)
			}
		})
	}
}

// lookOutside looks at what comes from outside: the node's policy, and who else hands out its GPUs. It tells whether that
// changes what is published.
func (s *service) lookOutside(ctx context.Context, hw *hardware, again bool) (changed bool) {
	if changed = s.lookAtPolicy(ctx, hw, again); changed {
		hw.offer(s.supervisor.noMPS()) // GPUs that the policy leaves to others are in nobody's way
	}
	return s.lookBeside(ctx, hw, again) || changed
}

// leaving is when what an earlier policy offered goes; nil where nothing of it is left.
func (s *service) leaving(hw *hardware) <-chan time.Time {
	if hw.before == nil {
		return nil
	}
	return time.After(leaveFor)
}

// keepsForClaims tells whether something is as it is only because claims hold it: published, or not cut into its layout.
func (s *service) keepsForClaims(hw *hardware) bool {
	return s.conflict != nil || withdrawn(hw.Node()) || uncut(hw.Node(), hw.standing)
}

// recover finishes what claims have begun, and offers what is there then.
func (s *service) recover(ctx context.Context, hw *hardware, p *publisher) {
	hw.offer(s.supervisor.noMPS())
	s.engine.Recover(ctx)
	s.engine.Partitions.LeaveMIGMode(ctx)
	s.reoffer(ctx, hw, p)
}

// reoffer brings in line with the policy, and with what claims hold, what GPUs offer, how they are cut, and what is published.
func (s *service) reoffer(ctx context.Context, hw *hardware, p *publisher) {
	hw.offer(s.supervisor.noMPS())
	// Before that, a claim may have been allocated, by whatever name, what the layout would cut.
	if hw.before == nil && s.names.holding() == nil {
		s.keepLayouts(ctx)
		hw.offer(s.supervisor.noMPS())
	}
	s.publish(hw, p)
}
