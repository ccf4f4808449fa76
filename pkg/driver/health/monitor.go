// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Hardware gives access to a node's GPUs.
type Hardware interface {
	// Node is the inventory.
	Node() *gpu.Node
	// IgnoredXIDs are the XIDs that the policy of a GPU ignores.
	IgnoredXIDs(g *gpu.GPU) []int
	// Events subscribes to all GPUs. An error means that there are no events for now.
	Events(ctx context.Context) (Events, error)
	// VerifyGPU fails unless the GPU answers with its UUID.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	Recovery(ctx context.Context, pci gpu.PCIAddress) (gpu.Recovery, error)
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	// Fabric is the state of the GPU's registration with its NVLink fabric; gpu.FabricUnsupported if it needs none now.
	Fabric(ctx context.Context, g *gpu.GPU) (gpu.FabricState, error)
	// Closed reports whether a GPU is closed for a reset: until it is open again, it is not polled, and its known state stays.
	Closed(g *gpu.GPU) bool
	// RefusesWork reports whether the GPUs are in confidential computing mode and do not accept work.
	RefusesWork(ctx context.Context) (bool, error)
}

// Events is a subscription to the events of GPUs.
type Events interface {
	// Next waits for an event until a timeout.
	Next(timeout time.Duration) (e gpu.Event, happened bool, err error)
	Close() error
}

// Observer receives the Monitor's findings, from a single goroutine.
type Observer interface {
	// XID is called for every XID of a GPU, whatever its class.
	XID(g *gpu.GPU, e gpu.Event)
	// Changed is called when conditions of a GPU begin or end, after its first poll, and every half hour while conditions last.
	Changed(c Change)
	// MIGChanged is called when partitions may have changed.
	MIGChanged()
	// Alive is called periodically while all GPUs are polled as scheduled.
	Alive()
}

// Change is a change of the health of a GPU. Conditions that last are among Began every half hour.
type Change struct {
	GPU          *gpu.GPU
	Began, Ended []Condition
	// Now are all current conditions, the worst first.
	Now []Condition
}

// Intervals of polls, and timeouts.
const (
	healthyEvery   = time.Minute
	unhealthyEvery = 10 * time.Second
	eventWait      = time.Second
	minPollGap     = time.Second // between polls of a GPU that events trigger
	aliveEvery     = 10 * time.Second
	// pollWait bounds the wait for polls before the next event. A slower GPU reports later and delays no other.
	pollWait = 200 * time.Millisecond
	// firstPollWait bounds that wait at start, so that health is known before the first publication.
	firstPollWait = 15 * time.Second
	// eventBatch is the maximum number of events between two polls.
	eventBatch = 64
	// Backoff of new subscriptions, after a first retry at once.
	minBackoff, maxBackoff = time.Second, time.Minute
)

// Monitor watches the health of a node's GPUs.
type Monitor struct {
	hw   Hardware
	to   Observer
	gpus map[gpu.PCIAddress]*watched
	// events is nil without a subscription.
	events Events
	// openAt is the time of the next attempt to subscribe, backoff the wait after the next failure.
	openAt  time.Time
	backoff time.Duration
	// eventsErr is the logged error of the failed subscription.
	eventsErr string
	alive     time.Time

	// polls are running, at most one per GPU, and send their results to results.
	polls   sync.WaitGroup
	results chan result
	// round numbers the calls of poll.
	round int

	mu sync.Mutex
	// reset are the GPUs to forget.
	reset []gpu.PCIAddress
}

// result is the result of polling a GPU.
type result struct {
	gpu     *gpu.GPU
	reading Reading
	round   int
}

// NewMonitor returns a Monitor, which does nothing before Start.
func NewMonitor(hw Hardware, to Observer) *Monitor {
	return &Monitor{hw: hw, to: to, gpus: map[gpu.PCIAddress]*watched{}, results: make(chan result)}
}

// Start subscribes to events and polls all GPUs once, so that their health is known before the first publication. It
// subscribes first, so that nothing is missed in between.
func (m *Monitor) Start(ctx context.Context) {
	m.open(ctx)
	m.poll(ctx, firstPollWait)
}

// Run monitors the GPUs after Start, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	defer m.close(ctx)
	defer m.polls.Wait()
	for ctx.Err() == nil {
		m.wait(ctx)
		m.poll(ctx, pollWait)
	}
}

// Forget drops the state of a GPU that was reset, once it is open again: with the next poll its conditions end, except those that
// it still has. It is safe for concurrent use.
func (m *Monitor) Forget(pci gpu.PCIAddress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset = append(m.reset, pci)
}

// forgetReset handles calls of Forget.
func (m *Monitor) forgetReset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pci := range m.reset {
		if w := m.gpus[pci]; w != nil {
			w.forget()
		}
	}
	m.reset = nil
}

func (m *Monitor) of(pci gpu.PCIAddress) *watched {
	if m.gpus[pci] == nil {
		m.gpus[pci] = &watched{State: NewState()}
	}
	return m.gpus[pci]
}

// open subscribes to events.
func (m *Monitor) open(ctx context.Context) {
	events, err := m.hw.Events(ctx)
	if err != nil {
		m.lost(ctx, err)
		return
	}
	m.events = events
}

// close ends the subscription.
func (m *Monitor) close(ctx context.Context) {
	if m.events == nil {
		return
	}
	if err := m.events.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not close the event subscription", "reason", err.Error())
	}
	m.events = nil
}

// lost ends a failed subscription. The first retry is immediate and skips a lost GPU; later ones back off, as the same error
// may recur immediately and forever. All GPUs are polled, because the error does not name the GPU.
func (m *Monitor) lost(ctx context.Context, err error) {
	m.close(ctx)
	if err.Error() != m.eventsErr {
		m.eventsErr = err.Error()
		klog.FromContext(ctx).Error(err, "Lost the event subscription; polling the GPUs meanwhile", "retryIn", m.backoff)
	}
	m.pollAll()
	m.openAt = time.Now().Add(m.backoff)
	m.backoff = min(max(minBackoff, 2*m.backoff), maxBackoff)
}

// pollAll schedules a poll of every GPU.
func (m *Monitor) pollAll() {
	for _, w := range m.gpus {
		w.due = true
	}
}

// wait handles the events that arrive within eventWait.
func (m *Monitor) wait(ctx context.Context) {
	if m.events == nil && !time.Now().Before(m.openAt) {
		m.open(ctx)
		m.to.MIGChanged() // events may have been missed
		m.pollAll()
	}
	if m.events == nil {
		select {
		case <-ctx.Done():
		case <-time.After(eventWait):
		}
		return
	}
	timeout := eventWait
	for range eventBatch {
		e, happened, err := m.events.Next(timeout)
		if err != nil {
			m.lost(ctx, err)
			return
		}
		if !happened {
			m.backoff, m.eventsErr = 0, "" // the subscription works
			return
		}
		m.handle(ctx, e)
		timeout = 0
	}
}

func (m *Monitor) handle(ctx context.Context, e gpu.Event) {
	klog.FromContext(ctx).V(4).Info("Received a GPU event", "event", e.String(), "pci", e.PCI)
	if e.Kind == gpu.MIGChanged {
		m.to.MIGChanged()
		return
	}
	node := m.hw.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if e.PCI != nil && *e.PCI != g.PCI {
			continue
		}
		w := m.of(g.PCI)
		w.due = true // the driver may request a recovery action
		if e.PCI == nil {
			continue // the event does not name its GPU
		}
		if e.Kind == gpu.XIDReported {
			m.to.XID(g, e)
		}
		w.Event(e, m.part(ctx, g, e), m.hw.IgnoredXIDs(g), time.Now())
	}
}

// part returns the placement of an event's GPU instance, or nil.
func (m *Monitor) part(ctx context.Context, g *gpu.GPU, e gpu.Event) *gpu.Placement {
	if !PartOnly(e) {
		return nil
	}
	partitions, err := m.hw.Partitions(ctx, g)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot find the partition of an event", "pci", g.PCI, "event", e.String(), "reason", err.Error())
		return nil
	}
	for _, p := range partitions {
		if p.GI == *e.GI {
			return &p.Placement
		}
	}
	return nil
}

// poll polls the GPUs that are due and reports changes. Results that take longer than limit are handled by a later call.
func (m *Monitor) poll(ctx context.Context, limit time.Duration) {
	node := m.hw.Node()
	maps.DeleteFunc(m.gpus, func(pci gpu.PCIAddress, _ *watched) bool { return node.Find(pci.DeviceName()) == nil })
	m.forgetReset()
	m.collect(ctx, m.startPolls(ctx, node), limit)
	reported := false
	for i := range node.GPUs {
		g := &node.GPUs[i]
		w := m.of(g.PCI)
		if w.last.IsZero() || m.hw.Closed(g) {
			continue // its first poll has not returned, or its state is uncertain
		}
		if change, changed := w.change(g, time.Now()); changed {
			m.to.Changed(change)
			reported = true
		}
	}
	if now := time.Now(); reported || now.Sub(m.alive) >= aliveEvery {
		m.alive = now
		m.to.Alive()
	}
}

// startPolls polls the GPUs that are due, each in its own goroutine, and returns their number.
func (m *Monitor) startPolls(ctx context.Context, node *gpu.Node) (started int) {
	m.round++
	for i := range node.GPUs {
		g := &node.GPUs[i]
		w := m.of(g.PCI)
		if w.polling || !w.isDue(time.Now()) || m.hw.Closed(g) {
			continue
		}
		w.polling, w.due = true, false // later events trigger another poll
		started++
		round := m.round
		m.polls.Go(func() {
			select {
			case m.results <- result{g, m.read(ctx, g), round}:
			case <-ctx.Done():
			}
		})
	}
	return started
}

// read polls a GPU.
func (m *Monitor) read(ctx context.Context, g *gpu.GPU) Reading {
	r := Reading{Err: m.hw.VerifyGPU(ctx, g)}
	if r.Err == nil {
		r.Recovery, r.Err = m.hw.Recovery(ctx, g.PCI)
	}
	if r.Err == nil {
		r.Fabric, r.Err = m.hw.Fabric(ctx, g)
	}
	if r.Err == nil {
		r.Refuses, r.Err = m.hw.RefusesWork(ctx)
	}
	return r
}

// collect handles results until all of the current round have arrived or the time is up.
func (m *Monitor) collect(ctx context.Context, missing int, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for missing > 0 {
		select {
		case r := <-m.results:
			m.polled(ctx, r)
			if r.round == m.round {
				missing--
			}
		case <-timer.C:
			missing = 0
		case <-ctx.Done():
			return
		}
	}
	for {
		select {
		case r := <-m.results: // of earlier rounds
			m.polled(ctx, r)
		default:
			return
		}
	}
}

// polled handles the result of polling a GPU.
func (m *Monitor) polled(ctx context.Context, r result) {
	w := m.gpus[r.gpu.PCI]
	if w == nil || ctx.Err() != nil {
		return // the GPU was removed, or the poll interrupted
	}
	w.polling = false
	if errors.Is(r.reading.Err, gpu.ErrReleased) {
		return // closed meanwhile
	}
	if r.reading.Err != nil && w.failing.IsZero() {
		klog.FromContext(ctx).Error(r.reading.Err, "Polling a GPU failed", "pci", r.gpu.PCI, "uuid", r.gpu.UUID)
	}
	gone := w.gone
	w.Poll(r.reading, m.hw.IgnoredXIDs(r.gpu), time.Now())
	w.last = time.Now()
	if gone && !w.gone {
		// NVML does not document whether an event set survives a GPU's absence. The next wait subscribes again.
		m.close(ctx)
		m.openAt = time.Now()
	}
}
