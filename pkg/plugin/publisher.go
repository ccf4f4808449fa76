// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// slicePublisher is the part of the kubelet plugin helper that writes ResourceSlices in the background.
type slicePublisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// publisher brings the slices of a node to the API server and keeps them there. Who wants other slices says so by want, which
// never waits; all else happens in run.
type publisher struct {
	to   slicePublisher
	pool string
	// seen are the node's slices as the API server has them. wake has a value after they or the wanted ones have changed.
	seen func() []ownSlice
	wake chan struct{}
	// reported is called with the outcome of each publication.
	reported func(error)
	// deleted is called after slices were deleted by something other than this plugin and are published again.
	deleted func(missing, all int)
	// kubeletRegistered is when the kubelet registered the plugin last. A kubelet that starts deletes the slices of its node.
	kubeletRegistered func() time.Time

	mu     sync.Mutex
	wanted []resourceslice.Slice

	publication // of run alone
}

const (
	// syncTimeout bounds the wait for one slice to reach the API server.
	syncTimeout = 10 * time.Second
	// publishRetry is the time between two attempts to hand slices to the helper.
	publishRetry = time.Second
	// kubeletStart is how far apart a kubelet's start and its registration of the plugin are at most.
	kubeletStart = 5 * time.Second
)

// want says which slices there are to be. Those that were wanted before and are not published yet are passed over.
func (p *publisher) want(resources resourceslice.DriverResources) {
	p.mu.Lock()
	p.wanted = append([]resourceslice.Slice{}, resources.Pools[p.pool].Slices...) // none at all are wanted, too
	p.mu.Unlock()
	signal(p.wake)
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		var due <-chan time.Time
		if again := p.advance(ctx); again > 0 {
			due = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-due:
		}
	}
}

// advance does what can be done now, and returns after what time there is more to do though nothing changes; zero for never.
func (p *publisher) advance(ctx context.Context) (again time.Duration) {
	for ctx.Err() == nil {
		p.mu.Lock()
		wanted := p.wanted
		p.mu.Unlock()
		s := p.next(wanted, p.seen(), time.Now())
		if s.slow {
			klog.FromContext(ctx).Info("A ResourceSlice is slow to arrive; changing the next one")
		}
		if s.slices == nil {
			return p.tell(s)
		}
		err := p.to.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.pool: {Slices: s.slices}}})
		p.reported(err)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
			return publishRetry
		}
		if s.missing > 0 {
			klog.FromContext(ctx).Info("ResourceSlices are gone and are published again", "missing", s.missing, "of", len(s.slices))
		}
		p.handed(s, time.Now())
	}
	return 0
}

// tell reports slices that were deleted, once it is known that no kubelet's start is why.
func (p *publisher) tell(s step) (again time.Duration) {
	if p.loss.missing == 0 {
		return s.again
	}
	if left := kubeletStart - time.Since(p.loss.at); left > 0 {
		if s.again == 0 || left < s.again {
			return left
		}
		return s.again
	}
	if p.kubeletRegistered().Before(p.loss.at.Add(-kubeletStart)) {
		p.deleted(p.loss.missing, len(p.published))
	}
	p.loss = loss{}
	return s.again
}

// publish brings the slices in line with hardware and records.
func (s *service) publish(hw *hardware, p *publisher) {
	node, view := s.view(hw)
	p.want(s.resources(node, view))
	s.ranking.published(view.WholeGPUs(node))
}

// newPublisher makes one that reports to the service.
func (s *service) newPublisher() *publisher {
	return &publisher{
		to: s.helper, pool: s.config.NodeName, seen: s.around.own.all, wake: s.around.ownChanged, reported: s.ready.published,
		kubeletRegistered: func() time.Time { return time.Unix(0, s.registered.Load()) },
		deleted: func(missing, all int) {
			s.events.warn("ResourceSlicesDeleted", fmt.Sprintf("%d of the %d ResourceSlices of this node were deleted, and are published again. "+
				"Should it happen again, look into the audit log of the API server for who deletes them.", missing, all))
		},
	}
}

// view is the inventory that is published, and what is published beside it.
func (s *service) view(hw *hardware) (*policy.Node, publish.View) {
	node := hw.Node()
	taints := append(s.supervisor.taints(node), s.drainTaints(node)...)
	taints = append(taints, s.health.taints(node)...)
	taints = append(taints, s.spec.taints(node)...)
	for _, device := range s.engine.Partitions.Occupied() {
		taints = append(taints, publish.Taint{Device: device, Key: publish.TaintOccupied})
	}
	if s.conflict != nil {
		left, conflicts := besideOthers(node, records.HeldOf(s.engine.Records()))
		node, taints = left, append(taints, conflicts...)
	}
	return node, publish.View{Taints: taints, Free: freeGPUs(s.engine.AllRecords()), Lists: s.lists.taken, Compatible: s.config.compatible()}
}

// resources are the slices as they should be now.
func (s *service) resources(node *policy.Node, view publish.View) resourceslice.DriverResources {
	r := publish.Resources(node, s.config.NodeName, view)
	for _, existing := range s.engine.Partitions.Existing() {
		publish.NameExisting(r, s.config.NodeName, existing.Device, existing.UUID)
	}
	return r
}
