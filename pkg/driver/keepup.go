package driver

import (
	"context"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/publish"
)

// slicesGoneFor is for how many seconds after a registration the slices are published again. A kubelet that starts
// deletes the slices of its node, at some time about the registration; left alone, the helper puts them back after 30 s
// (DefaultSyncDelay of k8s.io/dynamic-resource-allocation/resourceslice), and till then nothing can be scheduled.
const slicesGoneFor = 6

// startUp is when the first publication is over, informers' first lists included.
const startUp = 2 * time.Second

// settle is how long partitions must have stood still before the hardware is looked at again: the plugin's own
// changes cause events, too.
const settle = time.Second

// finishEvery is the time between attempts to finish what claims have begun to give back: a partition that was in use, a
// share whose supervisor was away.
const finishEvery = 10 * time.Second

// keepUp keeps hardware, records, API server and slices in line, now, every so often and after partitions changed, until
// ctx ends. Slices come after the first look at the hardware, so that a restart does not take taints away and put them
// back.
func (s *service) keepUp(ctx context.Context, hw *hardware) {
	p := &publisher{to: s.helper, client: s.client, driver: s.config.DriverName, pool: s.config.NodeName}
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.supervisor.client != nil {
		wg.Go(func() { s.watchMPS(ctx) })
	}
	tick := time.NewTicker(s.config.ReconcileEvery)
	defer tick.Stop()
	s.engine.Recover(ctx)
	s.publish(ctx, hw, p)
	s.engine.Reconcile(ctx, apiClaims{s.client})
	started := time.After(startUp)
	var settled <-chan time.Time
	refresh := time.NewTicker(time.Second)
	defer refresh.Stop()
	refreshes := 0
	unfinished := time.NewTicker(finishEvery)
	defer unfinished.Stop()
	askSupervisor := time.NewTicker(supervisorEvery)
	defer askSupervisor.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			if err := releaseStartUp(); err != nil {
				klog.FromContext(ctx).Error(err, "Could not give back the memory that the start took")
			}
		case <-s.registered:
			refreshes = slicesGoneFor
		case <-refresh.C:
			if refreshes > 0 {
				refreshes--
				p.refresh(ctx)
			}
		case <-askSupervisor.C:
			if s.supervisor.ask(ctx) {
				s.reportSupervisor(ctx)
				hw.offer(s.supervisor.noMPS())
				s.engine.Recover(ctx)
				s.publish(ctx, hw, p)
			}
		case <-unfinished.C:
			if s.engine.Unfinished() {
				s.engine.Recover(ctx)
				s.publish(ctx, hw, p)
			}
		case <-s.health.changed:
			s.publish(ctx, hw, p)
		case <-s.changed:
			settled = time.After(settle)
		case <-settled:
			settled = nil
			s.engine.FindForeign(ctx)
			s.publish(ctx, hw, p)
		case <-tick.C:
			s.engine.Reconcile(ctx, apiClaims{s.client})
			s.engine.Recover(ctx)
			hw.offer(s.supervisor.noMPS()) // what nobody holds any more, and the policy no longer has, goes
			s.publish(ctx, hw, p)
		}
	}
}

// publish brings the slices in line with hardware and records.
func (s *service) publish(ctx context.Context, hw *hardware, p *publisher) {
	err := p.update(ctx, s.resources(hw))
	s.ready.published(err)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
	}
}

// resources are the slices as they should be now.
func (s *service) resources(hw *hardware) resourceslice.DriverResources {
	taints := append(s.supervisor.taints(hw.Node()), s.health.taints(hw.Node())...)
	for _, device := range s.engine.Occupied() {
		taints = append(taints, publish.Taint{Device: device, Key: publish.TaintOccupied})
	}
	r := publish.Resources(hw.Node(), s.config.NodeName, taints...)
	for _, existing := range s.engine.Existing() {
		publish.NameExisting(r, s.config.NodeName, existing.Device, existing.UUID)
	}
	return r
}
