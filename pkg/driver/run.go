package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/claims"
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
	s := &service{config: config, metrics: newMetrics()}
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
	store, err := records.OpenStore(records.Disk{}, filepath.Join(s.config.pluginDir(), "claims"))
	if err != nil {
		return err
	}
	locks, err := claims.OpenLocks(filepath.Join(s.config.pluginDir(), "locks"))
	if err != nil {
		return err
	}
	s.engine = claims.New(claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, bootID, store, locks)
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

// useHardware waits for the driver, publishes what it finds, lets claims be prepared, and reconciles until ctx ends.
func (s *service) useHardware(ctx context.Context) error {
	installed := make(chan error, 1)
	go func() { // some tens of milliseconds, beside the driver's start
		_, err := hook.Install(s.config.pluginDir())
		installed <- err
	}()
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
		return err
	}
	defer func() {
		if err := session.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Could not end the NVML session")
		}
	}()
	s.metrics.waiting.Set(0)
	node := session.Node()
	for _, problem := range node.Problems {
		klog.FromContext(ctx).Error(problem.Err, "A GPU cannot be read and is not published", "index", problem.Index)
		s.events.warn("UnreadableGPU", problem.Err.Error())
	}
	s.metrics.gpus.Set(float64(len(node.GPUs)))
	var wg sync.WaitGroup
	defer wg.Wait()
	// The first publication waits for an informer; claims need not.
	wg.Go(func() { s.publish(ctx, session) })
	if err := <-installed; err != nil {
		return err
	}
	if err := s.offerGPUs(ctx, session); err != nil {
		return err
	}
	s.reconcile(ctx)
	return nil
}

// offerGPUs writes the CDI spec and lets claims be prepared. It tries until it works: a driver that has just been
// loaded may lack files or device nodes for a while.
func (s *service) offerGPUs(ctx context.Context, session *nvml.Session) error {
	static, err := cdi.NewStatic(cdi.Options{
		Driver: s.config.DriverName, Dir: s.config.CDIDir,
		DriverRoot: s.config.DriverRoot, ContainerDriverRoot: s.config.driverRootHere(),
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

func (s *service) publish(ctx context.Context, session *nvml.Session) {
	if err := s.helper.PublishResources(ctx, publish.Resources(session.Node(), s.config.NodeName)); err != nil {
		s.ready.published(err)
		klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
		return
	}
	s.ready.published(nil)
	klog.FromContext(ctx).Info("Publishing ResourceSlices", "pool", s.config.NodeName)
}

// reconcile compares records with the API server now and every so often, until ctx ends.
func (s *service) reconcile(ctx context.Context) {
	tick := time.NewTicker(s.config.ReconcileEvery)
	defer tick.Stop()
	for {
		s.engine.Reconcile(ctx, apiClaims{s.client})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
