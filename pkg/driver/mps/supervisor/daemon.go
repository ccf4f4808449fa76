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

// askEvery is the interval of polling a daemon that is not ready yet: it does not signal readiness.
const askEvery = 50 * time.Millisecond

// daemon is the MPS control daemon of one GPU: its process, and the directories that it shares with its clients.
type daemon struct {
	Daemon
	on      *Host
	config  *Config
	process Process // nil while none runs
	server  server
}

// alive reports whether the process runs.
func (d *daemon) alive() bool {
	if d.process == nil {
		return false
	}
	select {
	case <-d.process.Done():
		return false
	default:
		return true
	}
}

// createDirs creates the directories that the daemon shares with its clients.
func (d *daemon) createDirs(ctx context.Context, r *record) error {
	if err := d.on.Files.MakeDirs(d.paths); err != nil {
		return fmt.Errorf("create the directories of the daemon: %w", err)
	}
	// Processes of any user make their files in /dev/shm, as container runtimes mount it.
	for _, m := range []tmpfs{
		{d.paths.shm, r.Settings.SharedMemory, 0o1777}, {d.paths.pipe, pipeSize, pipeMode}, {d.paths.log, logSize, logMode},
	} {
		if err := d.on.Mounts.Mount(ctx, m); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", m.dir, err)
		}
	}
	if err := d.on.Files.Clear(d.paths); err != nil {
		return fmt.Errorf("clear the directories of the daemon: %w", err)
	}
	return nil
}

// start starts the daemon once record has stored its process ID.
func (d *daemon) start(ctx context.Context, record func(ProcessID) error) error {
	d.Root = d.on.Daemons.Root(ctx)
	process, err := d.on.Daemons.Start(ctx, d.Daemon, record)
	if err == nil {
		d.process, d.server = process, server{asked: time.Now()}
	}
	return err
}

// adopt takes over a process started by an earlier supervisor, if it is alive and answers.
func (d *daemon) adopt(ctx context.Context, id ProcessID) error {
	process, err := d.on.Daemons.Adopt(id)
	if err != nil {
		return fmt.Errorf("it did not outlive the supervisor: %w", err)
	}
	d.process, d.Root, d.server = process, d.on.Daemons.Root(ctx), server{asked: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, d.config.StartTimeout)
	defer cancel()
	err = d.waitReady(ctx)
	if err == nil {
		err = d.admitClients() // the earlier supervisor may have died before that
	}
	if err != nil {
		d.process = nil
		process.Forget()
	}
	return err
}

// makeReady waits until the daemon answers, sets its defaults, which apply to every server it starts afterwards, and admits
// clients.
func (d *daemon) makeReady(ctx context.Context, s mps.Settings) error {
	if err := d.waitReady(ctx); err != nil {
		return err
	}
	if err := setDefaults(ctx, d.on.Daemons, d.Daemon, s); err != nil {
		return err
	}
	return d.admitClients()
}

// admitClients exposes the daemon's client pipes.
func (d *daemon) admitClients() error {
	if err := d.on.Files.ShowClients(d.paths); err != nil {
		return fmt.Errorf("show clients the sockets of the daemon: %w", err)
	}
	return nil
}

// waitReady polls the daemon until it answers.
func (d *daemon) waitReady(ctx context.Context) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	began := time.Now()
	var last error
	for {
		_, err := askPercentage(ctx, d.on.Daemons, d.Daemon)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // otherwise it only reports the timeout
			last = err
		}
		select {
		case <-d.process.Done():
			return fmt.Errorf("MPS control daemon %d ended before it answered: %s", d.process.ID().PID, d.process.How())
		case <-ctx.Done():
			return fmt.Errorf("MPS control daemon %d did not answer within %s (--start-timeout): %w; last query: %w",
				d.process.ID().PID, time.Since(began).Round(time.Millisecond), ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// remove ends the daemon, whose last process ID is given, and removes the directories of createDirs.
func (d *daemon) remove(ctx context.Context, last *ProcessID) error {
	if err := d.end(ctx, last); err != nil {
		return err
	}
	for _, dir := range d.paths.mounts() {
		if err := d.on.Mounts.Unmount(dir); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := d.on.Files.RemoveDirs(d.paths); err != nil {
		return fmt.Errorf("remove the daemon's directories: %w", err)
	}
	return nil
}

// end stops the daemon, whose last process ID is given, and all its servers: it asks, then terminates, then kills.
func (d *daemon) end(ctx context.Context, last *ProcessID) error {
	ctx = context.WithoutCancel(ctx)
	process := d.process
	d.process = nil // watch ignores it from here on
	if process == nil && last != nil {
		var err error
		if process, err = d.on.Daemons.Adopt(*last); err != nil && !errors.Is(err, errGone) {
			return fmt.Errorf("find MPS control daemon %d: %w", last.PID, err)
		}
	}
	if process != nil {
		defer process.Forget()
		if err := d.endProcess(ctx, process); err != nil {
			return err
		}
	}
	if err := d.on.Daemons.Sweep(ctx, d.Daemon); err != nil {
		return fmt.Errorf("end the remaining MPS servers of %s: %w", d.GPU, err)
	}
	return nil
}

// endProcess tries the ways to stop a process in turn, each with a timeout.
func (d *daemon) endProcess(ctx context.Context, process Process) error {
	var errs []error
	for _, way := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"quit", func(ctx context.Context) error { _, err := d.on.Daemons.Ask(ctx, d.Daemon, "quit"); return err }},
		{"SIGTERM", func(context.Context) error { return process.Terminate() }},
		{"SIGKILL", func(context.Context) error { return process.Kill() }},
	} {
		select {
		case <-process.Done():
			return nil
		default:
		}
		ended, err := d.tryToEnd(ctx, process, way.do)
		if ended {
			return nil
		}
		klog.FromContext(ctx).Info("MPS control daemon did not end", "gpu", d.GPU, "pid", process.ID().PID, "way", way.name, "reason", err)
		errs = append(errs, fmt.Errorf("%s: %w", way.name, err))
	}
	return fmt.Errorf("MPS control daemon %d of %s does not end, so its GPU cannot be reused; "+
		"check whether it hangs in the driver (dmesg): %w",
		process.ID().PID, d.GPU, errors.Join(errs...))
}

// tryToEnd tries one way and waits.
func (d *daemon) tryToEnd(ctx context.Context, process Process, do func(context.Context) error) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.StopTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		select {
		case <-process.Done(): // it ended on request
			return true, nil
		default:
			return false, err
		}
	}
	select {
	case <-process.Done():
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("it still runs after %s (--stop-timeout)", d.config.StopTimeout)
	}
}
