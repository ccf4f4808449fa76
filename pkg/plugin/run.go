// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/driversession"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/names"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/processes"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/sharing"
)

// Run serves until ctx ends or something fails that no retry mends.
//
// The kubelet is served before the driver answers: claims can be unprepared without it. Claims are prepared and
// slices published once it does.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	s := &service{
		config: config, metrics: newMetrics(), changed: make(chan struct{}, 1),
		outside: make(chan struct{}, 1), ranking: newRanking(),
		health: newGPUHealth(config.NodeName), finder: newFinder(),
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	stopHTTP, err := s.serveHTTP(ctx) // first, as /readyz says what is waited for
	if err != nil {
		return err
	}
	defer stopHTTP()
	if err := s.persist(ctx, func() error { return s.open(ctx) }); err != nil {
		return nil // ctx has ended
	}
	defer s.leave(ctx)
	if !s.withoutNamesake(ctx) {
		return nil
	}
	if err := s.persist(ctx, func() error { return s.startKubeletPlugin(ctx, fatal) }); err != nil {
		return nil // ctx has ended
	}
	defer s.helper.Stop()
	klog.FromContext(ctx).Info("Serving the kubelet", "driver", config.DriverName, "node", config.NodeName)
	s.ready.cluster(fmt.Errorf("there is no Node %s yet", config.NodeName))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.terminating.run(ctx) })
	wg.Go(func() {
		s.around.follow(ctx, func(err error) { // beside the driver's start
			if !s.around.isKnown() {
				s.ready.cluster(err)
			}
		})
	})
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

// service is one running plugin.
type service struct {
	config   Config
	presence *presence
	// node is the mark of a plugin of any driver name.
	node    *presence
	names   *otherNames
	metrics *metrics
	client  kubernetes.Interface
	events  *nodeEvents
	// terminating reports claims that cannot be unprepared.
	terminating *terminating
	engine      *claims.Preparer
	sessions    *driversession.Sessions
	around      *surroundings
	// supervisor, policy and conflict are only touched by the goroutine that keeps things in line.
	supervisor supervisor
	policy     livePolicy
	conflict   error // who else hands out the node's GPUs; nil while nobody does
	// uncut tells which GPUs are not cut as the policy wants, and why; empty where all are.
	uncut string
	// draining tells that the driver is let go of; tellsLoaded that procfs says whether it is loaded. So are they.
	draining, tellsLoaded bool
	library               string // where the driver's library was found last
	found                 string // the driver's root as this process sees it, while the driver is used
	helper                *kubeletplugin.Helper
	ready                 readiness
	// registered is when the kubelet registered the plugin last, in nanoseconds since 1970.
	registered atomic.Int64
	// changed has a value after partitions, or what occupies devices, have changed.
	changed chan struct{}
	// outside has a value after what comes from outside may have changed: the Node object, slices of other drivers, policy
	// files.
	outside chan struct{}
	ranking ranking
	lists   lists
	spec    staticSpec
	sharing *sharing.Sharing
	health  gpuHealth
	finder  finder
	// unreadable are the errors of GPUs that were reported as such; only touched by the goroutine that keeps things in line.
	unreadable []string
}

// open reads what is on disk; nothing is served yet. It can be repeated.
func (s *service) open(ctx context.Context) error {
	bootID, err := s.config.bootID()
	if err != nil {
		return err
	}
	if s.node == nil {
		if s.node, err = enter(s.config.nodeDir()); err != nil {
			return err
		}
	}
	if s.presence == nil {
		if s.presence, err = enter(s.config.pluginDir()); err != nil {
			return err
		}
	}
	store, err := records.OpenStore(records.NewDisk(), filepath.Join(s.config.pluginDir(), claimsDir))
	if err != nil {
		return err
	}
	s.names = newOtherNames(s, bootID)
	locks, err := s.openLocks()
	if err != nil {
		return err
	}
	layouts, err := records.OpenLayouts(records.NewDisk(), filepath.Join(s.config.pluginDir(), layoutsDir))
	if err != nil {
		return err
	}
	s.sessions, err = driversession.Open(records.NewDisk(), filepath.Join(s.config.nodeDir(), sessionFile), bootID, os.DirFS(s.config.Sysfs), os.DirFS(s.config.Procfs))
	if err != nil {
		return err
	}
	s.openPolicy(ctx)
	s.around = newSurroundings(s.client, s.config.DriverName, s.config.NodeName, func() { signal(s.outside) })
	s.around.daemonSet = s.config.DaemonSet
	if err := s.openSharing(); err != nil {
		return err
	}
	s.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, BootID: bootID,
		Store: store, Layouts: layouts, Locks: locks, Specs: cdi.Remover{Dir: s.config.CDIDir, Driver: s.config.DriverName},
		Sharing: s.sharing, Sessions: s.sessions, Processes: processes.Host(), API: apiClaims{s.client},
		OnChange: func() { signal(s.changed) }, OnAllocate: func() { signal(s.ranking.changed) }, OnOtherProcess: s.names.find,
	})
	s.names.find(ctx)
	return s.engine.Load(ctx, s.events.warn)
}

// openLocks opens the locks that plugins of all driver names and releases have in common.
func (s *service) openLocks() (*claims.Locks, error) {
	if err := os.MkdirAll(filepath.Join(s.config.pluginDir(), names.Locks), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for GPU locks: %w", err)
	}
	locks, err := claims.OpenNodeLocks(filepath.Join(s.config.nodeDir(), names.Locks), s.names.lockDirs)
	s.names.locks = locks
	return locks, err
}

// openSharing lets claims share GPUs. The supervisor need not be there yet.
func (s *service) openSharing() error {
	var supervisor sharing.Supervisor = noSupervisor{}
	if s.supervisor.client != nil {
		supervisor = s.supervisor.client
	} else if s.config.MPSSocket != "" {
		client, err := mps.Dial(s.config.MPSSocket)
		if err != nil {
			return fmt.Errorf("make a client of the MPS supervisor at %s: %w", s.config.MPSSocket, err)
		}
		s.supervisor.client, supervisor = client, client
	}
	s.sharing = sharing.New(s.config.DriverName, supervisor, s.config.driverRoots(), sharing.RunProgram)
	return nil
}

// signal puts a value into a channel that holds one, unless it is there already.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// useHardware waits for the driver, lets claims be prepared, publishes what it finds, and keeps all of it in line until
// ctx ends.
func (s *service) useHardware(ctx context.Context) error {
	installed := make(chan error, 1)
	go func() { // some tens of milliseconds, beside the driver's start
		installed <- s.persist(ctx, func() (err error) {
			s.spec.hook, err = s.installHook(ctx)
			return err
		})
	}()
	if err := s.waitForLabel(ctx); err != nil {
		return err
	}
	session, err := s.openSession(ctx)
	if err != nil {
		return err
	}
	hw := &hardware{Session: session, policy: s.policy.rules(), held: s.engine.AllRecords, standing: s.engine.Partitions.Unclaimed, look: s.finder.now}
	defer hw.end(ctx)
	if hw.limits, err = s.memoryLimits(ctx, session); err != nil {
		return err
	}
	if hw.noShares, err = askShares(ctx, s.client.Discovery().RESTClient(), s.config.DriverRetry); err != nil {
		return err
	}
	if hw.noShares != nil {
		klog.FromContext(ctx).Info("Time slices and MPS are switched off", "reason", hw.noShares.Error())
	}
	s.supervisor.offered = slices.ContainsFunc(s.engine.AllRecords(), func(r *records.Record) bool {
		return slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return !d.Share.Exclusive })
	})
	s.supervisor.ask(ctx)
	hw.offer(s.supervisor.noMPS()) // by the policy that was in force when the plugin ended
	if err := s.around.wait(ctx); err != nil {
		return err
	}
	s.ready.cluster(nil)
	s.names.useHardware(hw)
	if err := s.names.wait(ctx); err != nil {
		return err
	}
	s.lookOutside(ctx, hw, false)
	s.lists.ask(ctx, s.client, s.config)
	endHealth := s.watchHealth(ctx, hw) // before the first publication, so that a restart does not take taints away
	defer endHealth()
	p := s.newPublisher()
	publishing, endPublishing := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer endPublishing()
	wg.Go(func() { p.run(publishing) })
	if err := <-installed; err != nil {
		return err
	}
	if err := s.offerGPUs(ctx, hw); err != nil {
		return err
	}
	if !slices.ContainsFunc(session.Node().GPUs, func(g gpu.GPU) bool { return g.MIG.Enabled }) {
		// Without MIG mode there are no partitions to look for first, and the first publication takes a second. It does not
		// come before claims can be prepared, nor without the taints of GPUs that containers cannot be given.
		s.publish(hw, p)
	}
	keep, endSpec := context.WithCancel(ctx)
	defer endSpec()
	wg.Go(func() { s.keepSpec(keep, hw) })
	why := s.keepUp(ctx, hw, p)
	if why == nil {
		return nil
	}
	endSpec()
	endHealth()
	return s.letGo(ctx, hw, p, why)
}

// openSession waits for the driver and says what it waits for, then says which GPUs it cannot serve.
func (s *service) openSession(ctx context.Context) (*nvml.Session, error) {
	s.metrics.waiting.Set(1)
	session, err := nvml.Wait(ctx, s.whereDriver(), s.config.DriverRetry, func(err error) {
		s.engine.SetWaiting(err)
		s.ready.driver(err)
		s.events.warn("WaitingForDriver", err.Error())
	})
	if errors.Is(err, nvml.ErrOtherLibrary) {
		klog.FromContext(ctx).Info("Starting anew", "reason", err.Error())
		return nil, ErrDriverBack
	}
	if err != nil {
		return nil, err
	}
	s.metrics.waiting.Set(0)
	s.found = session.DriverRoot()
	s.sharing.Found(s.driverRoot(session))
	s.noteLoaded()
	if err := s.sessions.Begin(deviceNames(session.Node())); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	s.tellProblems(ctx, session.Node())
	s.metrics.gpus.Set(float64(len(session.Node().GPUs)))
	return session, nil
}

// whereDriver says where to look for the driver.
func (s *service) whereDriver() nvml.Options {
	roots := driverroot.Here(s.config.driverRoots())
	return nvml.Options{
		DriverRoot:  roots[0],
		OtherRoots:  roots[1:],
		Probe:       nvml.ProbeLibrary,
		LibraryPath: s.config.NVMLLibrary,
		Sysfs:       os.DirFS(s.config.Sysfs).(fs.ReadLinkFS),
	}
}

// driverRoot is where the driver was found.
func (s *service) driverRoot(session *nvml.Session) driverroot.Root {
	roots := s.config.driverRoots()
	for _, r := range roots {
		if r.Here == session.DriverRoot() {
			return r
		}
	}
	return roots[0]
}
