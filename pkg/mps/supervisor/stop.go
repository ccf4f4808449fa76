// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// dismantle takes all of MPS off a GPU, and answers success only when the GPU has its compute mode back. It can be
// repeated, and is not given up when the supervisor stops.
func (b *board) dismantle(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	ctx = context.WithoutCancel(ctx)
	b.record.Phase, b.record.Claims, b.record.Lost, b.record.Owners = stopping, nil, nil, nil
	err := b.save()
	if err == nil {
		err = b.endDaemon(ctx)
	}
	if err == nil {
		err = b.removeAll(ctx)
	}
	if err == nil {
		err = b.returnComputeMode(ctx)
	}
	if err != nil {
		b.message = err.Error()
		b.show()
		return fmt.Errorf("take MPS off %s: %w", b.device, err)
	}
	if err := b.s.on.Files.Remove(b.paths.record); err != nil {
		return fmt.Errorf("take MPS off %s: remove the record: %w", b.device, err)
	}
	b.record, b.restarts, b.failed, b.message = nil, 0, false, ""
	b.show()
	logger.Info("Nothing of MPS is left on a GPU", "gpu", b.device, "duration", time.Since(began))
	return nil
}

// removeAll takes away what the daemon and its clients met in.
func (b *board) removeAll(context.Context) error {
	for _, dir := range b.paths.mounts() {
		if err := b.s.on.Mounts.Unmount(dir); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := b.s.on.Files.RemoveDirs(b.paths); err != nil {
		return fmt.Errorf("remove the daemon's folders: %w", err)
	}
	return nil
}

// endDaemon ends the daemon and all its servers, if there are any: it asks, then insists, then kills.
func (b *board) endDaemon(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	process := b.process
	b.process = nil // watch leaves it alone from here on
	if process == nil && b.record.Daemon != nil {
		var err error
		if process, err = b.s.on.Daemons.Adopt(*b.record.Daemon); err != nil && !errors.Is(err, errGone) {
			return fmt.Errorf("find MPS control daemon %d: %w", b.record.Daemon.PID, err)
		}
	}
	if process != nil {
		defer process.Forget()
		if err := b.end(ctx, process); err != nil {
			return err
		}
	}
	if err := b.s.on.Daemons.Sweep(ctx, b.daemon()); err != nil {
		return fmt.Errorf("end what is left of the MPS servers of %s: %w", b.device, err)
	}
	return nil
}

// end goes through the ways to end a process, each with its time.
func (b *board) end(ctx context.Context, process Process) error {
	var errs []error
	for _, way := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"quit", func(ctx context.Context) error { _, err := b.s.on.Daemons.Ask(ctx, b.daemon(), "quit"); return err }},
		{"SIGTERM", func(context.Context) error { return process.Terminate() }},
		{"SIGKILL", func(context.Context) error { return process.Kill() }},
	} {
		select {
		case <-process.Done():
			return nil
		default:
		}
		ended, err := b.tryToEnd(ctx, process, way.do)
		if ended {
			return nil
		}
		klog.FromContext(ctx).Info("An MPS control daemon did not end", "gpu", b.device, "pid", process.ID().PID, "way", way.name, "reason", err)
		errs = append(errs, fmt.Errorf("%s: %w", way.name, err))
	}
	return fmt.Errorf("MPS control daemon %d of %s does not end, so its GPU cannot be given to others; look whether it hangs in the driver (dmesg): %w",
		process.ID().PID, b.device, errors.Join(errs...))
}

// tryToEnd goes one way and waits.
func (b *board) tryToEnd(ctx context.Context, process Process, do func(context.Context) error) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.s.config.StopTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		select {
		case <-process.Done(): // it went while it was told to
			return true, nil
		default:
			return false, err
		}
	}
	select {
	case <-process.Done():
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("it still runs after %s (--stop-timeout)", b.s.config.StopTimeout)
	}
}
