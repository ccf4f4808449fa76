// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Hardware is what is asked of a node's GPUs.
type Hardware interface {
	// Node is the inventory.
	Node() *gpu.Node
	// IgnoredXIDs are those that the policy of a GPU passes over.
	IgnoredXIDs(g *gpu.GPU) []int
	// Events watches all GPUs from now on. An error means that nothing is reported for now.
	Events(ctx context.Context) (Events, error)
	// VerifyGPU fails unless the GPU answers with its UUID.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	RecoveryAction(ctx context.Context, pci gpu.PCIAddress) (gpu.RecoveryAction, error)
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	// Fabric is how far the GPU's registration with its NVLink fabric is; gpu.FabricUnsupported where it needs none now.
	Fabric(ctx context.Context, g *gpu.GPU) (gpu.FabricState, error)
}

// Events are what GPUs report.
type Events interface {
	// Next waits for an event no longer than a timeout.
	Next(timeout time.Duration) (e gpu.Event, happened bool, err error)
	Close() error
}

// Observer is told what the Monitor finds, by its one goroutine.
type Observer interface {
	// XID was reported of a GPU, whatever it means.
	XID(g *gpu.GPU, e gpu.Event)
	// Changed is called when conditions of a GPU began or ended, and after the first look at it in any case.
	Changed(c Change)
	// MIGChanged is called when partitions may have changed.
	MIGChanged()
	// Alive is called every so often when all GPUs were looked at that had to be.
	Alive()
}

// Change is what changed about the health of a GPU.
type Change struct {
	GPU          *gpu.GPU
	Began, Ended []Condition
	// Now are all that hold, the worst first.
	Now []Condition
}

// How often GPUs are asked, and events waited for.
const (
	wellEvery    = time.Minute
	unwellEvery  = 10 * time.Second
	eventWait    = time.Second
	leastBetween = time.Second // polls of a GPU that events ask for
	aliveEvery   = 10 * time.Second
	// promptly is how long answers are waited for before the next event is. A GPU that takes longer tells later and keeps
	// nobody waiting; firstAnswers is how long at the start, so that what is known is known before it is published. It is
	// longer than a call may take before it counts as hanging (nvml.Patience).
	promptly     = 200 * time.Millisecond
	firstAnswers = 15 * time.Second
	// manyEvents are taken in at most before the GPUs are looked at.
	manyEvents = 64
	// Times after which events are watched again that could not be, once that was tried at once: the first and the longest.
	firstAgain, lastAgain = time.Second, time.Minute
)

// Monitor watches the health of a node's GPUs.
type Monitor struct {
	hw   Hardware
	to   Observer
	gpus map[gpu.PCIAddress]*watched
	// events is nil while there are none.
	events Events
	// openAt is when to try for events again, and again how long to wait after the next failure.
	openAt time.Time
	again  time.Duration
	// blind is why there are no events, as it was logged.
	blind string
	alive time.Time

	// polls run, one for each GPU at most, and answers are theirs.
	polls   sync.WaitGroup
	answers chan answer
	// round tells the polls that one look begins from earlier ones.
	round int
}

// answer is what a GPU said when it was asked.
type answer struct {
	gpu     *gpu.GPU
	reading Reading
	round   int
}

// watched is one GPU.
type watched struct {
	*State
	// last is when it was asked last; zero before the first time.
	last time.Time
	// due asks for a poll before its time, asking is set while one runs.
	due, asking bool
	// told are the conditions that the observer knows of, once it was met.
	told []Condition
	met  bool
}

// NewMonitor prepares a Monitor. Nothing is asked yet.
func NewMonitor(hw Hardware, to Observer) *Monitor {
	return &Monitor{hw: hw, to: to, gpus: map[gpu.PCIAddress]*watched{}, answers: make(chan answer)}
}

// Start watches from now on and looks at all GPUs once, so that what their drivers know is known before anything is
// published. Events come first: what happens between the two is seen by one of them.
func (m *Monitor) Start(ctx context.Context) {
	m.open(ctx)
	m.look(ctx, firstAnswers)
}

// Run goes on watching after Start, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	defer m.close(ctx)
	defer m.polls.Wait()
	for ctx.Err() == nil {
		m.wait(ctx)
		m.look(ctx, promptly)
	}
}

// of is the state of a GPU.
func (m *Monitor) of(pci gpu.PCIAddress) *watched {
	if m.gpus[pci] == nil {
		m.gpus[pci] = &watched{State: NewState()}
	}
	return m.gpus[pci]
}

// open watches events.
func (m *Monitor) open(ctx context.Context) {
	events, err := m.hw.Events(ctx)
	if err != nil {
		m.lost(ctx, err)
		return
	}
	m.events = events
}

// close ends the watch.
func (m *Monitor) close(ctx context.Context) {
	if m.events == nil {
		return
	}
	if err := m.events.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not end the watch of the GPUs' events", "reason", err.Error())
	}
	m.events = nil
}

// lost ends a watch that fails. A new one is made at once, without the GPU that is lost; should that fail, too, then after
// some time, as the same error may come at once and for ever. Each GPU is asked, as the error does not say which one it is
// about.
func (m *Monitor) lost(ctx context.Context, err error) {
	m.close(ctx)
	if err.Error() != m.blind {
		m.blind = err.Error()
		klog.FromContext(ctx).Error(err, "No events of GPUs for a while; they are asked now and then", "againIn", m.again)
	}
	m.askAll()
	m.openAt = time.Now().Add(m.again)
	m.again = min(max(firstAgain, 2*m.again), lastAgain)
}

// askAll has all GPUs asked at the next look.
func (m *Monitor) askAll() {
	for _, w := range m.gpus {
		w.due = true
	}
}

// wait takes in what comes within eventWait.
func (m *Monitor) wait(ctx context.Context) {
	if m.events == nil && !time.Now().Before(m.openAt) {
		m.open(ctx)
		m.to.MIGChanged() // nobody knows what was missed
		m.askAll()
	}
	if m.events == nil {
		select {
		case <-ctx.Done():
		case <-time.After(eventWait):
		}
		return
	}
	timeout := eventWait
	for range manyEvents {
		e, happened, err := m.events.Next(timeout)
		if err != nil {
			m.lost(ctx, err)
			return
		}
		if !happened {
			m.again, m.blind = 0, "" // it works
			return
		}
		m.take(ctx, e)
		timeout = 0
	}
}

// take takes in one event.
func (m *Monitor) take(ctx context.Context, e gpu.Event) {
	klog.FromContext(ctx).V(4).Info("A GPU reports", "event", e.String(), "pci", e.PCI)
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
		w.due = true // the driver may know by now what has to be done about it
		if e.PCI == nil {
			continue // whose it is nobody knows
		}
		if e.Kind == gpu.XIDReported {
			m.to.XID(g, e)
		}
		w.Event(e, m.part(ctx, g, e), m.hw.IgnoredXIDs(g), time.Now())
	}
}

// part finds where the GPU instance of an event lies, or nil.
func (m *Monitor) part(ctx context.Context, g *gpu.GPU, e gpu.Event) *gpu.Placement {
	if !PartOnly(e) {
		return nil
	}
	partitions, err := m.hw.Partitions(ctx, g)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell which part of a GPU an event is about", "pci", g.PCI, "event", e.String(), "reason", err.Error())
		return nil
	}
	for _, p := range partitions {
		if p.GI == *e.GI {
			return &p.Placement
		}
	}
	return nil
}

// look asks the GPUs whose time has come, and tells what has changed since it was told last. A GPU that does not answer
// within a while is waited for no longer; what it says is taken in when it comes.
func (m *Monitor) look(ctx context.Context, while time.Duration) {
	node := m.hw.Node()
	m.forget(node)
	m.collect(ctx, m.ask(ctx, node), while)
	told := false
	for i := range node.GPUs {
		g := &node.GPUs[i]
		w := m.of(g.PCI)
		if w.last.IsZero() {
			continue // nothing is known of it yet
		}
		if change, news := w.news(g); news {
			m.to.Changed(change)
			told = true
		}
	}
	if now := time.Now(); told || now.Sub(m.alive) >= aliveEvery {
		m.alive = now
		m.to.Alive()
	}
}

// forget drops GPUs that the node has no more.
func (m *Monitor) forget(node *gpu.Node) {
	maps.DeleteFunc(m.gpus, func(pci gpu.PCIAddress, _ *watched) bool { return node.Find(pci.DeviceName()) == nil })
}

// ask begins to ask the GPUs whose time has come, each in a goroutine of its own, and returns how many.
func (m *Monitor) ask(ctx context.Context, node *gpu.Node) (asked int) {
	m.round++
	for i := range node.GPUs {
		g := &node.GPUs[i]
		w := m.of(g.PCI)
		if w.asking || !w.isDue(time.Now()) {
			continue
		}
		w.asking, w.due = true, false // what events ask for from now on asks again
		asked++
		round := m.round
		m.polls.Go(func() {
			a := answer{g, m.read(ctx, g), round}
			select {
			case m.answers <- a:
			case <-ctx.Done():
			}
		})
	}
	return asked
}

// read asks a GPU.
func (m *Monitor) read(ctx context.Context, g *gpu.GPU) Reading {
	r := Reading{Err: m.hw.VerifyGPU(ctx, g)}
	if r.Err == nil {
		r.Action, r.Err = m.hw.RecoveryAction(ctx, g.PCI)
	}
	if r.Err == nil {
		r.Fabric, r.Err = m.hw.Fabric(ctx, g)
	}
	return r
}

// collect takes in answers until so many of the present round have come, or a while has passed.
func (m *Monitor) collect(ctx context.Context, missing int, while time.Duration) {
	timer := time.NewTimer(while)
	defer timer.Stop()
	for missing > 0 {
		select {
		case a := <-m.answers:
			m.answered(ctx, a)
			if a.round == m.round {
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
		case a := <-m.answers: // of earlier rounds
			m.answered(ctx, a)
		default:
			return
		}
	}
}

// isDue tells whether a GPU has to be asked now.
func (w *watched) isDue(now time.Time) bool {
	since := now.Sub(w.last)
	return w.last.IsZero() || w.due && since >= leastBetween || since >= unwellEvery && !w.Well() || since >= wellEvery
}

// answered takes in what a GPU said.
func (m *Monitor) answered(ctx context.Context, a answer) {
	w := m.gpus[a.gpu.PCI]
	if w == nil || ctx.Err() != nil {
		return // of a GPU that is gone, or cut short
	}
	if a.reading.Err != nil && w.failing.IsZero() {
		klog.FromContext(ctx).Error(a.reading.Err, "A GPU does not answer as it should", "pci", a.gpu.PCI, "uuid", a.gpu.UUID)
	}
	gone := w.gone
	w.Poll(a.reading, m.hw.IgnoredXIDs(a.gpu), time.Now())
	w.last, w.asking = time.Now(), false
	if gone && !w.gone {
		// Whether a set of events outlives a GPU's absence nobody says. The next wait makes a new one.
		m.close(ctx)
		m.openAt = time.Now()
	}
}

// news tells which conditions began and ended since it was asked last.
func (w *watched) news(g *gpu.GPU) (Change, bool) {
	c := Change{GPU: g, Now: w.Conditions()}
	c.Began = without(c.Now, w.told)
	c.Ended = without(w.told, c.Now)
	first := !w.met
	w.told, w.met = c.Now, true
	return c, first || len(c.Began)+len(c.Ended) > 0
}

// without are the conditions of one list that another one lacks.
func without(list, other []Condition) (left []Condition) {
	for _, c := range list {
		if !slices.ContainsFunc(other, c.same) {
			left = append(left, c)
		}
	}
	return left
}
