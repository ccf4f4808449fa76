// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

const (
	// fastRestarts is how often a daemon is restarted in a row before it counts as failed: at once, then after 1, 2, 4 and 8
	// seconds. After that it is retried slowly, as the cause may go away (a reloaded driver, for example).
	fastRestarts = 5
	slowRestart  = time.Minute
	// stable is the run time after which a loss counts as the first again.
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

// watch waits for the end of a daemon, and handles an unexpected one.
func (g *gpuState) watch(process Process) {
	ctx := g.s.life
	select {
	case <-process.Done():
	case <-ctx.Done():
		g.turn <- struct{}{} // a stop in progress is completed, and waits for the process
		defer g.unlock()
		if g.daemon.process == process {
			process.Forget()
		}
		return
	}
	if err := g.lock(ctx); err != nil {
		return
	}
	defer g.unlock()
	if g.daemon.process != process || len(g.record.Claims) == 0 { // without claims, it remains to be removed
		return
	}
	g.noteLoss(ctx, "it ended: "+process.How())
	g.restartLater(ctx)
}

// noteLoss reports and records the loss of the daemon and the affected claims.
func (g *gpuState) noteLoss(ctx context.Context, how string) {
	pid := 0
	if g.record.Daemon != nil {
		pid = g.record.Daemon.PID
	}
	if !g.started.IsZero() && time.Since(g.started) > stable {
		g.restarts = 0
	}
	g.daemon.process, g.record.Phase = nil, starting
	g.record.Lost = slices.Clone(g.record.Claims)
	g.message = fmt.Sprintf("MPS control daemon %d is lost: %s%s", pid, how, tailOf(ctx, g.device, g.daemon.paths.log))
	// Report first: if this process dies in between, the report is repeated.
	g.report(ctx, mps.DaemonLost, g.record.Lost, g.message)
	if err := g.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Recording the loss of an MPS control daemon failed", "gpu", g.device)
	}
}

// report notifies watchers and logs.
func (g *gpuState) report(ctx context.Context, kind mps.EventKind, claims []types.UID, message string) {
	klog.FromContext(ctx).Info("MPS control daemon event", "kind", kind, "gpu", g.device, "claims", claims, "message", message)
	g.s.reports.add(ctx, mps.Event{Device: g.device, Kind: kind, Claims: slices.Clone(claims), Message: message, Time: time.Now()})
}

// restartLater restarts the daemon in a goroutine, unless one is already doing so.
func (g *gpuState) restartLater(ctx context.Context) {
	g.giveUp(ctx)
	g.keepOff(ctx)
	if g.endRestart != nil || ctx.Err() != nil {
		return
	}
	end, wait := make(chan struct{}), delay(g.restarts)
	g.endRestart = end
	g.s.wg.Go(func() { g.restart(end, wait) })
}

// restarted ends the goroutine that restarts the daemon: it runs, or no claim wants it. The next loss is not to wait for that goroutine,
// which may sleep for a minute while nothing blocks the GPU.
func (g *gpuState) restarted() {
	if g.endRestart != nil {
		close(g.endRestart)
		g.endRestart = nil
	}
}

// restart tries until a daemon runs or no claim wants one, which end says, or the supervisor stops.
func (g *gpuState) restart(end <-chan struct{}, wait time.Duration) {
	ctx := g.s.life
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-end:
			return
		case <-ctx.Done():
			return
		}
		if err := g.lock(ctx); err != nil {
			return
		}
		select {
		case <-end:
			g.unlock()
			return
		default:
		}
		g.restarts++
		wait = delay(g.restarts)
		if err := g.start(ctx); err != nil {
			g.message = err.Error()
			g.show()
			klog.FromContext(ctx).Error(err, "Restarting an MPS control daemon failed",
				"gpu", g.device, "attempt", g.restarts, "next", wait)
			g.giveUp(ctx)
			g.keepOff(ctx)
		}
		g.unlock()
		timer.Reset(wait)
	}
}

// keepOff blocks a GPU without a daemon, unless the next one is started at once. If that fails, the claims still wait for their
// daemon.
func (g *gpuState) keepOff(ctx context.Context) {
	if delay(g.restarts) == 0 || ctx.Err() != nil {
		return
	}
	if err := g.s.computeMode(g.record).close(ctx, g.save); err != nil {
		klog.FromContext(ctx).Error(err, "CUDA programs of claims may start without MPS until its daemon runs", "gpu", g.device)
	}
}

// giveUp reports, once, that a daemon has failed after too many restarts in a row.
func (g *gpuState) giveUp(ctx context.Context) {
	if g.restarts < fastRestarts || g.failed {
		return
	}
	g.failed = true
	g.report(ctx, mps.DaemonFailed, g.record.Claims,
		fmt.Sprintf("failed after %d restarts in a row, retrying every %s; last error: %s", g.restarts, slowRestart, g.message))
	g.show()
}
