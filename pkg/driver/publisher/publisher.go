// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// SliceWriter is the part of the kubelet plugin helper that writes ResourceSlices in the background.
type SliceWriter interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Options of a Publisher.
type Options struct {
	Writer SliceWriter
	// Pool is the name of the node's only pool.
	Pool string
	// Seen are the node's slices as the API server has them. Wake has a value after they have changed.
	Seen func() []Seen
	Wake chan struct{}
	// WriteFailed is when the helper last failed to write a slice; zero for never.
	WriteFailed func() time.Time
	// Arrived is called once the API server has the last wanted slices; may be nil.
	Arrived func()
	// Published is called with the outcome of each publication.
	Published func(error)
	// Deleted is called after slices were deleted by something other than this plugin and are published again.
	Deleted func(missing, all int)
	// KubeletRegistered is when the kubelet last registered the plugin. A starting kubelet deletes the slices of its node.
	KubeletRegistered func() time.Time
}

// Publisher writes the slices of a node to the API server and keeps them there. Want sets the slices without blocking; all else
// happens in Run.
type Publisher struct {
	options Options

	mu     sync.Mutex
	wanted []nodeslices.Slice
	// wants counts the calls of Want; given is that count when the helper last had all slices, arrived when the API server was last seen
	// to have them. pending is as returned by Handed.
	wants, given, arrived int
	pending               time.Time

	publication // of Run alone
}

// NewPublisher returns a publisher; nothing is published before Run and Want.
func NewPublisher(options Options) *Publisher { return &Publisher{options: options} }

const (
	// syncTimeout bounds the wait for one slice to reach the API server.
	syncTimeout = 10 * time.Second
	// publishRetry is the time between two attempts to hand slices to the helper.
	publishRetry = time.Second
	// kubeletStart is the longest time from a kubelet's start to its registration of the plugin.
	kubeletStart = 5 * time.Second
)

// Want sets the slices to publish. Earlier ones that are not published yet are skipped.
func (p *Publisher) Want(wanted []nodeslices.Slice) {
	p.mu.Lock()
	p.wanted = append([]nodeslices.Slice{}, wanted...) // an empty list is wanted, too
	p.wants++
	p.mu.Unlock()
	select {
	case p.options.Wake <- struct{}{}:
	default:
	}
}

// Arrived reports whether the API server has had the last wanted slices.
func (p *Publisher) Arrived() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wants > 0 && p.arrived == p.wants
}

// Handed reports whether the helper was given all of the last wanted slices, and when it last was given any, or one was seen to arrive.
func (p *Publisher) Handed() (all bool, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given == p.wants, p.pending
}

// noteHanded notes progress towards the slices of a call of Want, given by its count.
func (p *Publisher) noteHanded(s step, wants int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = p.moved
	if s.handed {
		p.given = wants
	}
}

// noteArrival notes that the API server has the slices of a call of Want, given by its count.
func (p *Publisher) noteArrival(wants int) {
	p.mu.Lock()
	news := p.arrived != wants
	p.arrived = wants
	p.mu.Unlock()
	if news && p.options.Arrived != nil {
		p.options.Arrived()
	}
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	for {
		var due <-chan time.Time
		if again := p.advance(ctx); again > 0 {
			due = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.options.Wake:
		case <-due:
		}
	}
}

// advance does all that can be done now, and returns the time after which to call it again even without changes; zero for never.
func (p *Publisher) advance(ctx context.Context) (again time.Duration) {
	for ctx.Err() == nil {
		p.mu.Lock()
		wanted, wants := p.wanted, p.wants
		p.mu.Unlock()
		now := time.Now()
		s := p.next(wanted, p.options.Seen(), p.options.WriteFailed(), now)
		p.noteHanded(s, wants)
		if s.slow {
			klog.FromContext(ctx).Info("ResourceSlice has not reached the API server; changing the next one")
		}
		if s.arrived {
			p.noteArrival(wants)
		}
		if s.slices == nil {
			return p.reportLoss(s)
		}
		err := p.options.Writer.PublishResources(ctx, resourcesOf(p.options.Pool, s.slices))
		p.options.Published(err)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Publishing ResourceSlices failed")
			return publishRetry
		}
		if s.missing > 0 {
			klog.FromContext(ctx).Info("ResourceSlices were deleted; publishing them again", "missing", s.missing, "of", len(s.slices))
		}
		p.handed(s, now)
	}
	return 0
}

// reportLoss reports deleted slices, once the start of a kubelet is ruled out as the cause.
func (p *Publisher) reportLoss(s step) (again time.Duration) {
	if p.loss.missing == 0 {
		return s.again
	}
	if left := kubeletStart - time.Since(p.loss.at); left > 0 {
		if s.again == 0 || left < s.again {
			return left
		}
		return s.again
	}
	if p.options.KubeletRegistered().Before(p.loss.at.Add(-kubeletStart)) {
		p.options.Deleted(p.loss.missing, len(p.published))
	}
	p.loss = loss{}
	return s.again
}

// resourcesOf converts slices for the helper.
func resourcesOf(pool string, wanted []nodeslices.Slice) resourceslice.DriverResources {
	var list []resourceslice.Slice
	for _, s := range wanted {
		list = append(list, resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: list}}}
}
