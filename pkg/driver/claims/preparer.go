// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Options of a Preparer. Nil or empty options are not used.
type Options struct {
	Identity
	// BootID is the content of /proc/sys/kernel/random/boot_id.
	BootID string
	Store  *records.Store
	Locks  *Locks
	// Specs removes the CDI specs of the claims of a driver name.
	Specs func(driver string) SpecRemover
	// Metadata restores the device metadata of claims; nil to leave it to the kubelet's plugin helper alone.
	Metadata Metadata
	// Layouts stores the layouts; nil if GPUs are not partitioned ahead of claims.
	Layouts *records.LayoutStore
	// Modes changes the MIG mode of GPUs that need a reset for it, and resets on request; nil to do neither.
	Modes *ModeOptions
	// Sharing sets up GPU sharing; nil if GPUs are not shared.
	Sharing Sharing
	// Sessions limits ownership to partitions created in the driver's current session. Without it, only the boot
	// counts.
	Sessions DriverSessions
	// Processes of the host. Without it, a claim that is gone from the API server is released once the driver lists
	// no process on its GPUs.
	Processes Processes
	// Holders finds other processes that have GPUs open, for messages and before a GPU is reset; nil for none.
	Holders FindHolders
	// API makes Prepare wait, for a limited time, for devices of claims that the API server no longer has or has deallocated. Without it
	// Prepare refuses them.
	API API
	// OnChange is called, and must not block, when an action of Cleave may have changed the result of Occupied.
	OnChange func()
	// OnAllocate is called, and must not block or call the Preparer, when allocations may have changed.
	OnAllocate func()
	// OnRelease is called, and must not block, after each attempt of Recover and Reconcile to release a claim that has
	// ended.
	OnRelease func(claim records.Claim, err error)
	// OnSpecRestored is called, and must not block, after Recover has rewritten the CDI spec or device metadata of a prepared claim.
	OnSpecRestored func(ctx context.Context, claim records.Claim)
}

// Preparer prepares and unprepares the claims of a node. All methods are safe for concurrent use.
type Preparer struct {
	Ledger *Ledger
	*gate
	Partitions *Partitions
	Shares     *Shares
	Modes      *Modes
	specs      func(driver string) SpecRemover
	metadata   Metadata  // nil to leave it alone
	processes  Processes // nil to rely on the driver's list of processes alone
	api        API       // nil not to ask which claims are leaving
	onRelease  func(records.Claim, error)

	onSpecRestored func(context.Context, records.Claim)
}

// New makes a Preparer without hardware: it can unprepare, but refuses to prepare until SetHardware.
func New(o Options) *Preparer {
	l := &Ledger{
		id: o.Identity, Names: &Names{id: o.Identity}, bootID: o.BootID, store: o.Store, locks: o.Locks, index: newIndex(),
		sessions: sessions{o.Sessions}, changed: orNothing(o.OnChange),
	}
	l.layouts.store = o.Layouts
	l.allocated = &allocations{index: newIndex(), records: l.index}
	l.index.changed, l.index.named = orNothing(o.OnAllocate), l.Names.Add
	l.allocated.changed = l.index.changed
	g := newGate(o.Driver, o.Holders)
	p := &Preparer{
		Ledger: l, gate: g, Partitions: &Partitions{ledger: l, gate: g}, Shares: &Shares{ledger: l, sharing: o.Sharing},
		specs: o.Specs, metadata: o.Metadata, processes: o.Processes, api: o.API, onRelease: o.OnRelease, onSpecRestored: o.OnSpecRestored,
	}
	l.allocated.outlasts = func(r *records.Record) bool { return r.Driver != o.Driver || p.backend.Load().isWithdrawn(r) }
	p.Modes = &Modes{ModeOptions: o.Modes, ledger: l, gate: g, partitions: p.Partitions}
	if o.Modes != nil {
		p.Modes.Resets.file = o.Modes.Last
	}
	if p.onSpecRestored == nil {
		p.onSpecRestored = func(context.Context, records.Claim) {}
	}
	if p.onRelease == nil {
		p.onRelease = func(records.Claim, error) {}
	}
	return p
}

func orNothing(f func()) func() {
	if f == nil {
		return func() {}
	}
	return f
}

// Prepare prepares a claim's devices and returns them; none if the claim has no device of this driver. It can be
// repeated: a prepared claim gets the same answer, after the same checks. It waits for other claims that are
// about to release the devices it needs.
func (p Named) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	if p.api != nil {
		p.awaitStart(ctx)
	}
	devices, err := p.attempt(ctx, claim, terms{counted: p.api == nil})
	if p.api != nil && errors.As(err, new(*blockedError)) {
		return p.prepareAfter(ctx, claim, err)
	}
	return devices, err
}

// attempt tries once to prepare the claim, without waiting.
func (p Named) attempt(ctx context.Context, claim *resourceapi.ResourceClaim, on terms) ([]records.Device, error) {
	p.calls.RLock()
	defer p.calls.RUnlock()
	return p.prepare(ctx, claim, on)
}

// terms are the conditions under which a claim is prepared.
type terms struct {
	// adopt lets a claim whose record was lost take over an unrecorded partition that lies exactly in the place of
	// its own.
	adopt bool
	// counted: the scheduler counted the claim's shares together with all that are on record, by whatever policy.
	counted bool
}

// preparation is one attempt to prepare a claim: plan, admit, record, change, inject.
type preparation struct {
	Named
	*backend
	// cdi writes the specs of the driver name.
	cdi     CDI
	claim   *resourceapi.ResourceClaim
	devices []device
	terms
	// view holds the allocations on the claim's GPUs at the time they were locked.
	view view
	// creates: a failed preparation must be undone; intent: the hardware is changed, so the record is written first.
	creates, intent bool
	// deadline of the wait for clients of GPUs.
	deadline time.Time
}

// usable refuses devices of GPUs whose MIG mode is being changed, or has changed.
func usable(b *backend, devices []device) error {
	for i := range devices {
		if err := b.hardware.Usable(devices[i].shape.GPU); err != nil {
			why := ErrNoDriver
			if errors.Is(err, gpu.ErrModeChanged) {
				why = ErrInvalid
			}
			return &refusal{fmt.Errorf("request %q: %w", devices[i].request, err), why}
		}
	}
	return nil
}

// prepare implements Prepare without waiting.
func (p Named) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, on terms) ([]records.Device, error) {
	b := p.backend.Load()
	if b.hardware == nil {
		return nil, &refusal{fmt.Errorf("the node's GPUs cannot be used yet: %w", b.reason), ErrNoDriver}
	}
	devices, err := plan(claim, b.hardware.Node(), p.id)
	if err != nil {
		p.Ledger.noteUnoffered(claim, b.hardware.Node())
		return nil, explainMissing(&refusal{err, ErrInvalid}, claim, b, p.id)
	}
	if len(devices) == 0 {
		return nil, nil
	}
	cdi, err := b.cdi.of(p.id.Driver)
	if err != nil {
		return nil, &refusal{err, ErrNoDriver}
	}
	if err := usable(b, devices); err != nil {
		return nil, err
	}
	gpus := gpuNames(devices)
	held, err := p.Ledger.lockFor(ctx, claim.UID, gpus)
	if err != nil {
		return nil, err
	}
	defer held.Release()
	a := &preparation{
		Named: p, backend: b, cdi: cdi, claim: claim, devices: devices, terms: on, view: p.Ledger.look(claim.UID, p.id.Driver, gpus),
	}
	if have, err := a.admit(ctx); have != nil || err != nil {
		return have, err
	}
	if err := a.record(); err != nil {
		return nil, err
	}
	if err := a.change(ctx); err != nil {
		return nil, a.undo(ctx, err)
	}
	done, err := a.inject(ctx)
	if err != nil {
		return nil, a.undo(ctx, err)
	}
	p.Ledger.corrupt.drop(claim.UID)
	return done, nil
}
