// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/mps"
)

// board is what the supervisor has of one GPU.
type board struct {
	s      *Supervisor
	device string
	paths  paths
	turn   chan struct{} // has a value while the board is locked

	// What follows is read and written by who holds the lock.

	record  *record // nil if nothing of MPS is on the GPU
	process Process // of the daemon that runs; nil while none does
	started time.Time
	// restarts that came one after the other, see restart.go.
	restarts   int
	restarting bool // a goroutine is at it
	failed     bool
	message    string // why the state is what it is

	// view is what Status shows. It can be read without the lock, which is held for as long as a start takes.
	view atomic.Pointer[mps.GPUStatus]
}

// lock waits for the board until ctx ends.
func (b *board) lock(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s, whose MPS daemon is being started or stopped: %w", b.device, ctx.Err())
	}
}

func (b *board) unlock() { <-b.turn }

// daemon is what the daemon of the board is told apart by.
func (b *board) daemon() Daemon {
	return Daemon{GPU: b.device, UUID: b.record.UUID, paths: b.paths}
}

// runs tells whether a daemon runs and is ready.
func (b *board) runs() bool {
	if b.process == nil || b.record == nil || b.record.Phase != running {
		return false
	}
	select {
	case <-b.process.Done():
		return false
	default:
		return true
	}
}

func (b *board) endpoint() mps.Endpoint {
	return mps.Endpoint{PipeDir: b.paths.clients, LogDir: b.paths.log, ShmDir: b.paths.shm, Generation: b.record.Generation}
}

// ensure registers a claim and sees to it that a daemon runs.
func (b *board) ensure(ctx context.Context, r mps.Request) (mps.Endpoint, error) {
	if b.record != nil && len(b.record.Claims) > 0 {
		if b.record.UUID != r.UUID {
			return mps.Endpoint{}, fmt.Errorf("%w: %s is shared as %s by %d claims and cannot be as %s: was the GPU replaced? It is free when those claims are gone",
				errConflict, b.device, b.record.UUID, len(b.record.Claims), r.UUID)
		}
		if len(b.record.Claims) >= maxClaims && !b.record.has(r.Claim) {
			return mps.Endpoint{}, fmt.Errorf("%w: %s has %d claims, the most there can be", errConflict, b.device, len(b.record.Claims))
		}
	}
	if !b.runs() {
		return b.startFor(ctx, r)
	}
	if b.record.has(r.Claim) && (r.Owner == "" || b.record.Owners[r.Claim] == r.Owner) {
		return b.endpoint(), nil
	}
	claims, owners := b.record.Claims, b.record.Owners
	b.record.add(r.Claim, r.Owner)
	if err := b.save(); err != nil {
		b.record.Claims, b.record.Owners = claims, owners
		return mps.Endpoint{}, err
	}
	klog.FromContext(ctx).V(2).Info("A claim uses MPS", "gpu", b.device, "claim", r.Claim, "claims", len(b.record.Claims))
	return b.endpoint(), nil
}

// startFor starts a daemon for a claim, and for those that are there already.
func (b *board) startFor(ctx context.Context, r mps.Request) (mps.Endpoint, error) {
	if b.process != nil {
		b.noteLoss(ctx, "it ended: "+b.process.How()) // before watch came to it
	}
	first := b.record == nil || len(b.record.Claims) == 0
	if first {
		b.renew(r)
	}
	known := b.record.has(r.Claim)
	b.record.add(r.Claim, r.Owner)
	err := b.start(ctx)
	if err == nil {
		b.restarts = 0
		return b.endpoint(), nil
	}
	err = fmt.Errorf("start the MPS control daemon of %s: %w", b.device, err)
	if first {
		if undo := b.dismantle(ctx); undo != nil {
			err = fmt.Errorf("%w; undo what was begun: %w", err, undo)
		}
		return mps.Endpoint{}, err
	}
	if !known {
		b.record.keep(func(c types.UID) bool { return c != r.Claim })
	}
	b.message = err.Error()
	if saved := b.save(); saved != nil {
		err = fmt.Errorf("%w; %w", err, saved)
	}
	b.restartLater(ctx)
	return mps.Endpoint{}, err
}

// renew begins a record for the first claim, but keeps what the one before could not undo.
func (b *board) renew(r mps.Request) {
	next := &record{
		Version: recordVersion, Boot: b.s.boot, Device: b.device, PCI: r.PCI.String(), UUID: r.UUID,
		Phase: starting, Settings: r.Settings, Layout: ownMounts,
	}
	if last := b.record; last != nil {
		next.Generation, next.Daemon = last.Generation, last.Daemon
		if last.UUID == r.UUID || last.UUID == "" {
			next.PreviousMode = last.PreviousMode // of another GPU it means nothing
		}
	}
	b.record = next
	b.restarts, b.failed, b.message = 0, false, ""
}

// keep drops claims, and all there is after the last one.
func (b *board) keep(ctx context.Context, test func(types.UID) bool) error {
	claims, lost, owners := b.record.Claims, b.record.Lost, b.record.Owners
	b.record.keep(test)
	if len(b.record.Claims) == 0 {
		return b.dismantle(ctx)
	}
	if len(claims) == len(b.record.Claims) {
		return nil
	}
	if err := b.save(); err != nil {
		b.record.Claims, b.record.Lost, b.record.Owners = claims, lost, owners
		return err
	}
	klog.FromContext(ctx).V(2).Info("Claims use MPS no more", "gpu", b.device, "before", len(claims), "claims", len(b.record.Claims))
	return nil
}

// save writes the record to disk.
func (b *board) save() error {
	b.show()
	data, err := json.Marshal(b.record)
	if err == nil {
		err = b.s.on.Files.Write(b.paths.record, data)
	}
	if err != nil {
		return fmt.Errorf("record what %s is to have: %w", b.device, err)
	}
	return nil
}

// show renews what Status tells.
func (b *board) show() {
	r := b.record
	if r == nil {
		b.view.Store(nil)
		return
	}
	view := &mps.GPUStatus{
		Device: b.device, UUID: r.UUID, Generation: r.Generation, Claims: slices.Clone(r.Claims), Owners: maps.Clone(r.Owners), Message: b.message,
		State: map[phase]mps.State{starting: mps.Starting, running: mps.Running, stopping: mps.Stopping}[r.Phase],
	}
	if b.failed && r.Phase == starting {
		view.State = mps.Failed
	}
	if r.Daemon != nil && r.Phase == running {
		view.PID = r.Daemon.PID
	}
	b.view.Store(view)
}
