// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// ErrDriverAvailable ends Run after the driver was released and can be used again: the program must re-execute itself.
var ErrDriverAvailable = controller.ErrDriverAvailable

// ErrNodeRecreated ends Run when the Node object was recreated: the program must re-execute itself, see cluster.Watcher.Recreated.
var ErrNodeRecreated = errors.New("the Node object was deleted and recreated")

// IsRestart reports whether an error of Run means that the program must re-execute itself.
func IsRestart(err error) bool {
	return errors.Is(err, ErrDriverAvailable) || errors.Is(err, ErrNodeRecreated)
}

// Run serves until ctx ends or an error occurs that retries cannot fix. When ctx ends, the kubelet's calls in flight are
// answered first, for up to 15 seconds.
//
// The kubelet is served before the driver answers: claims can be unprepared without it. Claims are prepared and
// slices published once it does.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	s := newService(config)
	ctx, fatal := s.kubelet.inflight.drain(ctx, stopTimeout)
	defer fatal(nil)
	if err := s.connect(ctx); err != nil {
		return err
	}
	http := &httpServer{address: config.MetricsAddress, retry: config.DriverRetry, metrics: s.metrics, ready: &s.ready, events: s.events,
		registration: func() *registerapi.RegistrationStatus { return s.helper.RegistrationStatus() }}
	stopHTTP, err := http.serve(ctx) // first, as /readyz reports why the start waits
	if err != nil {
		return err
	}
	defer stopHTTP()
	if err := s.persist(ctx, func() error { return s.open(ctx) }); err != nil {
		return nil // ctx has ended
	}
	defer background(context.WithoutCancel(ctx), s.cluster.FollowDaemonSet)()
	defer s.leave(ctx)
	defer s.clients.Leave(ctx)
	if !s.awaitName(ctx) {
		return nil
	}
	if err := s.persist(ctx, func() error { return s.startKubeletPlugin(ctx, fatal) }); err != nil {
		return nil // ctx has ended
	}
	defer s.helper.Stop()
	klog.FromContext(ctx).Info("Serving the kubelet", "driver", config.DriverName, "node", config.NodeName)
	s.ready.set(noCluster, fmt.Errorf("Node %s does not exist yet", config.NodeName))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.claimEvents.run(ctx) })
	wg.Go(func() { s.status.Run(ctx) })
	wg.Go(func() {
		s.cluster.Run(ctx, func(err error) { // alongside the driver's start
			if !s.cluster.Known() {
				s.ready.set(noCluster, err)
			}
			s.counting.Doubt() // it may come back with other feature gates
		})
	})
	wg.Go(func() {
		select {
		case <-s.cluster.Recreated():
			fatal(ErrNodeRecreated)
		case <-ctx.Done():
		}
	})
	if s.labels != nil {
		wg.Go(func() { s.labels.Run(ctx, config.ReconcileEvery) })
	}
	if s.clients != nil {
		wg.Go(func() { s.clients.Run(ctx) })
	}
	wg.Go(func() { newMissingClasses(s).run(ctx) })
	wg.Go(func() { s.names.run(ctx) })
	wg.Go(func() {
		if err := s.useHardware(ctx); err != nil && ctx.Err() == nil {
			fatal(err)
		}
	})
	<-ctx.Done()
	klog.FromContext(ctx).Info("Stopping")
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// service is a running plugin: it opens, wires and closes its parts.
type service struct {
	config  Config
	metrics *metrics
	ready   readiness
	client  kubernetes.Interface
	events  *cluster.Events
	cluster *cluster.Watcher
	// labels describes the GPUs on the Node object; nil if it does not.
	labels *cluster.Labels
	// clients stops clients of GPUs by labels of the Node object; nil if the plugin may not.
	clients *cluster.Clients

	// lease is held while a plugin of this driver name is running, nodeLease while one of any name is.
	lease, nodeLease *lease
	engine           *claims.Preparer
	sessions         *driversession.Sessions
	sharing          *mps.Sharing
	smi              *smi.Tool
	holders          *holders
	mps              *mps.Client // nil without a socket
	policies         *policy.ActiveStore
	active           *policy.Active
	names            *otherNames
	// allocations tracks the allocations on the node. allocated has a value after records may have changed.
	allocations *allocations
	allocated   chan struct{}
	// claimEvents reports problems of claims.
	claimEvents *claimEvents
	// status writes device details to the status of claims.
	status *claimstatus.Writer
	// pods tracks the pods of claims with a record.
	pods       *cluster.Pods
	counting   *counting
	writes     sliceWrites
	claimSpecs *claimSpecs
	// notices tracks notices about the node's machine; nil without a source.
	notices *notices.Watcher

	loop   *controller.Loop
	driver driverFiles
	marker releaseMarker
	finder finder
	specs  specs
	health gpuHealth

	kubelet kubelet
	helper  *kubeletplugin.Helper
}

func newService(config Config) *service {
	loop := controller.New()
	s := &service{
		config: config, metrics: newMetrics(), loop: loop, allocated: make(chan struct{}, 1),
		health: newGPUHealth(config.NodeName, func() { loop.Mark(controller.Health) }),
	}
	s.finder = newFinder(func() { loop.Mark(controller.Inventory) }, s.metrics.healthy)
	s.writes.dropped = func() {
		s.counting.Doubt()
		loop.Mark(controller.Publication)
	}
	s.pods = cluster.NewPods(func(uid types.UID) bool { return s.engine.Ledger.Record(uid) != nil })
	s.metrics.used.every = config.UsageEvery
	s.metrics.build.WithLabelValues(config.Version, runtime.Version()).Set(1)
	s.specs.closed = newClosedGPU()
	s.notices = newNotices(s)
	s.driver.config, s.marker.config, s.kubelet.config = &s.config, &s.config, &s.config
	return s
}

// signal sends to a channel with a buffer of one, unless it is full.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
