// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Reasons of Events about the release of the NVIDIA driver.
const (
	reasonDriverReleased    = "DriverReleased"    // the NVIDIA driver is released: a label of the node wants it, or parts of it are missing
	reasonDriverNotReleased = "DriverNotReleased" // the NVIDIA driver cannot be released yet; retried
	reasonDriverAvailable   = "DriverAvailable"   // the NVIDIA driver can be used again
)

// ErrReleaseRequested is the reason for a release requested by the node's label, and matches that of any label.
var ErrReleaseRequested = fmt.Errorf("the node has the label %s=true: the driver can be unloaded or replaced, and is used again "+
	"once the label is gone", v1alpha1.ReleaseDriverLabel)

// errReleasing is reported until the driver is closed: only then can it be unloaded.
var errReleasing = errors.New("the NVIDIA driver is being released")

// ErrDriverAvailable ends Release once the driver can be used again: the plugin re-executes itself. The driver may be another
// release, but a library that calls were bound to stays in a process for good (dlclose(3): objects that the program itself
// references are not unloaded).
var ErrDriverAvailable = errors.New("the NVIDIA driver can be used again")

// pausedError is a release requested by a label of the GPU operator, "label=value". It is an ErrReleaseRequested.
type pausedError string

func (e pausedError) Error() string {
	return fmt.Sprintf("the node has the label %s: the driver can be unloaded or replaced, and is used again once the GPU operator has "+
		"taken that back", string(e))
}

func (pausedError) Is(target error) bool { return target == ErrReleaseRequested }

// requested is the request of the node's labels to release the driver; nil for none.
func requested(node cluster.Node) error {
	switch {
	case node.ReleaseDriver:
		return ErrReleaseRequested
	case node.Paused != "":
		return pausedError(node.Paused)
	}
	return nil
}

// ReleaseReason is why the driver must not be used: a label of the node, or missing parts of it; nil if it can be used.
func ReleaseReason(node cluster.Node, missing error) error {
	if why := requested(node); why != nil {
		return why
	}
	if missing != nil {
		return fmt.Errorf("the NVIDIA driver went away: %w", missing)
	}
	return nil
}

// considerRelease decides whether to release the driver. A recovery comes first: only in the driver session that created them can
// the leftovers of a killed plugin be distinguished from unmanaged partitions.
func (p *Plan) considerRelease(o *Observed) {
	if !o.Ready || p.Memory.Recovered.IsZero() {
		return
	}
	if p.Release = ReleaseReason(o.Cluster.Node, o.Driver); p.Release != nil {
		p.report(Report{Log: "Releasing the NVIDIA driver", Values: []any{"reason", p.Release}})
	}
}

// Release stops using the driver, so that it can be unloaded, waits until it can be used again, and then returns
// ErrDriverAvailable. Meanwhile nothing is prepared; devices that claims release are on record, and are removed afterwards. It is
// called after Run, with the reason that Run returned.
func (l *Loop) Release(ctx context.Context, why error) error {
	l.Reporter.Driver(errReleasing)
	l.Claims.SetWaiting(why)
	l.Claims.Quiesce()
	if err := l.endSession(ctx); err != nil {
		return err
	}
	// Not before: the next plugin waits for the label and ends no session.
	l.Released(ctx, errors.Is(why, ErrReleaseRequested))
	if err := l.awaitDriver(ctx, why); err != nil {
		return err
	}
	l.Released(ctx, false)
	l.Events.Note(reasonDriverAvailable, ErrDriverAvailable.Error())
	return ErrDriverAvailable
}

// endSession ends the recorded driver session. The driver is not released before that is durable: partitions that others create
// afterwards would be mistaken for Cleave's own.
func (l *Loop) endSession(ctx context.Context) error {
	tick := time.NewTicker(l.DriverRetry)
	defer tick.Stop()
	reported := ""
	for {
		err := l.Claims.EndSession(ctx)
		if err == nil {
			return nil
		}
		if err.Error() != reported {
			reported = err.Error()
			l.notReleased(ctx, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (l *Loop) notReleased(ctx context.Context, err error) {
	klog.FromContext(ctx).Error(err, "The NVIDIA driver cannot be released yet; retrying")
	l.Reporter.Driver(err)
	l.Events.Warn(reasonDriverNotReleased, err.Error())
}

// awaitDriver closes the driver, and returns once it can be used, or ctx ends. Each reason other than noted is noted at once: whoever
// deletes the plugin because a call of the driver hangs must not have it back before the label is gone. Each new one is reported.
func (l *Loop) awaitDriver(ctx context.Context, noted error) error {
	tick := time.NewTicker(l.DriverRetry)
	defer tick.Stop()
	closed, reported := false, errReleasing
	for {
		var inUse error
		closes := !closed
		if closes {
			inUse = l.Hardware.Close(ctx)
			closed = inUse == nil
		}
		why := ReleaseReason(l.Sources.Cluster().Node, l.Hardware.Missing())
		if why == nil {
			return nil
		}
		if text(why) != text(noted) {
			noted = why
			l.Released(ctx, errors.Is(why, ErrReleaseRequested))
			l.Claims.SetWaiting(why)
		}
		switch {
		case inUse != nil && text(inUse) != text(reported):
			reported = inUse
			l.notReleased(ctx, inUse)
		case inUse == nil && text(why) != text(reported):
			reported = why
			if closes {
				l.Events.Warn(reasonDriverReleased, why.Error())
			}
			klog.FromContext(ctx).Info("Waiting for the NVIDIA driver", "reason", why, "retryEvery", l.DriverRetry)
			l.Reporter.Driver(why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		case <-tick.C:
		}
	}
}

// AwaitLabel returns once the node's labels let the driver be used, or ctx ends. waiting is called with each reason why it has to
// wait. It is called before Begin.
func (l *Loop) AwaitLabel(ctx context.Context, state func() cluster.State, waiting func(why error)) error {
	reported := ""
	for {
		why := requested(state().Node)
		if why == nil {
			return nil
		}
		if text(why) != reported {
			reported = text(why)
			waiting(why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		}
	}
}
