// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// dismantle removes MPS from a GPU, and reports success only when the GPU has its compute mode back. It can be
// repeated, and is not given up when the supervisor stops.
func (g *gpuState) dismantle(ctx context.Context) error {
	logger, began := klog.FromContext(ctx), time.Now()
	ctx = context.WithoutCancel(ctx)
	g.record.Phase, g.record.Claims, g.record.Lost, g.record.Owners = stopping, nil, nil, nil
	err := g.save()
	if err == nil {
		err = g.endDaemon(ctx)
	}
	if err == nil {
		err = g.removeAll(ctx)
	}
	if err == nil {
		err = g.returnComputeMode(ctx)
	}
	if err != nil {
		g.message = err.Error()
		g.show()
		return fmt.Errorf("remove MPS from %s: %w", g.device, err)
	}
	if err := g.s.records.Remove(g.device); err != nil {
		return fmt.Errorf("remove MPS from %s: %w", g.device, err)
	}
	g.record, g.restarts, g.failed, g.message = nil, 0, false, ""
	g.show()
	logger.Info("MPS removed from GPU", "gpu", g.device, "duration", time.Since(began))
	return nil
}

// removeAll removes what the daemon and its clients met in.
func (g *gpuState) removeAll(context.Context) error {
	for _, dir := range g.paths.mounts() {
		if err := g.s.on.Mounts.Unmount(dir); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := g.s.on.Files.RemoveDirs(g.paths); err != nil {
		return fmt.Errorf("remove the daemon's directories: %w", err)
	}
	return nil
}

// endDaemon ends the daemon and all its servers, if there are any: it asks, then insists, then kills.
func (g *gpuState) endDaemon(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	process := g.process
	g.process = nil // watch leaves it alone from here on
	if process == nil && g.record.Daemon != nil {
		var err error
		if process, err = g.s.on.Daemons.Adopt(*g.record.Daemon); err != nil && !errors.Is(err, errGone) {
			return fmt.Errorf("find MPS control daemon %d: %w", g.record.Daemon.PID, err)
		}
	}
	if process != nil {
		defer process.Forget()
		if err := g.end(ctx, process); err != nil {
			return err
		}
	}
	if err := g.s.on.Daemons.Sweep(ctx, g.daemon()); err != nil {
		return fmt.Errorf("end what is left of the MPS servers of %s: %w", g.device, err)
	}
	return nil
}

// end goes through the ways to end a process, each with its time.
func (g *gpuState) end(ctx context.Context, process Process) error {
	var errs []error
	for _, way := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"quit", func(ctx context.Context) error { _, err := g.s.on.Daemons.Ask(ctx, g.daemon(), "quit"); return err }},
		{"SIGTERM", func(context.Context) error { return process.Terminate() }},
		{"SIGKILL", func(context.Context) error { return process.Kill() }},
	} {
		select {
		case <-process.Done():
			return nil
		default:
		}
		ended, err := g.tryToEnd(ctx, process, way.do)
		if ended {
			return nil
		}
		klog.FromContext(ctx).Info("MPS control daemon did not end", "gpu", g.device, "pid", process.ID().PID, "way", way.name, "reason", err)
		errs = append(errs, fmt.Errorf("%s: %w", way.name, err))
	}
	return fmt.Errorf("MPS control daemon %d of %s does not end, so its GPU cannot be given to others; "+
		"look whether it hangs in the driver (dmesg): %w",
		process.ID().PID, g.device, errors.Join(errs...))
}

// tryToEnd goes one way and waits.
func (g *gpuState) tryToEnd(ctx context.Context, process Process, do func(context.Context) error) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, g.s.config.StopTimeout)
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
		return false, fmt.Errorf("it still runs after %s (--stop-timeout)", g.s.config.StopTimeout)
	}
}
