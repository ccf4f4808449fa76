// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// start starts a daemon for the claims on record. Each step is recorded before it is taken. If one fails, the daemon is stopped;
// the caller undoes the rest or retries.
func (g *gpuState) start(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	if err := g.daemon.end(ctx, g.record.Daemon); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.s.config.StartTimeout)
	defer cancel()
	g.record.Phase, g.record.Daemon = starting, nil
	g.record.Generation++
	if err := g.s.computeMode(g.record).take(ctx, g.save); err != nil {
		return err
	}
	if err := g.daemon.createDirs(ctx, g.record); err != nil {
		return err
	}
	if err := g.daemon.start(ctx, func(id ProcessID) error {
		g.record.Daemon = &id
		return g.save()
	}); err != nil {
		return err
	}
	err := g.daemon.makeReady(ctx, g.record.Settings)
	if err == nil {
		g.record.Phase = running
		err = g.save()
	}
	if err != nil {
		err = fmt.Errorf("%w%s", err, tailOf(ctx, g.device, g.daemon.paths.log))
		g.record.Phase = starting
		return errors.Join(err, g.daemon.end(ctx, g.record.Daemon))
	}
	g.running(ctx)
	logger.Info("MPS control daemon started", "gpu", g.device, "uuid", g.record.UUID, "pid", g.daemon.process.ID().PID,
		"generation", g.record.Generation, "claims", g.record.Claims, "duration", time.Since(began))
	return nil
}

// running notes that the daemon runs, reports that to claims that had lost theirs, and watches it.
func (g *gpuState) running(ctx context.Context) {
	g.started, g.failed, g.message = time.Now(), false, ""
	g.restarted()
	if lost := g.record.Lost; len(lost) > 0 {
		g.report(ctx, mps.DaemonRestarted, lost,
			fmt.Sprintf("a new MPS control daemon runs (generation %d)", g.record.Generation))
		g.record.Lost = nil
		if err := g.save(); err != nil { // the next supervisor would report it again
			klog.FromContext(ctx).Error(err, "Recording the restart of an MPS control daemon failed", "gpu", g.device)
		}
	}
	g.show()
	process := g.daemon.process
	g.s.wg.Go(func() { g.watch(process) })
}
