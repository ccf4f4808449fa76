// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// gpuState is the supervisor's state of one GPU or partition.
type gpuState struct {
	s      *Supervisor
	device string
	turn   chan struct{} // has a value while the state is locked

	// The lock guards the fields below.

	record  *record // nil if the GPU has no MPS
	daemon  daemon
	started time.Time
	// restarts in a row, see restart.go.
	restarts int
	// endRestart is closed to end the goroutine that restarts the daemon; nil if none does.
	endRestart chan struct{}
	failed     bool
	message    string // reason for the state
	// waits is since when the compute mode cannot be restored because the GPU is in MIG mode; zero if it can.
	waits time.Time

	// view is the state for Status. It can be read without the lock, which is held during a start.
	view atomic.Pointer[mps.GPUStatus]
}

// lock waits for the GPU until ctx ends.
func (g *gpuState) lock(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s, whose MPS daemon is being started or stopped: %w", g.device, ctx.Err())
	}
}

func (g *gpuState) unlock() { <-g.turn }

// runs reports whether a daemon runs and is ready.
func (g *gpuState) runs() bool {
	return g.record != nil && g.record.Phase == running && g.daemon.alive()
}

func (g *gpuState) endpoint() mps.Endpoint {
	p := g.daemon.paths
	return mps.Endpoint{PipeDir: p.clients, LogDir: p.log, ShmDir: p.shm}
}

// ensure registers a claim and makes sure that a daemon runs.
func (g *gpuState) ensure(ctx context.Context, r mps.Request) (mps.Endpoint, error) {
	if g.record != nil && len(g.record.Claims) > 0 {
		if g.record.UUID != r.UUID {
			return mps.Endpoint{}, fmt.Errorf("%w: %s is shared as %s by %d claims and cannot be as %s: was the GPU replaced? "+
				"It is free when those claims are gone",
				errConflict, g.device, g.record.UUID, len(g.record.Claims), r.UUID)
		}
		if len(g.record.Claims) >= maxClaims && !g.record.has(r.Claim) {
			return mps.Endpoint{}, fmt.Errorf("%w: %s has %d claims, the maximum", errConflict, g.device, len(g.record.Claims))
		}
	}
	if !g.runs() {
		if g.endRestart != nil && g.restarts > 0 && g.record.has(r.Claim) { // the plugin asks often, and the restart keeps its pace
			return mps.Endpoint{}, fmt.Errorf("%s has no MPS control daemon, which is restarted: %s", g.device, g.message)
		}
		return g.startFor(ctx, r)
	}
	if g.record.has(r.Claim) && g.record.Owners[r.Claim] == r.Owner {
		return g.endpoint(), nil
	}
	claims, owners := g.record.Claims, g.record.Owners
	g.record.add(r.Claim, r.Owner)
	if err := g.save(); err != nil {
		g.record.Claims, g.record.Owners = claims, owners
		return mps.Endpoint{}, err
	}
	klog.FromContext(ctx).V(2).Info("Claim added to MPS", "gpu", g.device, "claim", r.Claim, "claims", len(g.record.Claims))
	return g.endpoint(), nil
}

// startFor starts a daemon for a claim and the existing ones.
func (g *gpuState) startFor(ctx context.Context, r mps.Request) (mps.Endpoint, error) {
	first := g.record == nil || len(g.record.Claims) == 0
	if g.daemon.process != nil && !first {
		g.noteLoss(ctx, "it ended: "+g.daemon.process.How()) // before watch noticed
	}
	if first {
		if g.record != nil { // whose removal failed: files of its claims may be in /dev/shm
			if err := g.daemon.remove(ctx, g.record.Daemon); err != nil {
				return mps.Endpoint{}, fmt.Errorf("remove MPS from %s: %w", g.device, err)
			}
		}
		g.renew(r)
	}
	known := g.record.has(r.Claim)
	g.record.add(r.Claim, r.Owner)
	err := g.start(ctx)
	if err == nil {
		if !known {
			g.restarts = 0
		}
		return g.endpoint(), nil
	}
	err = fmt.Errorf("start the MPS control daemon of %s: %w", g.device, err)
	if first {
		if undo := g.dismantle(ctx); undo != nil {
			err = fmt.Errorf("%w; clean up: %w", err, undo)
		}
		return mps.Endpoint{}, err
	}
	if !known {
		g.record.keep(func(c types.UID) bool { return c != r.Claim })
	}
	g.message = err.Error()
	if saved := g.save(); saved != nil {
		err = fmt.Errorf("%w; %w", err, saved)
	}
	g.restartLater(ctx)
	return mps.Endpoint{}, err
}

// renew creates a record for the first claim, keeping changes that the previous record could not undo.
func (g *gpuState) renew(r mps.Request) {
	next := &record{
		Version: recordVersion, Boot: g.s.boot, Device: g.device, PCI: r.PCI.String(), UUID: r.UUID,
		Phase: starting, Settings: r.Settings,
	}
	if last := g.record; last != nil {
		next.Generation = last.Generation
		if last.UUID == r.UUID || last.UUID == "" {
			next.PreviousMode, next.Closed = last.PreviousMode, last.Closed // meaningless for another GPU
		}
	}
	g.record, g.daemon.UUID = next, next.UUID
	g.restarts, g.failed, g.message = 0, false, ""
}

// keep drops claims, and MPS with the last one.
func (g *gpuState) keep(ctx context.Context, test func(types.UID) bool) error {
	claims, lost, owners := g.record.Claims, g.record.Lost, g.record.Owners
	g.record.keep(test)
	if len(g.record.Claims) == 0 {
		return g.dismantle(ctx)
	}
	if len(claims) == len(g.record.Claims) {
		return nil
	}
	if err := g.save(); err != nil {
		g.record.Claims, g.record.Lost, g.record.Owners = claims, lost, owners
		return err
	}
	klog.FromContext(ctx).V(2).Info("Claims removed from MPS", "gpu", g.device, "before", len(claims), "claims", len(g.record.Claims))
	return nil
}

// save writes the record to disk.
func (g *gpuState) save() error {
	g.show()
	return g.s.records.Write(g.record)
}

// show updates what Status reports.
func (g *gpuState) show() {
	r := g.record
	if r == nil {
		g.view.Store(nil)
		return
	}
	view := &mps.GPUStatus{
		Device: g.device, UUID: r.UUID, Generation: r.Generation, Message: g.message,
		Claims: slices.Clone(r.Claims), Owners: maps.Clone(r.Owners),
		State: map[phase]mps.State{starting: mps.Starting, running: mps.Running, stopping: mps.Stopping}[r.Phase],
	}
	if g.failed && r.Phase == starting {
		view.State = mps.Failed
	}
	if r.Daemon != nil && r.Phase == running {
		view.PID = r.Daemon.PID
	}
	g.view.Store(view)
}
