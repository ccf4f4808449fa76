// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/mps"
)

// askEvery is the time between two questions to a daemon that is not ready yet: it gives no sign when it is.
const askEvery = 50 * time.Millisecond

// start brings up a daemon for the claims on record. Each step is recorded before it is taken. Where one fails, the
// daemon is ended; the rest is left to the caller, who may try again.
func (g *gpuState) start(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	if err := g.endDaemon(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.s.config.StartTimeout)
	defer cancel()
	g.record.Phase, g.record.Daemon = starting, nil
	g.record.Generation++
	if err := g.takeComputeMode(ctx); err != nil {
		return err
	}
	if err := g.makePlace(); err != nil {
		return err
	}
	process, err := g.s.on.Daemons.Start(ctx, g.daemon(), func(id ProcessID) error {
		g.record.Daemon = &id
		return g.save()
	})
	if err != nil {
		return err
	}
	g.process = process
	err = g.makeReady(ctx)
	if err == nil {
		g.record.Phase = running
		err = g.save()
	}
	if err != nil {
		err = fmt.Errorf("%w%s", err, tailOf(g.paths.log))
		g.record.Phase = starting
		return errors.Join(err, g.endDaemon(ctx))
	}
	g.running(ctx)
	logger.Info("MPS control daemon started", "gpu", g.device, "uuid", g.record.UUID, "pid", process.ID().PID,
		"generation", g.record.Generation, "claims", g.record.Claims, "duration", time.Since(began))
	return nil
}

// makePlace creates what the daemon and its clients meet in.
func (g *gpuState) makePlace() error {
	if err := g.s.on.Files.MakeDirs(g.paths); err != nil {
		return fmt.Errorf("create the directories of the daemon: %w", err)
	}
	// Processes of any user make their files in /dev/shm, as container runtimes mount it.
	mounts := []tmpfs{{g.paths.shm, g.record.Settings.SharedMemory, 0o1777}}
	if g.record.Layout >= ownMounts {
		mounts = append(mounts, tmpfs{g.paths.pipe, pipeSize, pipeMode}, tmpfs{g.paths.log, logSize, logMode})
	}
	for _, m := range mounts {
		if err := g.s.on.Mounts.Mount(m); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", m.dir, err)
		}
	}
	if err := g.s.on.Files.Clear(g.paths); err != nil {
		return fmt.Errorf("clear the directories of the daemon: %w", err)
	}
	return nil
}

// running notes that the daemon runs, reports it to those that had lost theirs, and watches it.
func (g *gpuState) running(ctx context.Context) {
	g.started, g.failed, g.message = time.Now(), false, ""
	if lost := g.record.Lost; len(lost) > 0 {
		g.report(ctx, mps.DaemonRestarted, lost,
			fmt.Sprintf("a new MPS control daemon runs (generation %d): containers must restart their processes to use it", g.record.Generation))
		g.record.Lost = nil
		if err := g.save(); err != nil { // it would be reported again after a restart
			klog.FromContext(ctx).Error(err, "Recording the restart of an MPS control daemon failed", "gpu", g.device)
		}
	}
	g.show()
	process := g.process
	g.s.wg.Go(func() { g.watch(process) })
}

// makeReady waits until the daemon answers, sets its defaults, which hold for every server it starts from then on, and
// lets clients at it.
func (g *gpuState) makeReady(ctx context.Context) error {
	if err := g.waitReady(ctx); err != nil {
		return err
	}
	if err := setDefaults(ctx, g.s.on.Daemons, g.daemon(), g.record.Settings); err != nil {
		return err
	}
	return g.letClientsIn()
}

// letClientsIn shows clients what they need of the daemon's pipes.
func (g *gpuState) letClientsIn() error {
	if err := g.s.on.Files.ShowClients(g.paths); err != nil {
		return fmt.Errorf("show clients the sockets of the daemon: %w", err)
	}
	return nil
}

// waitReady asks the daemon until it answers.
func (g *gpuState) waitReady(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	began := time.Now()
	var last error
	for {
		_, err := askPercentage(ctx, g.s.on.Daemons, g.daemon())
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // else it says only that time was up
			last = err
		}
		select {
		case <-g.process.Done():
			return fmt.Errorf("MPS control daemon %d ended before it answered: %s", g.process.ID().PID, g.process.How())
		case <-ctx.Done():
			return fmt.Errorf("MPS control daemon %d did not answer within %s (--start-timeout): %w; last question: %w",
				g.process.ID().PID, time.Since(began).Round(time.Millisecond), ctx.Err(), last)
		case <-tick.C:
		}
	}
}
