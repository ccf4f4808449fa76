// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// ErrDriverBack ends Run after the driver was let go of and can be used again: the program is to start anew. It may be
// another release of the driver, and a library that calls were bound to stays in a process for good (dlclose(3): what the
// program itself refers to is not unloaded).
var ErrDriverBack = errors.New("the NVIDIA driver can be used again")

// errDraining is why the driver is released by the node's label.
var errDraining = fmt.Errorf("the node has the label %s=true (or the deprecated %s): the driver can be unloaded or replaced, and is used again once the label is gone",
	v1alpha1.ReleaseDriverLabel, v1alpha1.DrainLabel)

// loaded is the file of procfs that is there while the driver's kernel module is loaded.
const loaded = "driver/nvidia/version"

// driverGone says what of the driver is missing; nil if nothing is.
func (s *service) driverGone() error {
	if _, err := os.Stat(s.library); s.library == "" || err != nil { // to look for it costs milliseconds, every two seconds
		if s.library, err = nvml.FindLibrary(s.whereFound()); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.loadedFile()); err != nil && s.tellsLoaded {
		return fmt.Errorf("%w: %w", gpu.ErrDriverNotLoaded, err)
	}
	return nil
}

// whereFound says where to look whether the driver that is used is still there: in its own root alone, as another may have
// the library of a driver that does not run. While none is used, any may come.
func (s *service) whereFound() nvml.Options {
	opts := s.whereDriver()
	if s.found != "" {
		opts.DriverRoot, opts.OtherRoots = s.found, nil
	}
	return opts
}

func (s *service) loadedFile() string { return filepath.Join(s.config.Procfs, loaded) }

// noteLoaded remembers whether procfs tells that the driver is loaded: not everywhere where there are GPUs it does.
func (s *service) noteLoaded() {
	_, err := os.Stat(s.loadedFile())
	s.tellsLoaded = err == nil
}

// mustLetGo says why the driver is to be let go of; nil if it is not.
func (s *service) mustLetGo() error {
	if s.around.facts().drain {
		return errDraining
	}
	if err := s.driverGone(); err != nil {
		return fmt.Errorf("the NVIDIA driver went away: %w", err)
	}
	return nil
}

// letGo ends the NVML session, so that the driver can be unloaded, and waits until it can be used again. Nothing new is
// handed out meanwhile; what claims give back is on record, and is taken away afterwards.
func (s *service) letGo(ctx context.Context, hw *hardware, p *publisher, why error) error {
	klog.FromContext(ctx).Info("Letting go of the NVIDIA driver", "reason", why)
	s.events.warn("DriverReleased", why.Error())
	s.markDrained(ctx, errors.Is(why, errDraining))
	s.ready.driver(why)
	s.metrics.waiting.Set(1)
	s.draining = true
	s.publish(hw, p)
	s.engine.SetWaiting(why)
	s.engine.Quiesce()
	if err := s.endSession(ctx, hw); err != nil {
		return err
	}
	hw.end(ctx)
	s.found, s.library = "", ""
	if err := s.waitForDriver(ctx, why); err != nil {
		return err
	}
	s.markDrained(ctx, false)
	s.events.note("DriverBack", "the NVIDIA driver can be used again")
	return ErrDriverBack
}

// sessionFile tells the driver's sessions apart, see pkg/driversession.
const sessionFile = "driver-session.json"

// endSession ends the driver's session on record. Until that is durable the driver is not released: partitions that others
// create afterwards would pass for ours.
func (s *service) endSession(ctx context.Context, hw *hardware) error {
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	for {
		err := s.engine.EndSession(ctx, hw)
		if err == nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Cannot release the NVIDIA driver yet")
		s.ready.driver(err)
		s.events.warn("DriverNotReleased", err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// deviceNames are the whole-GPU devices of a node.
func deviceNames(node *gpu.Node) []string {
	names := make([]string, 0, len(node.GPUs))
	for i := range node.GPUs {
		names = append(names, node.GPUs[i].PCI.DeviceName())
	}
	return names
}

// drainedFile is there while the driver is let go of by the node's label: a plugin that starts then asks for the label
// before it uses the driver. Else it need not wait for the API server.
func (s *service) drainedFile() string { return filepath.Join(s.config.pluginDir(), "drained") }

// markDrained makes that file, or removes it.
func (s *service) markDrained(ctx context.Context, drained bool) {
	err := os.Remove(s.drainedFile())
	if drained {
		err = os.WriteFile(s.drainedFile(), nil, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Could not note whether the driver is let go of")
	}
}

// waitForLabel waits until the node's label lets the driver be used, where an earlier run let go of it.
func (s *service) waitForLabel(ctx context.Context) error {
	if _, err := os.Stat(s.drainedFile()); err != nil {
		return nil //nolint:nilerr // no file, nothing to wait for
	}
	if err := s.around.wait(ctx); err != nil {
		return err
	}
	s.ready.cluster(nil)
	if !s.around.facts().drain {
		s.markDrained(ctx, false)
		return nil
	}
	klog.FromContext(ctx).Info("Leaving the NVIDIA driver alone", "reason", errDraining)
	s.engine.SetWaiting(errDraining)
	s.ready.driver(errDraining)
	for s.around.facts().drain {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.outside:
		}
	}
	signal(s.outside) // what else has changed meanwhile is looked at later
	s.markDrained(ctx, false)
	return nil
}

// waitForDriver returns once nothing says that the driver is to be let alone, or ctx ends. Each new reason is told.
func (s *service) waitForDriver(ctx context.Context, told error) error {
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	for {
		why := s.mustLetGo()
		if why == nil {
			return nil
		}
		if told == nil || why.Error() != told.Error() {
			told = why
			klog.FromContext(ctx).Info("Waiting for the NVIDIA driver", "reason", why, "retryEvery", s.config.DriverRetry)
			s.engine.SetWaiting(why)
			s.ready.driver(why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.outside:
		case <-tick.C:
		}
	}
}

// drainTaints keep all devices of a node from being handed out while the driver is let go of.
func (s *service) drainTaints(node *policy.Node) []publish.Taint {
	if !s.draining {
		return nil
	}
	var taints []publish.Taint
	for i := range node.GPUs {
		for _, shape := range node.Shapes(&node.GPUs[i]) {
			taints = append(taints, publish.Taint{Device: shape.Name(), Key: publish.TaintDraining})
		}
	}
	return taints
}
