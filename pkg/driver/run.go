package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/nvml"
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
		config: config, metrics: newMetrics(), registered: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		outside: make(chan struct{}, 1), ranking: newRanking(),
		health: newGPUHealth(config.NodeName),
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	defer s.leave(ctx)
	stopHTTP, err := s.serveHTTP(ctx)
	if err != nil {
		return err
	}
	defer stopHTTP()
	if !s.withoutNamesake(ctx) {
		return nil
	}
	if err := s.startKubeletPlugin(ctx, fatal); err != nil {
		return err
	}
	defer s.helper.Stop()
	klog.FromContext(ctx).Info("Serving the kubelet", "driver", config.DriverName, "node", config.NodeName)
	s.ready.cluster(fmt.Errorf("there is no Node %s yet", config.NodeName))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		s.around.follow(ctx, func(err error) { // beside the driver's start
			if !s.around.isKnown() {
				s.ready.cluster(err)
			}
		})
	})
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
	metrics  *metrics
	client   kubernetes.Interface
	events   *nodeEvents
	engine   *claims.Engine
	around   *surroundings
	// supervisor, policy and conflict are only touched by the goroutine that keeps things in line.
	supervisor supervisor
	policy     livePolicy
	conflict   error // who else hands out the node's GPUs; nil while nobody does
	// uncut tells which GPUs are not cut as the policy wants, and why; empty where all are.
	uncut string
	// draining tells that the driver is let go of; tellsLoaded that procfs says whether it is loaded. So are they.
	draining, tellsLoaded bool
	library               string // where the driver's library was found last
	helper                *kubeletplugin.Helper
	ready                 readiness
	// registered has a value after the kubelet has registered the plugin.
	registered chan struct{}
	// changed has a value after partitions, or what occupies devices, have changed.
	changed chan struct{}
	// outside has a value after what comes from outside may have changed: the Node object, slices of other drivers, policy
	// files.
	outside chan struct{}
	ranking ranking
	lists   lists
	health  gpuHealth
}

// open reads what is on disk and connects to the API server; nothing is served yet.
func (s *service) open(ctx context.Context) error {
	restConfig, err := restConfig(s.config)
	if err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(restConfig); err != nil {
		return fmt.Errorf("make a client for the API server: %w", err)
	}
	s.events = newNodeEvents(ctx, s.client, s.config.DriverName, s.config.NodeName)
	bootID, err := s.config.bootID()
	if err != nil {
		return err
	}
	if s.presence, err = enter(s.config.pluginDir()); err != nil {
		return err
	}
	store, err := records.OpenStore(records.NewDisk(), filepath.Join(s.config.pluginDir(), claimsDir))
	if err != nil {
		return err
	}
	locks, err := claims.OpenLocks(filepath.Join(s.config.pluginDir(), "locks"))
	if err != nil {
		return err
	}
	s.engine = claims.New(claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, bootID, store, locks,
		cdi.Remover{Dir: s.config.CDIDir, Driver: s.config.DriverName})
	layouts, err := records.OpenLayouts(records.NewDisk(), filepath.Join(s.config.pluginDir(), layoutsDir))
	if err != nil {
		return err
	}
	s.engine.KeepLayoutsIn(layouts)
	s.openPolicy(ctx)
	s.around = newSurroundings(s.client, s.config.DriverName, s.config.NodeName, func() { signal(s.outside) })
	if err := s.openSharing(); err != nil {
		return err
	}
	s.engine.OnChange(func() { signal(s.changed) })
	s.engine.OnHeld(func() { signal(s.ranking.changed) })
	return s.engine.Load(ctx, s.events.warn)
}

// openSharing lets claims share GPUs. The supervisor need not be there yet.
func (s *service) openSharing() error {
	var supervisor sharing.Supervisor = noSupervisor{}
	if s.config.MPSSocket != "" {
		client, err := mps.Dial(s.config.MPSSocket)
		if err != nil {
			return fmt.Errorf("make a client of the MPS supervisor at %s: %w", s.config.MPSSocket, err)
		}
		s.supervisor.client, supervisor = client, client
	}
	s.engine.Share(sharing.New(supervisor, nvml.Here(s.config.driverRoots()), sharing.InRoot))
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
		_, err := hook.Install(s.config.pluginDir(), hook.NVIDIA)
		installed <- err
	}()
	if err := s.waitForLabel(ctx); err != nil {
		return err
	}
	session, err := s.openSession(ctx)
	if err != nil {
		return err
	}
	hw := &hardware{Session: session, policy: s.policy.rules(), held: s.engine.Records, standing: s.engine.Standing}
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
	s.supervisor.offered = slices.ContainsFunc(s.engine.Records(), func(r *records.Record) bool {
		return slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return !d.Share.Exclusive })
	})
	s.supervisor.ask(ctx)
	hw.offer(s.supervisor.noMPS()) // by the policy that was in force when the plugin ended
	if err := s.around.wait(ctx); err != nil {
		return err
	}
	s.ready.cluster(nil)
	s.lookOutside(ctx, hw, false)
	s.lists.ask(ctx, s.client, s.config)
	endHealth := s.watchHealth(ctx, hw) // before the first publication, so that a restart does not take taints away
	defer endHealth()
	var wg sync.WaitGroup
	defer wg.Wait()
	if !slices.ContainsFunc(session.Node().GPUs, func(g gpu.GPU) bool { return g.MIG.Enabled }) {
		// Without MIG mode there are no partitions to look for first, and the first publication takes a second.
		first := s.resources(s.view(hw))
		wg.Go(func() {
			if err := s.helper.PublishResources(ctx, first); err != nil {
				klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
			}
		})
	}
	if err := <-installed; err != nil {
		return err
	}
	p := &publisher{to: s.helper, client: s.client, driver: s.config.DriverName, pool: s.config.NodeName}
	why, err := s.offerGPUs(ctx, hw)
	if err != nil {
		return err
	}
	if why == nil {
		why = s.keepUp(ctx, hw, p)
	}
	if why == nil {
		return nil
	}
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
	if err != nil {
		return nil, err
	}
	s.metrics.waiting.Set(0)
	s.noteLoaded()
	for _, problem := range session.Node().Problems {
		klog.FromContext(ctx).Error(problem.Err, "A GPU cannot be read and is not published", "index", problem.Index)
		s.events.warn("UnreadableGPU", problem.Err.Error())
	}
	s.metrics.gpus.Set(float64(len(session.Node().GPUs)))
	return session, nil
}

// whereDriver says where to look for the driver.
func (s *service) whereDriver() nvml.Options {
	roots := nvml.Here(s.config.driverRoots())
	return nvml.Options{
		DriverRoot:  roots[0],
		OtherRoots:  roots[1:],
		LibraryPath: s.config.NVMLLibrary,
		Sysfs:       os.DirFS(s.config.Sysfs).(fs.ReadLinkFS),
	}
}

// driverRoot is where the driver was found.
func (s *service) driverRoot(session *nvml.Session) nvml.Root {
	roots := s.config.driverRoots()
	for _, r := range roots {
		if r.Here == session.DriverRoot() {
			return r
		}
	}
	return roots[0]
}

// offerGPUs writes the CDI spec and lets claims be prepared. It tries until it works: a driver that has just been
// loaded may lack files or device nodes for a while. It gives up with the reason why the driver is to be let go of.
func (s *service) offerGPUs(ctx context.Context, hw *hardware) (why, err error) {
	root := s.driverRoot(hw.Session)
	static, err := cdi.NewStatic(cdi.Options{
		Driver: s.config.DriverName, Dir: s.config.CDIDir,
		DriverRoot: root.Host, ContainerDriverRoot: root.Here,
		Procfs:         os.DirFS(s.config.Procfs),
		HookPath:       filepath.Join(s.config.pluginDir(), hook.NVIDIA),
		MemoryHookPath: filepath.Join(s.config.pluginDir(), hook.MemoryLimit),
	})
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	for {
		err := static.Write(ctx, hw.Node())
		if err == nil {
			s.engine.SetHardware(hw, static)
			s.ready.driver(nil)
			klog.FromContext(ctx).Info("Claims can be prepared", "gpus", len(hw.Node().GPUs),
				"driverVersion", hw.Node().DriverVersion, "driverRoot", root.Host, "cdiSpec", static.Path())
			return nil, nil
		}
		if why := s.mustLetGo(); why != nil {
			return why, nil
		}
		klog.FromContext(ctx).Error(err, "Claims cannot be prepared yet")
		s.engine.SetWaiting(err)
		s.ready.driver(err)
		s.events.warn("NoCDISpec", err.Error())
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}
