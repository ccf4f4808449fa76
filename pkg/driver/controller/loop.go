// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// Hardware is the node's GPUs and their driver.
type Hardware interface {
	// Inventory is the GPUs as the driver reports them.
	Inventory() *gpu.Node
	// MemoryLimits is on which GPUs the driver can hold a container to an amount of memory; those that did not answer are missing. It tries
	// once to install the prerequisites, without which it is on none. After an error, such as a full disk, the next Periodic calls it again,
	// after gpu.ErrHangs it is called sooner.
	MemoryLimits(ctx context.Context, node *gpu.Node) (map[gpu.PCIAddress]bool, error)
	// Missing returns the missing parts of the driver; nil if it is complete.
	Missing() error
	// Offer sets the devices that GPUs offer, which Prepare goes by.
	Offer(node *policy.Node)
	// SyncInventory records a changed inventory and refreshes the CDI spec.
	SyncInventory(ctx context.Context, node *gpu.Node)
	// RereadLinks schedules a refresh of the NVLinks.
	RereadLinks()
	// Close releases the driver. It is idempotent.
	Close(ctx context.Context)
}

// Claims is the part of the claims engine that the loop needs.
type Claims interface {
	// Allocations are the records of all driver names and claims without one, Records those of this name.
	Allocations() []*records.Record
	Records() []*records.Record
	// Listing returns the start of the last successful listing of the API server's claims, and the time of the last failure. List
	// lists them again concurrently, unless a listing began after the given time; it marks the loop.
	Listing() (began, failed time.Time)
	List(after time.Time)
	// Unfinished reports whether Recover has work left.
	Unfinished() bool
	// Unclaimed returns the complete partitions of a GPU that no claim owns.
	Unclaimed(g *gpu.GPU) []gpu.Place
	// Layout returns the places at which the layout of a GPU was last offered.
	Layout(g *gpu.GPU) []gpu.Place
	// Occupied and Existing are as in Observed.
	Occupied() []string
	Existing() []Existing

	// Scan looks for unclaimed partitions.
	Scan(ctx context.Context)
	Recover(ctx context.Context)
	LeaveMIGMode(ctx context.Context)
	// ApplyLayouts partitions the GPUs that still offer what they do on a node.
	ApplyLayouts(ctx context.Context, offered *policy.Node) []LayoutProblem
	// ChangeMode starts to change a GPU's MIG mode, to reset it, or to finish an earlier change; the returned function does so, and
	// takes seconds. ModesLeft and ResetDone are as in Observed; ForgetReset forgets the last reset.
	ChangeMode(order ModeOrder) (run func(ctx context.Context) error)
	ModesLeft() map[string]bool
	ResetDone() string
	ForgetReset(ctx context.Context)
	// Reconcile compares the records with the API server, and waits for its answers.
	Reconcile(ctx context.Context)

	// SetWaiting makes claims fail with the reason why the hardware is unavailable, Quiesce waits for those in progress, and
	// EndSession ends the recorded driver session.
	SetWaiting(why error)
	Quiesce()
	EndSession(ctx context.Context) error
}

// Publisher writes slices to the API server. Want does not wait; Arrived reports whether the last wanted slices are there.
type Publisher interface {
	Want(wanted []nodeslices.Slice)
	Arrived() bool
}

// Events writes Events about the node. Methods do not block.
type Events interface {
	Warn(reason, message string)
	Note(reason, message string)
}

// Reporter feeds metrics and readiness.
type Reporter interface {
	Report(status Status)
	// Driver sets the reason why the driver is unusable; nil once it is usable.
	Driver(err error)
}

// Sources provide the other observations. All but MPS answer from memory or from local files.
type Sources struct {
	Cluster    func() cluster.State
	Names      func() []DriverName
	Conditions func() map[gpu.PCIAddress][]health.Condition
	Incomplete func() map[string]error
	Lists      func() bool
	Counted    func() counting.Counted
	// Notices are those about the node's machine that stand; nil for none ever.
	Notices func() []notices.Standing
	// WriteFailed is as in Observed.
	WriteFailed func() time.Time
	Policies    func() (*policy.Set, error)
	// MPS queries the supervisor on its socket.
	MPS func(ctx context.Context) error
}

// Options of a Loop.
type Options struct {
	Hardware  Hardware
	Claims    Claims
	Sources   Sources
	Publisher Publisher
	Events    Events
	Reporter  Reporter
	// KeepPolicy persists the active policy.
	KeepPolicy func(p *Policy) error
	// Removed is called for each GPU that was removed.
	Removed func(pci gpu.PCIAddress)
	// Pause stops clients of the GPUs by labels of the Node, and has all others start again; nil if the plugin may not. It does not block.
	Pause func(labels []string)
	// Released persists whether the node's label releases the driver.
	Released func(ctx context.Context, released bool)

	Compatible bool
	// NoticePolicy is the reaction to notices.
	NoticePolicy notices.Policy
	// Active is the policy that was active when the plugin last exited; nil for none. Before is as in Observed.
	Active *Policy
	Before []string

	// ReconcileEvery is the interval of comparisons of the records with the API server, DriverRetry that of attempts to release or
	// reach the driver.
	ReconcileEvery, DriverRetry time.Duration
}

// pollEvery is the poll interval of sources without events: the MPS supervisor and the NVIDIA driver.
const pollEvery = 2 * time.Second

// reconcileSoon is the time from the first comparison with the API server to the second: in a rolling update, the old plugin has
// exited by then.
const reconcileSoon = time.Minute

// Loop keeps a node in the state that Desired computes. Mark is safe for concurrent use; all else is for one goroutine.
type Loop struct {
	Options
	marks marks
	wake  chan struct{}

	observed Observed
	// lookAgain is when to plan even though nothing changes; poll and periodic are when to observe sources without events.
	lookAgain, poll, periodic time.Time
	// until is the deadline of the current step's waits for work; zero for no bound.
	until time.Time
	// modes runs the change of a GPU's MIG mode, work the tasks that take locks of GPUs, and unlocked all others, which do not wait for
	// these locks.
	modes          modeRunner
	work, unlocked workRunner
}

// New returns a loop that observes nothing yet. Options may be set until Begin.
func New() *Loop { return &Loop{wake: make(chan struct{}, 1)} }

// Mark marks aspects stale. It does not block.
func (l *Loop) Mark(a Aspect) {
	l.marks.mark(a, time.Now())
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Begin observes the node and decides what its GPUs offer. It publishes nothing and changes no hardware: Run does.
func (l *Loop) Begin(ctx context.Context) {
	l.observed = Observed{Compatible: l.Compatible, NoticePolicy: l.NoticePolicy, Before: l.Before, Memory: Memory{Active: l.Active}}
	l.unlocked.kept = l.Active
	_ = l.step(ctx, Inventory|Supervisor|Policies)
	l.unlocked.running.Wait() // if ctx has ended, before the driver is
}

// Run keeps the node in the state that Desired computes until ctx ends, or until the driver must be released: then it returns the
// reason. Claims can be prepared when it is called.
func (l *Loop) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.work.running.Wait()
	defer l.unlocked.running.Wait()
	defer l.modes.running.Wait()
	defer stop()
	l.observed.Ready = true
	l.poll, l.periodic = time.Now().Add(pollEvery), time.Now().Add(l.ReconcileEvery)
	if why := l.step(ctx, l.marks.take(time.Now())|Driver); why != nil {
		return why
	}
	wg.Go(func() { l.reconcile(ctx) })
	for {
		if why := l.await(ctx); why != nil || ctx.Err() != nil {
			return why
		}
	}
}

// reconcile compares the records with the API server concurrently: now, soon (for claims that the replaced plugin prepared
// meanwhile), and at intervals. Its changes mark the aspects.
func (l *Loop) reconcile(ctx context.Context) {
	timer := time.NewTimer(min(l.ReconcileEvery, reconcileSoon))
	defer timer.Stop()
	for {
		l.Claims.Reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(l.ReconcileEvery)
		}
	}
}

// await waits until something is due and brings the node in line. It returns the reason to release the driver; nil for none.
func (l *Loop) await(ctx context.Context) error {
	timer := time.NewTimer(time.Until(earliest(l.marks.next(), l.lookAgain, l.poll, l.periodic)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-l.wake:
	case <-timer.C:
	}
	now := time.Now()
	due := l.marks.take(now)
	if !now.Before(l.poll) {
		l.poll = now.Add(pollEvery)
		due |= l.pollSources(ctx)
	}
	if !now.Before(l.periodic) {
		l.periodic = now.Add(l.ReconcileEvery)
		due |= Periodic
		if l.unlocked.limitsFailed() {
			due |= Inventory
		}
	}
	if l.unlocked.askAgain(now, due.Has(Health)) {
		due |= Inventory
	}
	if m := &l.observed.Memory; len(m.Modes) == 0 && m.Withdrawal.Planned.IsZero() && m.Hiding.Planned.IsZero() {
		due &^= Publication // nothing waits for it
	}
	if due == 0 && (l.lookAgain.IsZero() || now.Before(l.lookAgain)) {
		return nil
	}
	return l.step(ctx, due)
}

// pollSources polls sources without events, and returns the aspects that have changed.
func (l *Loop) pollSources(ctx context.Context) (changed Aspect) {
	mps, driver := l.Sources.MPS(ctx), l.Hardware.Missing()
	if text(mps) != text(l.observed.MPS) {
		changed |= Supervisor
	}
	if text(driver) != text(l.observed.Driver) {
		changed |= Driver
	}
	l.observed.MPS, l.observed.Driver = mps, driver
	return changed
}

// step observes the node, plans, and applies the plan, repeatedly if that changes the observations. It returns the reason to
// release the driver; nil for none.
func (l *Loop) step(ctx context.Context, changed Aspect) error {
	// Before the first recovery the partitions of the GPUs are unknown: nothing can be published without it.
	l.until = time.Time{}
	if !l.observed.Memory.Recovered.IsZero() {
		l.until = time.Now().Add(workTime)
	}
	l.observe(ctx, changed)
	for pass := 0; ; pass++ {
		l.snapshot(changed, pass)
		plan := Desired(l.observed)
		l.apply(ctx, plan)
		if plan.Release != nil || !plan.ObserveAgain || ctx.Err() != nil {
			return plan.Release
		}
		changed = 0
	}
}

// observe refreshes aspects that require I/O.
func (l *Loop) observe(ctx context.Context, changed Aspect) {
	o := &l.observed
	if changed.Has(Inventory) {
		l.do(ctx, &l.unlocked, inventoryWork)
	}
	if changed.Has(Supervisor) {
		o.MPS = l.Sources.MPS(ctx)
	}
	if changed.Has(Driver) {
		o.Driver = l.Hardware.Missing()
	}
	if changed.Has(Policies | Cluster | Periodic) {
		o.Policies, o.PolicyErr = l.Sources.Policies()
	}
	if changed.Has(Cluster) {
		o.Driver = l.Hardware.Missing()
	}
	if changed.Has(Partitions | Periodic) {
		l.Hardware.RereadLinks() // partitions take a GPU's links down
	}
	if changed.Has(Partitions) && o.Ready {
		l.do(ctx, &l.work, scanWork)
	}
}

// snapshot reads the state kept in memory.
func (l *Loop) snapshot(changed Aspect, pass int) {
	o := &l.observed
	o.Now, o.Changed, o.Pass = time.Now(), changed, pass
	// Before the inventory: a change that has ended shows there.
	o.ModeRunning, o.ModeFailures = l.modes.state()
	o.Working, o.Recovered, o.LayoutProblems = l.work.state()
	o.ModesLeft, o.ResetDone = l.Claims.ModesLeft(), l.Claims.ResetDone()
	o.WriteFailed, o.Arrived = l.Sources.WriteFailed(), o.Ready && l.Publisher.Arrived()
	o.Listed, o.ListFailed = l.Claims.Listing() // before the allocations, which depend on it
	o.Unlisted = o.Listed.IsZero()
	// Other driver names first: their allocations must be among Allocations before these names cease to hold.
	o.Cluster, o.Names = l.Sources.Cluster(), l.Sources.Names()
	o.Counted = l.Sources.Counted()
	if l.Sources.Notices != nil {
		o.Notices = l.Sources.Notices()
	}
	inventory := l.Hardware.Inventory()
	o.Lists = l.Sources.Lists()
	o.Allocations, o.Records, o.Unfinished = l.Claims.Allocations(), l.Claims.Records(), l.Claims.Unfinished()
	o.Inventory, o.MemoryLimits = l.unlocked.known(inventory, o.Allocations)
	o.Occupied, o.Existing = l.Claims.Occupied(), l.Claims.Existing()
	o.Unclaimed, o.Layouts = map[gpu.PCIAddress][]gpu.Place{}, map[gpu.PCIAddress][]gpu.Place{}
	for i := range o.Inventory.GPUs {
		g := &o.Inventory.GPUs[i]
		if places := l.Claims.Unclaimed(g); len(places) > 0 {
			o.Unclaimed[g.PCI] = places
		}
		if places := l.Claims.Layout(g); len(places) > 0 {
			o.Layouts[g.PCI] = places
		}
	}
	o.Conditions, o.Incomplete = l.Sources.Conditions(), l.Sources.Incomplete()
}

func (l *Loop) apply(ctx context.Context, p Plan) {
	for _, r := range p.Reports {
		l.report(ctx, r)
	}
	l.Reporter.Report(p.Status)
	if p.Keep != nil {
		l.do(ctx, &l.unlocked, l.unlocked.keep(p.Keep))
	}
	l.Hardware.Offer(p.Offer)
	for _, pci := range p.Removed {
		l.Removed(pci)
	}
	if p.Slices != nil {
		klog.FromContext(ctx).V(4).Info("Publishing ResourceSlices", "slices", len(p.Slices), "order", p.Memory.Published.Order)
		l.Publisher.Want(p.Slices)
	}
	l.do(ctx, &l.work, l.work.planned(&p))
	if l.Pause != nil && l.observed.Ready {
		l.Pause(p.Pause)
	}
	if p.Mode != nil {
		l.modes.start(ctx, *p.Mode, l.Claims.ChangeMode(*p.Mode), func() { l.Mark(Inventory) })
	}
	if !p.List.IsZero() {
		l.Claims.List(p.List)
	}
	l.lookAgain, l.observed.Memory = p.LookAgain, p.Memory
}
