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

// ErrReleaseRequested is why the driver is released by the node's label.
var ErrReleaseRequested = fmt.Errorf("the node has the label %s=true: the driver can be unloaded or replaced, and is used again "+
	"once the label is gone", v1alpha1.ReleaseDriverLabel)

// ErrDriverAvailable ends Release once the driver can be used again: the plugin re-executes itself. It may be another release
// of the driver, and a library that calls were bound to stays in a process for good (dlclose(3): what the program itself refers
// to is not unloaded).
var ErrDriverAvailable = errors.New("the NVIDIA driver can be used again")

// ReleaseReason is why the driver is not to be used: the node's label, or something of it is missing; nil if it can be used.
func ReleaseReason(node cluster.Node, missing error) error {
	if node.ReleaseDriver {
		return ErrReleaseRequested
	}
	if missing != nil {
		return fmt.Errorf("the NVIDIA driver went away: %w", missing)
	}
	return nil
}

// considerRelease decides whether the driver is to be released. A recovery comes first: what a plugin that was killed left half
// done can be told from what is unmanaged only in the session of the driver that created it.
func (p *Plan) considerRelease(o *Observed) {
	if !o.Ready || p.Memory.Recovered.IsZero() {
		return
	}
	if p.Release = ReleaseReason(o.Cluster.Node, o.Driver); p.Release != nil {
		p.report(Report{
			Log: "Releasing the NVIDIA driver", Values: []any{"reason", p.Release},
			Warning: true, Reason: "DriverReleased", Message: p.Release.Error(),
		})
	}
}

// Release ends the use of the driver, so that it can be unloaded, and waits until it can be used again, which ends it with
// ErrDriverAvailable. Nothing new is prepared meanwhile; what claims release is on record, and is removed afterwards. It is
// called after Run, with its reason.
func (l *Loop) Release(ctx context.Context, why error) error {
	l.Released(ctx, errors.Is(why, ErrReleaseRequested))
	l.Reporter.Driver(why)
	l.Claims.SetWaiting(why)
	l.Claims.Quiesce()
	if err := l.endSession(ctx); err != nil {
		return err
	}
	l.Hardware.Close(ctx)
	if err := l.awaitDriver(ctx, why); err != nil {
		return err
	}
	l.Released(ctx, false)
	l.Events.Note("DriverAvailable", ErrDriverAvailable.Error())
	return ErrDriverAvailable
}

// endSession ends the driver's session on record. Until that is durable the driver is not released: partitions that others
// create afterwards would be taken for Cleave's own.
func (l *Loop) endSession(ctx context.Context) error {
	tick := time.NewTicker(l.DriverRetry)
	defer tick.Stop()
	for {
		err := l.Claims.EndSession(ctx)
		if err == nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "The NVIDIA driver cannot be released yet; retrying")
		l.Reporter.Driver(err)
		l.Events.Warn("DriverNotReleased", err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// awaitDriver returns once the driver can be used, or ctx ends. Each new reason is reported.
func (l *Loop) awaitDriver(ctx context.Context, reported error) error {
	tick := time.NewTicker(l.DriverRetry)
	defer tick.Stop()
	for {
		why := ReleaseReason(l.Sources.Cluster().Node, l.Hardware.Missing())
		if why == nil {
			return nil
		}
		if text(why) != text(reported) {
			reported = why
			klog.FromContext(ctx).Info("Waiting for the NVIDIA driver", "reason", why, "retryEvery", l.DriverRetry)
			l.Claims.SetWaiting(why)
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

// AwaitLabel returns once the node's label lets the driver be used, or ctx ends. waiting is called if that is not at once. It
// is called before Begin.
func (l *Loop) AwaitLabel(ctx context.Context, state func() cluster.State, waiting func()) error {
	if !state().Node.ReleaseDriver {
		return nil
	}
	waiting()
	for state().Node.ReleaseDriver {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		}
	}
	return nil
}
