package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

// readiness is what /readyz tells.
type readiness struct {
	mu         sync.Mutex
	nameErr    error
	driverErr  error
	driverOK   bool
	clusterErr error
	policyErr  error
	besideErr  error
	publishErr error
	publishOK  bool
}

// namesake says that another driver of the same name is there.
func (r *readiness) namesake(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nameErr = err
}

func (r *readiness) driver(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.driverErr, r.driverOK = err, err == nil
}

// cluster says why it is not known yet what the API server has on the node.
func (r *readiness) cluster(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clusterErr = err
}

// policy says why no policy is in force.
func (r *readiness) policy(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policyErr = err
}

// beside says who else hands out GPUs of the node.
func (r *readiness) beside(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.besideErr = err
}

func (r *readiness) published(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishErr, r.publishOK = err, err == nil
}

// err is nil once claims can be prepared and slices are being published.
func (r *readiness) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.nameErr != nil:
		return fmt.Errorf("nothing is served: %w", r.nameErr)
	case r.driverErr != nil:
		return fmt.Errorf("waiting for the NVIDIA driver: %w", r.driverErr)
	case r.clusterErr != nil:
		return fmt.Errorf("waiting for the API server: %w", r.clusterErr)
	case r.policyErr != nil:
		return fmt.Errorf("waiting for a node policy that can be used: %w", r.policyErr)
	case r.besideErr != nil:
		return fmt.Errorf("the node's GPUs are not published: %w", r.besideErr)
	case !r.driverOK:
		return errors.New("waiting for the NVIDIA driver")
	case r.publishErr != nil:
		return fmt.Errorf("publish ResourceSlices: %w", r.publishErr)
	case !r.publishOK:
		return errors.New("publishing ResourceSlices")
	}
	return nil
}

// serveHTTP serves metrics and health; stop ends it and waits.
func (s *service) serveHTTP(ctx context.Context) (stop func(), err error) {
	if s.config.MetricsAddress == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.config.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics and health on --metrics-address %s: %w", s.config.MetricsAddress, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "The metrics server ended")
		}
	})
	return func() {
		_ = server.Close()
		wg.Wait()
	}, nil
}

// serveReady is 200 once claims can be prepared, slices are being published and the kubelet knows the plugin.
func (s *service) serveReady(w http.ResponseWriter, _ *http.Request) {
	err := s.ready.err()
	if err == nil {
		if status := s.helper.RegistrationStatus(); status == nil {
			err = errors.New("waiting for the kubelet to register the plugin")
		} else if !status.PluginRegistered {
			err = fmt.Errorf("the kubelet refused the plugin: %s", status.Error)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
