// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/driver/smi"
)

// sessionFile distinguishes the driver's sessions, see pkg/driver/driversession.
const sessionFile = "driver-session.json"

// open reads the state on disk; nothing is served yet. It can be repeated.
func (s *service) open(ctx context.Context) error {
	bootID, err := s.config.bootID()
	if err != nil {
		return err
	}
	if s.nodeLease == nil {
		if s.nodeLease, err = acquire(s.config.nodeDir()); err != nil {
			return err
		}
	}
	if s.lease == nil {
		if s.lease, err = enter(ctx, &s.config); err != nil {
			return err
		}
	}
	kept, err := records.OpenStore(store.Disk{}, filepath.Join(s.config.nodeDir(), records.ClaimsDir))
	if err != nil {
		return err
	}
	s.names = newOtherNames(s)
	locks, err := claims.OpenLocks(filepath.Join(s.config.nodeDir(), locksDir))
	if err != nil {
		return err
	}
	layouts, err := records.OpenLayouts(store.Disk{}, filepath.Join(s.config.nodeDir(), records.LayoutsDir))
	if err != nil {
		return err
	}
	s.sessions, err = driversession.Open(store.Disk{}, filepath.Join(s.config.nodeDir(), sessionFile), bootID,
		os.DirFS(s.config.Sysfs), os.DirFS(s.config.Procfs))
	if err != nil {
		return err
	}
	s.openPolicy(ctx)
	s.cluster = cluster.NewWatcher(s.client, s.config.DriverName, s.config.NodeName, s.config.DaemonSet,
		func() {
			s.loop.Mark(controller.Cluster)
			s.notices.Look()
		}, s.config.PolicyLabels...)
	s.openLabels()
	s.clients = openClients(s)
	s.claimSpecs = &claimSpecs{
		dir: s.config.CDIDir, events: s.events, lack: func() bool { return claims.LackSpecs(s.engine) },
		mark: func() { s.loop.Mark(controller.ClaimSpecs) },
	}
	s.counting = &counting{
		Counting: cluster.NewCounting(s.client, s.config.DriverName, s.config.NodeName), metrics: s.metrics, events: s.events,
		changed: func() { s.loop.Mark(controller.Cluster) },
	}
	if err := s.openSharing(); err != nil {
		return err
	}
	modes, err := openModes(s)
	if err != nil {
		return err
	}
	s.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, BootID: bootID,
		Store: kept, Layouts: layouts, Locks: locks,
		Specs:    func(driver string) claims.SpecRemover { return cdi.Remover{Dir: s.config.CDIDir, Driver: driver} },
		Metadata: claimMetadata{kubelet: &s.kubelet, client: s.client, inventory: s.names.inventory},
		Sharing:  s.sharing, Modes: modes, Sessions: s.sessions, Processes: podProcesses(&s.config),
		API: cluster.Claims{Client: s.client}, Holders: s.holders.of,
		OnChange:   func() { s.loop.Mark(controller.Partitions) },
		OnAllocate: func() { s.loop.Mark(controller.Allocations); signal(s.allocated) },
		OnRelease:  s.claimEvents.released, OnSpecRestored: s.claimSpecs.restored,
	})
	s.allocations = newAllocations(s)
	s.names.find(ctx)
	if err := s.engine.Load(ctx, s.events.Warn); err != nil {
		return err
	}
	s.metrics.notices.connect(s.engine.Ledger.Allocations, s.pods.Of, s.claimEvents)
	s.metrics.usage.source.Store(&usageSource{records: s.engine.Ledger.Allocations, pods: s.pods.Of, inventory: s.names.inventory})
	return nil
}

// podProcesses finds the processes of the node's pods.
func podProcesses(c *Config) *processes.Pods {
	return processes.NewPods(c.CgroupRoot, types.UID(c.PodUID), func() []string { return metadataPlaces(c) })
}

// openPolicy reads the policy that was active when the previous plugin ended.
func (s *service) openPolicy(ctx context.Context) {
	s.policies = policy.NewActiveStore(store.Disk{}, filepath.Join(s.config.pluginDir(), policy.ActiveFile))
	var err error
	if s.active, err = s.policies.Load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Could not read the previously active policy; ignoring it")
	}
}

// openSharing sets up GPU sharing. The supervisor need not be running yet.
func (s *service) openSharing() error {
	var supervisor mps.Supervisor = noSupervisor{}
	if s.mps == nil && s.config.MPSSocket != "" {
		client, err := mps.Dial(s.config.MPSSocket)
		if err != nil {
			return fmt.Errorf("create a client of the MPS supervisor at %s: %w", s.config.MPSSocket, err)
		}
		s.mps = client
	}
	if s.mps != nil {
		supervisor = s.mps
	}
	s.smi = smi.New(s.config.driverRoots(), smi.RunProgram)
	s.holders = newHolders(deviceFiles{&s.config, s.smi}.holders)
	s.sharing = mps.NewSharing(s.config.DriverName, supervisor, s.smi)
	return nil
}
