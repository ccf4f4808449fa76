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
func (b *board) start(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	if err := b.endDaemon(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.s.config.StartTimeout)
	defer cancel()
	b.record.Phase, b.record.Daemon = starting, nil
	b.record.Generation++
	if err := b.takeComputeMode(ctx); err != nil {
		return err
	}
	if err := b.makePlace(); err != nil {
		return err
	}
	process, err := b.s.on.Daemons.Start(ctx, b.daemon(), func(id ProcessID) error {
		b.record.Daemon = &id
		return b.save()
	})
	if err != nil {
		return err
	}
	b.process = process
	err = b.makeReady(ctx)
	if err == nil {
		b.record.Phase = running
		err = b.save()
	}
	if err != nil {
		err = fmt.Errorf("%w%s", err, tailOf(b.paths.log))
		b.record.Phase = starting
		return errors.Join(err, b.endDaemon(ctx))
	}
	b.running(ctx)
	logger.Info("An MPS control daemon runs", "gpu", b.device, "uuid", b.record.UUID, "pid", process.ID().PID,
		"generation", b.record.Generation, "claims", b.record.Claims, "duration", time.Since(began))
	return nil
}

// makePlace makes what the daemon and its clients meet in.
func (b *board) makePlace() error {
	if err := b.s.on.Files.MakeDirs(b.paths); err != nil {
		return fmt.Errorf("make the directories of the daemon: %w", err)
	}
	// Processes of any user make their files in /dev/shm, as container runtimes mount it.
	mounts := []tmpfs{{b.paths.shm, b.record.Settings.SharedMemory, 0o1777}}
	if b.record.Layout >= ownMounts {
		mounts = append(mounts, tmpfs{b.paths.pipe, pipeSize, pipeMode}, tmpfs{b.paths.log, logSize, logMode})
	}
	for _, m := range mounts {
		if err := b.s.on.Mounts.Mount(m); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", m.dir, err)
		}
	}
	if err := b.s.on.Files.Clear(b.paths); err != nil {
		return fmt.Errorf("clear the directories of the daemon: %w", err)
	}
	return nil
}

// running notes that the daemon runs, tells those that had lost theirs, and watches it.
func (b *board) running(ctx context.Context) {
	b.started, b.failed, b.message = time.Now(), false, ""
	if lost := b.record.Lost; len(lost) > 0 {
		b.report(ctx, mps.DaemonRestarted, lost,
			fmt.Sprintf("a new MPS control daemon runs (generation %d): containers have to start their processes anew to use it", b.record.Generation))
		b.record.Lost = nil
		if err := b.save(); err != nil { // they would be told once more after a restart
			klog.FromContext(ctx).Error(err, "Could not record that claims have their MPS daemon again", "gpu", b.device)
		}
	}
	b.show()
	process := b.process
	b.s.wg.Go(func() { b.watch(process) })
}

// makeReady waits until the daemon answers, sets its defaults, which hold for every server it starts from then on, and
// lets clients at it.
func (b *board) makeReady(ctx context.Context) error {
	if err := b.waitReady(ctx); err != nil {
		return err
	}
	if err := setDefaults(ctx, b.s.on.Daemons, b.daemon(), b.record.Settings); err != nil {
		return err
	}
	return b.letClientsIn()
}

// letClientsIn shows clients what they need of the daemon's pipes.
func (b *board) letClientsIn() error {
	if err := b.s.on.Files.ShowClients(b.paths); err != nil {
		return fmt.Errorf("show clients the sockets of the daemon: %w", err)
	}
	return nil
}

// waitReady asks the daemon until it answers.
func (b *board) waitReady(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	began := time.Now()
	var last error
	for {
		_, err := askPercentage(ctx, b.s.on.Daemons, b.daemon())
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // else it says only that time was up
			last = err
		}
		select {
		case <-b.process.Done():
			return fmt.Errorf("MPS control daemon %d ended before it answered: %s", b.process.ID().PID, b.process.How())
		case <-ctx.Done():
			return fmt.Errorf("MPS control daemon %d did not answer within %s (--start-timeout): %w; last question: %w",
				b.process.ID().PID, time.Since(began).Round(time.Millisecond), ctx.Err(), last)
		case <-tick.C:
		}
	}
}
