// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/filewatch"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/driver/publisher"
)

// Reasons of Events about the plugin's work.
const (
	reasonSlicesDeleted = "ResourceSlicesDeleted" // ResourceSlices of the node were deleted by another client, and are published again
	reasonWaiting       = "WaitingForDriver"      // the NVIDIA driver does not answer; retried
)

// startUp is when the first publication and the informers' first lists are complete.
const startUp = 2 * time.Second

// useHardware waits for the driver, lets claims be prepared, and runs the control loop until ctx ends or the driver was
// released and is available again.
func (s *service) useHardware(ctx context.Context) error {
	installed := make(chan error, 1)
	go func() { // takes some tens of milliseconds, alongside the driver's start
		installed <- s.persist(ctx, func() (err error) {
			s.specs.hook, err = installHook(ctx, &s.config)
			return err
		})
	}()
	if err := s.awaitLabel(ctx); err != nil {
		return err
	}
	session, err := s.openSession(ctx)
	if err != nil {
		return err
	}
	hw := &hardware{Session: session, look: s.finder.now, closed: s.specs.closed}
	defer func() {
		if err := hw.end(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Ending the NVML session failed")
		}
	}()
	if err := s.counting.Wait(ctx, s.config.DriverRetry); err != nil {
		return err
	}
	s.counting.report(ctx)
	if err := <-installed; err != nil {
		return err
	}
	return s.control(ctx, hw)
}

// control lets claims be prepared and runs the control loop.
func (s *service) control(ctx context.Context, hw *hardware) error {
	endNotices := s.notices.Start(ctx)
	defer endNotices()
	if err := s.setUpLoop(ctx, hw); err != nil {
		return err
	}
	endFollowing := background(ctx, s.allocations.run)
	defer endFollowing()
	s.notices.Await(ctx, firstNotices)
	s.loop.Begin(ctx)
	endHealth := s.watchHealth(ctx, hw) // before the first publication, so that a restart does not remove taints
	defer endHealth()
	if err := s.offerGPUs(ctx, hw); err != nil {
		return err
	}
	endPublishing, why := s.runLoop(ctx, hw)
	defer endPublishing()
	if why == nil {
		return nil
	}
	endHealth()
	return s.loop.Release(ctx, why)
}

// setUpLoop waits for the cluster state that the control loop needs, and sets the loop's options.
func (s *service) setUpLoop(ctx context.Context, hw *hardware) error {
	if err := s.cluster.Wait(ctx); err != nil {
		return err
	}
	s.ready.set(noCluster, nil)
	s.names.useHardware(hw)
	if err := s.names.wait(ctx); err != nil {
		return err
	}
	var lists *cluster.Lists
	if s.config.ListAttributes {
		lists = cluster.NewLists(s.client, s.config.DriverName, s.config.NodeName)
		lists.Ask(ctx)
	}
	s.loop.Options = controller.Options{
		Hardware: controlled{s, hw},
		Claims: engine{Preparer: s.engine, driver: s.config.DriverName, allocations: s.allocations, hw: hw,
			api: cluster.Claims{Client: s.client, Pods: s.pods}, lists: lists,
			listed: func() { s.loop.Mark(controller.Cluster) },
			sweep: func(ctx context.Context) {
				s.status.Sweep(ctx)
				s.kubelet.metadata.sweep(ctx, &s.config, s.config.DriverName)
			}},
		Sources: controller.Sources{
			Cluster: s.cluster.State, Names: s.names.states, Conditions: s.health.all, Incomplete: s.specs.incomplete, Lists: lists.Accepted,
			Notices: s.notices.Standing, Counted: s.counting.Counted, WriteFailed: s.writes.lastFailure,
			Policies: func() (*policy.Set, error) { return policy.Load(s.config.PolicyFile, s.config.PolicyFormat) },
			MPS:      func(ctx context.Context) error { return available(ctx, s.mps) },
		},
		Events: s.events, Reporter: reporter{s.metrics, &s.ready},
		KeepPolicy: s.policies.Keep, Removed: s.forget, Released: s.marker.set, Pause: s.clients.Pause,
		Compatible: s.config.compatible(), NoticePolicy: s.config.Notices.Policy, Active: s.active, Before: s.cluster.OwnDevices(),
		ReconcileEvery: s.config.ReconcileEvery, DriverRetry: s.config.DriverRetry,
	}
	return nil
}

// runLoop runs the control loop and its watchers until ctx ends or the driver must be released; why is the reason
// for the release. The publisher continues until endPublishing.
func (s *service) runLoop(ctx context.Context, hw *hardware) (endPublishing func(), why error) {
	p := s.newPublisher()
	endPublishing = background(ctx, p.Run)
	s.loop.Publisher = p
	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	s.watch(watching, &watchers, hw)
	why = s.loop.Run(ctx)
	stopWatching()
	watchers.Wait()
	return endPublishing, why
}

// background runs f until the returned function is called, which waits for its end.
func background(ctx context.Context, f func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// watch starts the watchers that mark the loop, and keeps the CDI spec complete, until ctx ends.
func (s *service) watch(ctx context.Context, wg *sync.WaitGroup, hw *hardware) {
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(startUp):
			// Start-up produces as much garbage as live memory, and an idle process allocates too little to trigger a collection.
			debug.FreeOSMemory()
		}
	})
	wg.Go(func() { s.specs.keep(ctx, hw.Session.Node, s.config.DriverRetry, s.config.ReconcileEvery) })
	wg.Go(func() {
		s.finder.run(ctx, hw.Session, func(pci gpu.PCIAddress) bool { return isAllocated(s.engine.Ledger.Allocations(), pci) })
	})
	wg.Go(func() { newSampler(s, hw).run(ctx) })
	wg.Go(func() { s.claimSpecs.watch(ctx) })
	wg.Go(func() { s.counting.follow(ctx, s.config.ReconcileEvery) })
	if s.mps != nil {
		wg.Go(func() { s.watchMPS(ctx) })
	}
	if path := s.config.PolicyFile; path != "" {
		wg.Go(func() {
			if err := filewatch.Watch(ctx, path, func() { s.loop.Mark(controller.Policies) }); err != nil {
				klog.FromContext(ctx).Error(err, "Watching the policy files failed: changes are noticed late", "every", s.config.ReconcileEvery)
			}
		})
	}
}

// newPublisher makes a publisher that reports to the service.
func (s *service) newPublisher() *publisher.Publisher {
	return publisher.NewPublisher(publisher.Options{
		Writer: s.helper, Pool: s.config.NodeName, Seen: s.cluster.OwnSlices, Wake: s.cluster.OwnSlicesChanged(),
		WriteFailed: s.writes.lastFailure,
		Published: func(err error) {
			s.ready.set(notPublished, err)
			s.writes.note(err)
		},
		Arrived:           func() { s.loop.Mark(controller.Publication) },
		KubeletRegistered: func() time.Time { return time.Unix(0, s.kubelet.registered.Load()) },
		Deleted: func(missing, all int) {
			s.metrics.slicesDeleted.Add(float64(missing))
			s.events.Warn(reasonSlicesDeleted, fmt.Sprintf("%d of the %d ResourceSlices of this node were deleted and are published again. "+
				"If this recurs, the API server's audit log shows who deletes them.", missing, all))
		},
	})
}

// openSession waits for the driver and reports the reason while it waits.
func (s *service) openSession(ctx context.Context) (*nvml.Session, error) {
	s.metrics.waiting.Set(1)
	session, err := nvml.Wait(ctx, s.driver.options(), s.config.DriverRetry, func(err error) {
		awaitsDriver(s, err)
		s.events.Warn(reasonWaiting, err.Error())
	})
	if errors.Is(err, nvml.ErrOtherLibrary) {
		klog.FromContext(ctx).Info("Restarting", "reason", err.Error())
		return nil, controller.ErrDriverAvailable
	}
	if err != nil {
		return nil, err
	}
	s.metrics.waiting.Set(0)
	s.driver.used(session.DriverRoot())
	s.smi.Found(s.config.rootOf(session.DriverRoot()))
	if err := s.persist(ctx, func() error { return s.sessions.Begin(deviceNames(session.Node())) }); err != nil {
		return nil, errors.Join(err, session.Close()) // ctx has ended
	}
	s.metrics.gpus.Set(float64(len(session.Node().GPUs)))
	return session, nil
}

// offerGPUs writes the CDI spec and lets claims be prepared. GPUs that cannot be injected yet are published with a taint, and their
// claims fail with the reason until they can.
func (s *service) offerGPUs(ctx context.Context, hw *hardware) (err error) {
	s.specs.Static, err = newStatic(s, hw.DriverRoot(), s.config.DriverName, s.specs.hook, func() { s.loop.Mark(controller.Specs) })
	if err != nil {
		return err
	}
	incomplete := s.specs.Refresh(ctx, hw.Session.Node())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.engine.SetHardware(hw, s.specs.Static)
	s.names.equip(ctx)
	s.status.Restore(claims.Under(s.config.DriverName, s.engine.Ledger.Records()))
	s.ready.set(noDriver, nil)
	klog.FromContext(ctx).Info("Claims can be prepared", "gpus", len(hw.Node().GPUs), "incomplete", len(s.specs.Problems()),
		"driverVersion", hw.Node().DriverVersion, "driverRoot", s.config.rootOf(hw.DriverRoot()).Host,
		"cdiSpec", s.specs.Path(), "err", incomplete)
	return nil
}

// forget drops the state of a GPU that was removed.
func (s *service) forget(pci gpu.PCIAddress) {
	s.health.set(pci, nil)
	s.metrics.healthy.DeleteLabelValues(pci.DeviceName())
}

// awaitLabel waits until the node's label permits using the driver, if an earlier run released it.
func (s *service) awaitLabel(ctx context.Context) error {
	if !s.marker.exists() {
		return nil
	}
	if err := s.cluster.Wait(ctx); err != nil {
		return err
	}
	s.ready.set(noCluster, nil)
	err := s.loop.AwaitLabel(ctx, s.cluster.State, func(why error) {
		klog.FromContext(ctx).Info("The NVIDIA driver stays released", "reason", why)
		awaitsDriver(s, why)
	})
	if err != nil {
		return err
	}
	s.marker.set(ctx, false)
	return nil
}

// awaitsDriver notes why a plugin that starts has to wait for the driver, possibly for days: what one that was killed has left paused is
// set back at once.
func awaitsDriver(s *service, why error) {
	s.engine.SetWaiting(why)
	s.ready.set(noDriver, why)
	s.clients.Pause(nil)
}
