// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

func TestReadiness_Missing(t *testing.T) {
	noLibrary, refused := errors.New("libnvidia-ml.so.1 not found under /"), errors.New("connection refused")
	ready := func(r *readiness) { r.set(noDriver, nil); r.set(notPublished, nil) }
	tests := map[string]struct {
		events func(r *readiness)
		want   string // empty: ready
	}{
		"at start":                   {func(*readiness) {}, "waiting for the NVIDIA driver"},
		"name conflict":              {func(r *readiness) { ready(r); r.set(nameTaken, refused) }, "nothing is served: " + refused.Error()},
		"driver awaited":             {func(r *readiness) { r.set(noDriver, noLibrary) }, "waiting for the NVIDIA driver: " + noLibrary.Error()},
		"driver there":               {func(r *readiness) { r.set(noDriver, noLibrary); r.set(noDriver, nil) }, "publishing ResourceSlices"},
		"published before CDI":       {func(r *readiness) { r.set(notPublished, nil) }, "waiting for the NVIDIA driver"},
		"publishing failed":          {func(r *readiness) { r.set(noDriver, nil); r.set(notPublished, refused) }, "publish ResourceSlices: " + refused.Error()},
		"both":                       {func(r *readiness) { r.set(noDriver, nil); r.set(notPublished, nil) }, ""},
		"Node not read":              {func(r *readiness) { r.set(noCluster, refused) }, "waiting for the API server: " + refused.Error()},
		"no policy":                  {func(r *readiness) { ready(r); r.set(noPolicy, refused) }, "waiting for a valid node policy: " + refused.Error()},
		"alongside another":          {func(r *readiness) { ready(r); r.set(conflicting, refused) }, "the node's GPUs are not published: " + refused.Error()},
		"driver went away":           {func(r *readiness) { r.set(noDriver, nil); r.set(notPublished, nil); r.set(noDriver, noLibrary) }, noLibrary.Error()},
		"the driver is named before": {func(r *readiness) { r.set(notPublished, refused); r.set(noDriver, noLibrary) }, noLibrary.Error()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := &readiness{}
			tt.events(r)
			err := r.err()
			if tt.want == "" {
				if err != nil {
					t.Errorf("got %v, want ready", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error that says %q", err, tt.want)
			}
		})
	}
}

// takenPort is a port of this machine that somebody has until it is freed.
func takenPort(t *testing.T) (address string, free func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), func() { _ = l.Close() }
}

// serveHTTP serves metrics and health at an address until the test ends.
func serveHTTP(t *testing.T, address string, retry time.Duration) (*httpServer, *record.FakeRecorder) {
	t.Helper()
	recorder := record.NewFakeRecorder(10)
	s := &httpServer{address: address, retry: retry, metrics: newMetrics(), ready: &readiness{}, events: cluster.NewEventsWith(recorder, "n"),
		registration: func() *registerapi.RegistrationStatus { return &registerapi.RegistrationStatus{PluginRegistered: true} }}
	stop, err := s.serve(t.Context())
	if err != nil {
		t.Fatalf("got %v, want the port to be waited for", err)
	}
	t.Cleanup(stop)
	return s, recorder
}

// The plugin before may still have the port, in a rolling update on the host's network. Claims are served meanwhile.
func TestServeHTTP_PortInUse(t *testing.T) {
	address, free := takenPort(t)
	_, recorder := serveHTTP(t, address, time.Millisecond)
	if event := <-recorder.Events; !strings.Contains(event, reasonStart) || !strings.Contains(event, "--metrics-address "+address) {
		t.Errorf("got Event %q, want one that names --metrics-address", event)
	}
	free()
	for status(t, address+"/healthz") != http.StatusOK {
		if t.Context().Err() != nil {
			t.Fatal("the port is free and not served")
		}
	}
}

func TestServeHTTP_StopsWhileThePortIsInUse(t *testing.T) {
	address, free := takenPort(t)
	t.Cleanup(free)
	serveHTTP(t, address, time.Hour)
}

func TestServeHTTP_NoAddress(t *testing.T) {
	stop, err := (&httpServer{metrics: newMetrics()}).serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop()
}

// The plugin lives while it waits for a driver: a liveness probe that failed then would restart it for nothing.
func TestHealthz_AwaitingDriver(t *testing.T) {
	address, free := takenPort(t)
	free()
	s, _ := serveHTTP(t, address, 0)
	check := func(ready string, paths map[string]int) {
		t.Helper()
		for path, want := range paths {
			if got := status(t, address+path); got != want {
				t.Errorf("%s: got %d, want %d", path, got, want)
			}
		}
		if want := "cleave_ready{} " + ready; !slices.Contains(series(t, s.metrics.registry), want) {
			t.Errorf("want %s among the metrics", want)
		}
	}
	check("0", map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200, "/": 404})
	s.ready.set(noDriver, nil)
	s.ready.set(notPublished, nil)
	check("1", map[string]int{"/healthz": 200, "/readyz": 200})
}

// scrape is a collector that takes as long as the test wants.
type scrape struct{ begun, done chan struct{} }

func (scrape) Describe(to chan<- *prometheus.Desc) { to <- scrapeDesc }

func (s scrape) Collect(to chan<- prometheus.Metric) {
	s.begun <- struct{}{}
	<-s.done
	to <- prometheus.MustNewConstMetric(scrapeDesc, prometheus.GaugeValue, 1)
}

var scrapeDesc = prometheus.NewDesc("test_scrape", "Of this test.", nil, nil)

// Whoever reaches the port and asks for metrics without end keeps neither the plugin busy nor the kubelet from asking how it is.
func TestServeHTTP_Flood(t *testing.T) {
	address, free := takenPort(t)
	free()
	slow := scrape{make(chan struct{}), make(chan struct{})}
	s, _ := serveHTTP(t, address, 0)
	s.metrics.registry.MustRegister(slow)
	answers := make(chan int, maxScrapes)
	for range maxScrapes {
		go func() { answers <- status(t, address+"/metrics") }()
		<-slow.begun
	}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 503} {
		if got := status(t, address+path); got != want {
			t.Errorf("%s in a flood: got %d, want %d", path, got, want)
		}
	}
	close(slow.done)
	for range maxScrapes {
		if got := <-answers; got != 200 {
			t.Errorf("got %d, want 200", got)
		}
	}
}

// Whoever reaches the port learns names of claims, pods and namespaces from the metrics that are for them
// (metrics.allowFrom), and nothing that a claim's author wrote.
func TestMetrics_NamesOfTenants(t *testing.T) {
	m := newMetrics()
	descriptions := make(chan *prometheus.Desc, 100)
	m.usage.Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		for _, label := range []string{"namespace", "pod", "claim"} {
			_, labels, _ := strings.Cut(d.String(), "variableLabels")
			of := strings.Contains(d.String(), `"cleave_claim_info"`) || strings.Contains(d.String(), `"cleave_claim_allocated_ratio"`)
			if !of && strings.Contains(labels, label) {
				t.Errorf("a metric has a label of tenants: %s", d)
			}
		}
	}
	m.observe(prepareOperation, "gpu", "claim-uid", time.Second, errors.New("claim team-a/secret-project: no"))
	m.healthy.WithLabelValues("gpu-0000-1b-00-0").Set(1)
	m.policyIs("training", true)
	families, err := m.registry.Gather()
	if err != nil || len(families) < 10 {
		t.Fatalf("got %d metrics, %v", len(families), err)
	}
	allowed := []string{"operation", "outcome", "tier", "reason", "kind", "gpu", "xid", "policy", "version", "goversion"}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if !slices.Contains(allowed, l.GetName()) || strings.Contains(l.GetValue(), "claim-uid") || strings.Contains(l.GetValue(), "team-a") {
					t.Errorf("%s has the label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
}

// status is the answer to a question; 0 without one.
func status(t *testing.T, url string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
