// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// Hardware is the node's GPUs and their driver.
type Hardware interface {
	// Inventory is the GPUs as the driver reports them.
	Inventory() *gpu.Node
	// MemoryLimits are the GPUs on which the driver can hold a container to an amount of memory. It tries once to install what
	// that takes: after an error, such as of a full disk, it is called again with the next Periodic.
	MemoryLimits(ctx context.Context) (map[gpu.PCIAddress]bool, error)
	// Missing is what of the driver is missing; nil if nothing is.
	Missing() error
	// Offer sets what GPUs offer: claims are prepared by it.
	Offer(node *policy.Node)
	// SyncInventory records a changed inventory and refreshes the CDI spec.
	SyncInventory(ctx context.Context, node *gpu.Node)
	// RefreshLinks schedules a refresh of the NVLinks.
	RereadLinks()
	// Close releases the driver. It can be repeated.
	Close(ctx context.Context)
}

// Claims is what the loop needs of the claims engine.
type Claims interface {
	// Allocations are the records of all driver names and claims without one, Records those of this name.
	Allocations() []*records.Record
	Records() []*records.Record
	// Listing is when the last listing of the API server's claims began that has succeeded, and when one failed last. List has them
	// listed again, alongside the loop, unless that was begun after a time already; it marks the loop.
	Listing() (began, failed time.Time)
	List(after time.Time)
	// Unfinished reports whether Recover has something to finish.
	Unfinished() bool
	// Unclaimed are the complete partitions of a GPU that were created for no claim.
	Unclaimed(g *gpu.GPU) []gpu.Place
	// Layout are the places in which the layout of a GPU was offered last.
	Layout(g *gpu.GPU) []gpu.Place
	// Occupied and Existing are as in Observed.
	Occupied() []string
	Existing() []Existing

	// Scan looks for partitions that were created for no claim.
	Scan(ctx context.Context)
	Recover(ctx context.Context)
	LeaveMIGMode(ctx context.Context)
	ApplyLayouts(ctx context.Context) []LayoutProblem
	// ChangeMode begins the change of a GPU's MIG mode, or finishes an earlier one; the function that is returned does it, which
	// takes seconds. ModesLeft are as in Observed.
	ChangeMode(order ModeOrder) (run func(ctx context.Context) error)
	ModesLeft() map[string]bool
	// Reconcile compares the records with the API server, for which it waits.
	Reconcile(ctx context.Context)

	// SetWaiting fails claims with the reason why the hardware cannot be used, Quiesce waits for those that still use it, and
	// EndSession ends the driver's session on record.
	SetWaiting(why error)
	Quiesce()
	EndSession(ctx context.Context) error
}

// Publisher brings slices to the API server. Want does not wait; Arrived reports whether what was wanted last is there.
type Publisher interface {
	Want(wanted []nodeslices.Slice)
	Arrived() bool
}

// Events writes Events about the node. No method waits.
type Events interface {
	Warn(reason, message string)
	Note(reason, message string)
}

// Reporter has what metrics and readiness report.
type Reporter interface {
	Report(status Status)
	// Driver is why the driver cannot be used; nil once it can.
	Driver(err error)
}

// Sources are where the loop reads what else it observes. All but MPS answer from memory or from local files.
type Sources struct {
	Cluster    func() cluster.State
	Names      func() []DriverName
	Conditions func() map[gpu.PCIAddress][]health.Condition
	Incomplete func() map[string]error
	Lists      func() bool
	Counted    func() cluster.Counted
	// WriteFailed is as in Observed.
	WriteFailed func() time.Time
	Policies    func() (*policy.Set, error)
	// MPS asks the supervisor on its socket.
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
	// KeepPolicy makes the active policy durable.
	KeepPolicy func(p *Policy) error
	// Removed is called for each GPU that was removed.
	Removed func(pci gpu.PCIAddress)
	// Released notes durably whether the driver is released by the node's label.
	Released func(ctx context.Context, released bool)

	Compatible bool
	// Active is the policy that was active when the plugin ended; nil for none. Before is as in Observed.
	Active *Policy
	Before []string

	// ReconcileEvery is the time between two comparisons of the records with the API server, DriverRetry that between two
	// attempts to release or reach the driver.
	ReconcileEvery, DriverRetry time.Duration
}

// pollEvery is the time between two looks at what sends no events: the MPS supervisor and the NVIDIA driver.
const pollEvery = 2 * time.Second

// reconcileSoon is the time from the first comparison with the API server to the second: a plugin that ends in a rolling update has
// ended by then.
const reconcileSoon = time.Minute

// Loop keeps a node as Desired wants it. Mark may be called by anybody, all else by one goroutine.
type Loop struct {
	Options
	marks marks
	wake  chan struct{}

	observed Observed
	// lookAgain is when to make a plan though nothing changes; poll and periodic are when to observe what sends no events.
	lookAgain, poll, periodic time.Time
	// keepErr is why the active policy could not be kept, as logged.
	keepErr string
	// limitsFailed: the memory limits of GPUs could not be observed.
	limitsFailed bool
	// modes runs the change of a GPU's MIG mode.
	modes modeRunner
	work  workRunner
}

// New makes a loop that observes nothing yet. Options may be set until Begin.
func New() *Loop { return &Loop{wake: make(chan struct{}, 1)} }

// Mark has aspects observed anew. It does not wait.
func (l *Loop) Mark(a Aspect) {
	l.marks.mark(a, time.Now())
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Begin observes the node and decides what its GPUs offer. Nothing is published and no hardware is changed before Run.
func (l *Loop) Begin(ctx context.Context) {
	l.observed = Observed{Compatible: l.Compatible, Before: l.Before, Memory: Memory{Active: l.Active}}
	_ = l.step(ctx, Inventory|Supervisor|Policies)
}

// Run keeps the node as Desired wants it until ctx ends, or until the driver is to be released, which it returns the reason
// for. Claims can be prepared when it is called.
func (l *Loop) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.work.running.Wait()
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

// reconcile compares the records with the API server now, soon, for what a plugin that this one replaces has prepared meanwhile, and
// every so often, alongside the loop. What it changes marks itself.
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

// await waits until something is due and brings the node in line. It returns why the driver is to be released; nil if it is
// not.
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
		if l.limitsFailed {
			due |= Inventory
		}
	}
	if m := &l.observed.Memory; len(m.Modes) == 0 && m.Withdrawal.Planned.IsZero() && m.Hiding.Planned.IsZero() {
		due &^= Publication // nothing waits for it
	}
	if due == 0 && (l.lookAgain.IsZero() || now.Before(l.lookAgain)) {
		return nil
	}
	return l.step(ctx, due)
}

// pollSources looks at what sends no events, and returns the aspects that have changed.
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

// step observes the node, makes a plan and applies it, again where that changes what was observed. It returns why the driver is
// to be released; nil if it is not.
func (l *Loop) step(ctx context.Context, changed Aspect) error {
	// Before the first recovery nobody knows what lies on the GPUs: nothing can be published without it.
	l.work.until = time.Time{}
	if !l.observed.Memory.Recovered.IsZero() {
		l.work.until = time.Now().Add(workTime)
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
		limits, err := l.Hardware.MemoryLimits(ctx)
		if l.limitsFailed = err != nil; l.limitsFailed {
			klog.FromContext(ctx).Error(err, "Memory of time slices on added GPUs is not limited", "retryAfter", l.ReconcileEvery)
		} else {
			o.MemoryLimits = limits
		}
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
		l.do(ctx, scanWork)
	}
}

// snapshot reads what is kept in memory.
func (l *Loop) snapshot(changed Aspect, pass int) {
	o := &l.observed
	o.Now, o.Changed, o.Pass = time.Now(), changed, pass
	// Before the inventory: a change that has ended shows there.
	o.ModeRunning, o.ModeFailures = l.modes.state()
	o.Working, o.LayoutProblems = l.work.state()
	o.ModesLeft = l.Claims.ModesLeft()
	o.WriteFailed, o.Arrived = l.Sources.WriteFailed(), o.Ready && l.Publisher.Arrived()
	o.Listed, o.ListFailed = l.Claims.Listing() // before the allocations, which are by it
	o.Unlisted = o.Listed.IsZero()
	// Other driver names first: what is allocated under them is among the allocations before they no longer hold.
	o.Cluster, o.Names = l.Sources.Cluster(), l.Sources.Names()
	o.Counted = l.Sources.Counted()
	o.Inventory, o.Lists = l.Hardware.Inventory(), l.Sources.Lists()
	o.Allocations, o.Records, o.Unfinished = l.Claims.Allocations(), l.Claims.Records(), l.Claims.Unfinished()
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

// apply does what a plan says.
func (l *Loop) apply(ctx context.Context, p Plan) {
	for _, r := range p.Reports {
		l.report(ctx, r)
	}
	l.Reporter.Report(p.Status)
	if p.Keep != nil {
		l.keep(ctx, p.Keep)
	}
	l.Hardware.Offer(p.Offer)
	if p.NewInventory {
		for _, pci := range p.Removed {
			l.Removed(pci)
		}
		l.Hardware.SyncInventory(ctx, l.observed.Inventory)
	}
	if p.Slices != nil {
		klog.FromContext(ctx).V(4).Info("Publishing ResourceSlices", "slices", len(p.Slices), "order", p.Memory.Published.Order)
		l.Publisher.Want(p.Slices)
	}
	l.do(ctx, workOf(&p))
	if p.Mode != nil {
		l.modes.start(ctx, *p.Mode, l.Claims.ChangeMode(*p.Mode), func() { l.Mark(Inventory) })
	}
	if !p.List.IsZero() {
		l.Claims.List(p.List)
	}
	l.lookAgain, l.observed.Memory = p.LookAgain, p.Memory
}
