// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// obstacle is what keeps the plugin from being ready, as /readyz names it.
type obstacle string

const (
	notStarted   obstacle = "the plugin cannot start yet"
	nameTaken    obstacle = "nothing is served" // another driver of the same name is on the node
	noDriver     obstacle = "waiting for the NVIDIA driver"
	noCluster    obstacle = "waiting for the API server"
	notListed    obstacle = "waiting for the API server: the allocations on the node are not known"
	noPolicy     obstacle = "waiting for a valid node policy"
	conflicting  obstacle = "the node's GPUs are not published" // another driver or device plugin offers them
	notPublished obstacle = "publish ResourceSlices"
)

// readiness is the state that /readyz reports.
type readiness struct {
	mu   sync.Mutex
	errs map[obstacle]error
}

// set sets the error of an obstacle; nil once it is out of the way.
func (r *readiness) set(of obstacle, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.errs == nil {
		r.errs = map[obstacle]error{}
	}
	r.errs[of] = err
}

// err is nil once claims can be prepared and slices are being published.
func (r *readiness) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	publish, tried := r.errs[notPublished]
	published := tried && publish == nil
	for _, of := range []obstacle{notStarted, nameTaken, noDriver, noCluster, notListed, noPolicy, conflicting} {
		if err := r.errs[of]; err != nil && (of != notListed || !published) {
			return fmt.Errorf("%s: %w", of, err)
		}
	}
	if _, asked := r.errs[noDriver]; !asked {
		return errors.New("waiting for the NVIDIA driver")
	}
	if publish != nil {
		return fmt.Errorf("%s: %w", notPublished, publish)
	}
	if !tried {
		return errors.New("publishing ResourceSlices")
	}
	return nil
}

// maxScrapes bounds the concurrent scrapes that anyone who reaches the port can cause. Health is not limited, as the kubelet asks for it.
const maxScrapes = 4

// httpServer serves metrics and health.
type httpServer struct {
	address string // empty for none
	retry   time.Duration
	metrics *metrics
	ready   *readiness
	events  *cluster.Events
	// registration returns the kubelet's answer to the registration; nil before.
	registration func() *registerapi.RegistrationStatus
}

// serve serves until stop, which waits. If the previous plugin still has the port, claims need not wait for it.
func (s *httpServer) serve(ctx context.Context) (stop func(), err error) {
	if s.address == "" {
		return func() {}, nil
	}
	s.metrics.unready = s.unready
	ctx, cancel := context.WithCancel(ctx)
	listener, inUse := s.listen(ctx)
	if inUse != nil && !errors.Is(inUse, syscall.EADDRINUSE) {
		cancel()
		return nil, inUse
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if listener == nil {
			if listener = s.awaitPort(ctx, inUse); listener == nil {
				return
			}
		}
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "The metrics server ended")
		}
	})
	return func() {
		cancel()
		_ = server.Close()
		wg.Wait()
	}, nil
}

func (s *httpServer) listen(ctx context.Context) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics and health on --metrics-address %s: %w", s.address, err)
	}
	return listener, nil
}

// awaitPort returns once the port is free; nil if ctx ends before.
func (s *httpServer) awaitPort(ctx context.Context, why error) net.Listener {
	klog.FromContext(ctx).Error(why, "Metrics and health are not served yet; retrying", "retryEvery", s.retry)
	s.events.Warn(reasonStart, fmt.Sprintf("The plugin serves neither metrics nor health yet: %v. It retries every %s.", why, s.retry))
	tick := time.NewTicker(s.retry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if listener, err := s.listen(ctx); err == nil {
			return listener
		}
	}
}

// serveReady returns 200 once the plugin is ready.
func (s *httpServer) serveReady(w http.ResponseWriter, _ *http.Request) {
	if err := s.unready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// unready is nil once claims can be prepared, slices are being published and the kubelet has registered the plugin.
func (s *httpServer) unready() error {
	if err := s.ready.err(); err != nil {
		return err
	}
	switch status := s.registration(); {
	case status == nil:
		return errors.New("waiting for the kubelet to register the plugin")
	case !status.PluginRegistered:
		return fmt.Errorf("the kubelet refused the plugin: %s", status.Error)
	}
	return nil
}
