// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/mps"
)

const (
	// fastRestarts is how often a daemon is restarted in a row before it counts as failed: at once, then after 1, 2, 4
	// and 8 seconds. From then on it is tried slowly, as the cause may go away (a driver is loaded again).
	fastRestarts = 5
	slowRestart  = time.Minute
	// stable is how long a daemon has to run for the next loss to count as the first.
	stable = 10 * time.Minute
)

// delay is the wait before the next restart after some in a row.
func delay(restarts int) time.Duration {
	switch {
	case restarts == 0:
		return 0
	case restarts < fastRestarts:
		return time.Second << (restarts - 1)
	default:
		return slowRestart
	}
}

// watch waits for the end of a daemon, and acts on one that was not wanted.
func (b *board) watch(process Process) {
	ctx := b.s.life
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Forget()
		return
	}
	if err := b.lock(ctx); err != nil {
		return
	}
	defer b.unlock()
	if b.process != process {
		return
	}
	b.noteLoss(ctx, "it ended: "+process.How())
	b.restartLater(ctx)
}

// noteLoss tells and records that the daemon is gone, and which claims have lost it.
func (b *board) noteLoss(ctx context.Context, how string) {
	pid := 0
	if b.record.Daemon != nil {
		pid = b.record.Daemon.PID
	}
	if !b.started.IsZero() && time.Since(b.started) > stable {
		b.restarts = 0
	}
	b.process, b.record.Phase = nil, starting
	b.record.Lost = slices.Clone(b.record.Claims)
	b.message = fmt.Sprintf("MPS control daemon %d is lost: %s%s", pid, how, tailOf(b.paths.log))
	// First the report: should this process die in between, it is made again.
	b.report(ctx, mps.DaemonLost, b.record.Lost, b.message)
	if err := b.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Could not record the loss of an MPS control daemon", "gpu", b.device)
	}
}

// report tells watchers and the log.
func (b *board) report(ctx context.Context, kind mps.EventKind, claims []types.UID, message string) {
	klog.FromContext(ctx).Info(string(kind), "gpu", b.device, "claims", claims, "message", message)
	b.s.reports.add(ctx, mps.Event{Device: b.device, Kind: kind, Claims: slices.Clone(claims), Message: message, Time: time.Now()})
}

// restartLater has a goroutine start the daemon again, unless one is at it.
func (b *board) restartLater(ctx context.Context) {
	b.giveUp(ctx)
	if b.restarting || ctx.Err() != nil {
		return
	}
	b.restarting = true
	wait := delay(b.restarts)
	b.s.wg.Go(func() { b.restart(wait) })
}

// restart tries until a daemon runs, no claim wants one, or the supervisor stops.
func (b *board) restart(wait time.Duration) {
	ctx := b.s.life
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := b.lock(ctx); err != nil {
			return
		}
		again := b.tryRestart(ctx)
		b.restarting = again
		wait = delay(b.restarts)
		b.unlock()
		if !again {
			return
		}
		timer.Reset(wait)
	}
}

// tryRestart tells whether to try again.
func (b *board) tryRestart(ctx context.Context) bool {
	if b.record == nil || len(b.record.Claims) == 0 || b.runs() {
		return false
	}
	b.restarts++
	err := b.start(ctx)
	if err == nil {
		return false
	}
	b.message = err.Error()
	b.show()
	klog.FromContext(ctx).Error(err, "Could not start an MPS control daemon again", "gpu", b.device, "attempt", b.restarts, "next", delay(b.restarts))
	b.giveUp(ctx)
	return true
}

// giveUp tells, once, that a daemon has failed after too many restarts in a row.
func (b *board) giveUp(ctx context.Context) {
	if b.restarts < fastRestarts || b.failed {
		return
	}
	b.failed = true
	b.report(ctx, mps.DaemonFailed, b.record.Claims, fmt.Sprintf("given up after %d restarts in a row, tried again every %s; last: %s", b.restarts, slowRestart, b.message))
	b.show()
}
