package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
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
	s := &service{config: config, metrics: newMetrics(), registered: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.startKubeletPlugin(ctx, fatal); err != nil {
		return err
	}
	defer s.helper.Stop()
	stopHTTP, err := s.serveHTTP(ctx)
	if err != nil {
		return err
	}
	defer stopHTTP()
	klog.FromContext(ctx).Info("Serving the kubelet", "driver", config.DriverName, "node", config.NodeName)

	var wg sync.WaitGroup
	defer wg.Wait()
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
	config  Config
	metrics *metrics
	client  kubernetes.Interface
	events  *nodeEvents
	engine  *claims.Engine
	helper  *kubeletplugin.Helper
	ready   readiness
	// registered has a value after the kubelet has registered the plugin.
	registered chan struct{}
	// changed has a value after partitions, or what occupies devices, have changed.
	changed chan struct{}
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
	store, err := records.OpenStore(records.NewDisk(), filepath.Join(s.config.pluginDir(), "claims"))
	if err != nil {
		return err
	}
	locks, err := claims.OpenLocks(filepath.Join(s.config.pluginDir(), "locks"))
	if err != nil {
		return err
	}
	s.engine = claims.New(claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, bootID, store, locks,
		cdi.Remover{Dir: s.config.CDIDir, Driver: s.config.DriverName})
	s.engine.OnChange(func() { signal(s.changed) })
	if s.config.ExistingPartitions == OfferExisting {
		s.engine.OfferExisting()
	}
	return s.engine.Load(ctx, s.events.warn)
}

// restConfig sets limits under which a node full of claims is not throttled: client-go's 5 requests a second make a
// burst of pods wait for seconds.
func restConfig(c Config) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server (--kubeconfig %q; empty means the pod's service account): %w", c.Kubeconfig, err)
	}
	config.QPS, config.Burst = c.KubeQPS, c.KubeBurst
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = c.DriverName + "/" + c.NodeName
	return config, nil
}

// startKubeletPlugin opens the sockets and registers with the kubelet.
func (s *service) startKubeletPlugin(ctx context.Context, fatal context.CancelCauseFunc) error {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(s.config.DriverName),
		kubeletplugin.KubeClient(s.client),
		kubeletplugin.NodeName(s.config.NodeName),
		kubeletplugin.RegistrarDirectoryPath(s.config.RegistryDir),
		kubeletplugin.PluginDataDirectoryPath(s.config.pluginDir()),
		// Locks are per GPU and hold across processes; the helper's single lock would make all claims wait in line.
		kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false),
		kubeletplugin.GRPCInterceptor(s.noteRegistration),
	}
	if s.config.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(s.config.PodUID)))
	}
	helper, err := kubeletplugin.Start(ctx, &plugin{claims: s.engine, metrics: s.metrics, fatal: fatal}, options...)
	if err != nil {
		return fmt.Errorf("open the plugin's sockets in %s and %s: %w", s.config.pluginDir(), s.config.RegistryDir, err)
	}
	s.helper = helper
	return nil
}

// noteRegistration notices when a kubelet, which may just have started, registers the plugin.
func (s *service) noteRegistration(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, req)
	if err == nil && strings.HasSuffix(info.FullMethod, "/NotifyRegistrationStatus") {
		signal(s.registered)
	}
	return answer, err
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
		_, err := hook.Install(s.config.pluginDir())
		installed <- err
	}()
	session, err := s.openSession(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := session.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Could not end the NVML session")
		}
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	if !slices.ContainsFunc(session.Node().GPUs, func(g gpu.GPU) bool { return g.MIG.Enabled }) {
		// Without MIG mode there are no partitions to look for first, and the first publication takes a second.
		wg.Go(func() {
			if err := s.helper.PublishResources(ctx, s.resources(session)); err != nil {
				klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
			}
		})
	}
	if err := <-installed; err != nil {
		return err
	}
	if err := s.offerGPUs(ctx, session); err != nil {
		return err
	}
	s.keepUp(ctx, session)
	return nil
}

// openSession waits for the driver and says what it waits for, then says which GPUs it cannot serve.
func (s *service) openSession(ctx context.Context) (*nvml.Session, error) {
	s.metrics.waiting.Set(1)
	session, err := nvml.Wait(ctx, nvml.Options{
		DriverRoot:  s.config.driverRootHere(),
		LibraryPath: s.config.NVMLLibrary,
		Sysfs:       os.DirFS(s.config.Sysfs).(fs.ReadLinkFS),
	}, s.config.DriverRetry, func(err error) {
		s.engine.SetWaiting(err)
		s.ready.driver(err)
		s.events.warn("WaitingForDriver", err.Error())
	})
	if err != nil {
		return nil, err
	}
	s.metrics.waiting.Set(0)
	for _, problem := range session.Node().Problems {
		klog.FromContext(ctx).Error(problem.Err, "A GPU cannot be read and is not published", "index", problem.Index)
		s.events.warn("UnreadableGPU", problem.Err.Error())
	}
	s.metrics.gpus.Set(float64(len(session.Node().GPUs)))
	return session, nil
}

// offerGPUs writes the CDI spec and lets claims be prepared. It tries until it works: a driver that has just been
// loaded may lack files or device nodes for a while.
func (s *service) offerGPUs(ctx context.Context, session *nvml.Session) error {
	static, err := cdi.NewStatic(cdi.Options{
		Driver: s.config.DriverName, Dir: s.config.CDIDir,
		DriverRoot: s.config.DriverRoot, ContainerDriverRoot: s.config.driverRootHere(),
		Procfs:   os.DirFS(s.config.Procfs),
		HookPath: filepath.Join(s.config.pluginDir(), hook.Name),
	})
	if err != nil {
		return err
	}
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	for {
		err := static.Write(ctx, session.Node())
		if err == nil {
			s.engine.SetHardware(session, static)
			s.ready.driver(nil)
			klog.FromContext(ctx).Info("Claims can be prepared", "gpus", len(session.Node().GPUs),
				"driverVersion", session.Node().DriverVersion, "cdiSpec", static.Path())
			return nil
		}
		klog.FromContext(ctx).Error(err, "Claims cannot be prepared yet")
		s.engine.SetWaiting(err)
		s.ready.driver(err)
		s.events.warn("NoCDISpec", err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// slicesGoneFor is for how many seconds after a registration the slices are published again. A kubelet that starts
// deletes the slices of its node, at some time about the registration; left alone, the helper puts them back after 30 s
// (DefaultSyncDelay of k8s.io/dynamic-resource-allocation/resourceslice), and till then nothing can be scheduled.
const slicesGoneFor = 6

// startUp is when the first publication is over, informers' first lists included.
const startUp = 2 * time.Second

// watchAgain is the time after which a failed wait for events is begun anew.
const watchAgain = time.Minute

// settle is how long partitions must have stood still before the hardware is looked at again: the plugin's own
// changes cause events, too.
const settle = time.Second

// keepUp keeps hardware, records, API server and slices in line, now, every so often and after partitions changed, until
// ctx ends. Slices come after the first look at the hardware, so that a restart does not take taints away and put them
// back.
func (s *service) keepUp(ctx context.Context, session *nvml.Session) {
	p := &publisher{to: s.helper, client: s.client, driver: s.config.DriverName, pool: s.config.NodeName}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.watchMIG(ctx, session) })
	tick := time.NewTicker(s.config.ReconcileEvery)
	defer tick.Stop()
	s.engine.Recover(ctx)
	s.publish(ctx, session, p)
	s.engine.Reconcile(ctx, apiClaims{s.client})
	started := time.After(startUp)
	var settled <-chan time.Time
	refresh := time.NewTicker(time.Second)
	defer refresh.Stop()
	refreshes := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			if err := releaseStartUp(); err != nil {
				klog.FromContext(ctx).Error(err, "Could not give back the memory that the start took")
			}
		case <-s.registered:
			refreshes = slicesGoneFor
		case <-refresh.C:
			if refreshes > 0 {
				refreshes--
				p.refresh(ctx)
			}
		case <-s.changed:
			settled = time.After(settle)
		case <-settled:
			settled = nil
			s.engine.FindForeign(ctx)
			s.publish(ctx, session, p)
		case <-tick.C:
			s.engine.Reconcile(ctx, apiClaims{s.client})
			s.engine.Recover(ctx)
			s.publish(ctx, session, p)
		}
	}
}

// watchMIG reports changes of partitions until ctx ends. A wait for events may fail because of one GPU: it is begun
// anew, and until then changes are seen at the next reconcile.
func (s *service) watchMIG(ctx context.Context, session *nvml.Session) {
	again := time.NewTicker(watchAgain)
	defer again.Stop()
	for {
		err := session.WatchMIG(ctx, func() { signal(s.changed) })
		if err == nil {
			return // ctx has ended, or the driver has no such events
		}
		klog.FromContext(ctx).Error(err, "Lost the events of MIG changes for a while", "againIn", watchAgain)
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// publish brings the slices in line with hardware and records.
func (s *service) publish(ctx context.Context, session *nvml.Session, p *publisher) {
	err := p.update(ctx, s.resources(session))
	s.ready.published(err)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
	}
}

// resources are the slices as they should be now.
func (s *service) resources(session *nvml.Session) resourceslice.DriverResources {
	r := publish.Resources(session.Node(), s.config.NodeName, s.engine.Occupied()...)
	for _, existing := range s.engine.Existing() {
		publish.NameExisting(r, s.config.NodeName, existing.Device, existing.UUID)
	}
	return r
}
