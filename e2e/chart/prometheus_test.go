// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// panelsHaveData scrapes the plugin and a stand-in for dcgm-exporter while pods of all tiers run: every panel of the dashboard for
// Grafana has data, and utilisation is that of each pod's device.
func panelsHaveData(t *testing.T, ctx context.Context, tools string) {
	atEnd(t, emptyDemo)
	dcgm := &fakeExporter{}
	exporter := httptest.NewServer(dcgm)
	t.Cleanup(exporter.Close)
	plugin := podOf(t, ctx, "plugin")
	rules := find(mustRender(t, `metrics: {prometheusRule: {enabled: true, gpuPricesPerHour: {NVIDIA H100 80GB HBM3: 2.5}, openCost: true}}`),
		"PrometheusRule", "cleave").Object["spec"]
	p := startPrometheus(t, ctx, tools, plugin.Status.PodIP+":8080", exporter.Listener.Addr().String(), rules)
	p.eventually(t, ctx, `cleave_claim_duration_seconds_count{operation="prepare",outcome="ok",tier="mig"}`) // before there is any

	names := map[string]string{"whole": "gpu.cleave.dev", "part": "mig-1g.10gb.cleave.dev", "slice-1": "timeslice.cleave.dev",
		"slice-2": "timeslice.cleave.dev", "mps": "mps.cleave.dev"}
	for _, name := range []string{"whole", "part", "slice-1", "slice-2", "mps"} {
		must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{
			workload.Template(name, workload.ClaimSpec(names[name], 1)), workload.Pod(name, name)}))
		runs(t, ctx, name)
	}
	want := dcgm.utilise(t, ctx)
	if len(want) != len(names) {
		t.Fatalf("%d pods have a device in the status of their claim, want %d: %v", len(want), len(names), want)
	}
	const byPod = `cleave_claim_info * on (UUID, GPU_I_ID) group_left ()
		max by (UUID, GPU_I_ID) (DCGM_FI_DEV_GPU_UTIL or DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""} * 100)`
	p.waitByPod(t, ctx, byPod, want)
	// The other way round, for whole GPUs and partitions: labels of the target, which ServiceMonitors add, give way.
	delete(want, "slice-1")
	delete(want, "slice-2")
	delete(want, "mps")
	p.waitByPod(t, ctx, `(DCGM_FI_DEV_GPU_UTIL or DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""} * 100)
		* on (UUID, GPU_I_ID) group_left (namespace, pod) cleave_claim_info{tier=~"exclusive|mig"}`, want)
	queries := dashboardQueries(t)
	const window = "1h" // all of the test, as what is counted may have happened at its start
	for _, title := range slices.Sorted(maps.Keys(queries)) {
		p.eventually(t, ctx, strings.NewReplacer("$__rate_interval", window, "$namespace", ".*").Replace(queries[title]))
		t.Logf("%s: has data", title)
	}
	p.costs(t, ctx, queries)
	p.openCost(t, ctx)
}

// openCost asks as OpenCost does for the GPUs of its allocations (queryFmtGPUsRequested of pkg/costmodel/allocation.go, without a cluster's
// label): each pod has its part of a GPU, that of one with a series of kube-state-metrics is that one's.
func (p prometheus) openCost(t *testing.T, ctx context.Context) {
	t.Helper()
	const query = `avg(avg_over_time(kube_pod_container_resource_requests{resource="nvidia_com_gpu", container!="", container!="POD", node!=""}[1m]))
		by (container, pod, namespace, node)`
	must(t, workload.Until(ctx, "OpenCost's requests", func(ctx context.Context) (bool, string, error) {
		found, err := p.query(ctx, query)
		got := map[string]string{}
		for _, s := range found {
			got[s.Metric["pod"]] = fmt.Sprintf("%s %s %s %.3f", s.Metric["namespace"], s.Metric["node"], s.Metric["container"], s.value())
		}
		want := map[string]string{}
		// A partition has 16 of 132 multiprocessors, a share its memory of all that is allocatable.
		for pod, part := range map[string]float64{"whole": 1, "part": 16. / 132, "slice-1": .25, "slice-2": .25, "mps": .098} {
			want[pod] = fmt.Sprintf("%s node resource-claims %.3f", demo, part)
		}
		return cmp.Equal(want, got), cmp.Diff(want, got), err
	}))
}

// costs waits until the pods' namespace and the free GPUs cost together what the node's eight GPUs do: a whole GPU, a seventh of one, a
// shared one, and one by MPS.
func (p prometheus) costs(t *testing.T, ctx context.Context, queries map[string]string) {
	t.Helper()
	const panel = "Cost an hour by namespace"
	namespaces := strings.ReplaceAll(queries[panel+" (1)"], "$namespace", ".*")
	free := queries[panel+" (2)"]
	must(t, workload.Until(ctx, "the costs of namespaces", func(ctx context.Context) (bool, string, error) {
		used, err1 := p.query(ctx, namespaces)
		rest, err2 := p.query(ctx, free)
		if err := errors.Join(err1, err2); err != nil {
			return false, "", err
		}
		if len(used) != 1 || len(rest) != 1 {
			return false, fmt.Sprintf("%v, %v", used, rest), nil
		}
		sum := used[0].value() + rest[0].value()
		return used[0].Metric["namespace"] == demo && used[0].value() > 2.5*(1+1./8) && used[0].value() < 2.5*4 && math.Abs(sum-8*2.5) < .01,
			fmt.Sprintf("%v, %v", used, rest), nil
	}))
}

// dashboardQueries are the queries of the dashboard by the panel's title and their place in it.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	data := readFile(t, chartDir+"/files/dashboard.json")
	var dashboard struct {
		Panels []struct {
			Title   string                  `json:"title"`
			Targets []struct{ Expr string } `json:"targets"`
		} `json:"panels"`
	}
	must(t, json.Unmarshal(data, &dashboard))
	queries := map[string]string{}
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			queries[fmt.Sprintf("%s (%d)", p.Title, i+1)] = target.Expr
		}
	}
	return queries
}

// fakeExporter serves what dcgm-exporter does of GPUs and partitions that pods have, with its labels
// (github.com/NVIDIA/dcgm-exporter, internal/pkg/rendermetrics/render_metrics.go). DCGM reports the utilisation of partitions by
// another field than that of GPUs.
type fakeExporter struct {
	mu     sync.Mutex
	series []string
}

func (f *fakeExporter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintln(w, strings.Join(f.series, "\n"))
}

// utilise gives each device a utilisation, by the status of claims, and returns that of each pod.
func (f *fakeExporter) utilise(t *testing.T, ctx context.Context) map[string]float64 {
	t.Helper()
	byPod := map[string]float64{}
	list, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
	must(t, err)
	var series []string
	for i := range list.Items {
		claim := waitDevice(t, ctx, list.Items[i].Name)
		var d v1alpha1.DeviceStatus
		must(t, json.Unmarshal(claim.Status.Devices[0].Data.Raw, &d))
		labels := fmt.Sprintf(`gpu="0",UUID=%q,pci_bus_id="0000%s",device="nvidia0",modelName=%q,hostname="node"`,
			d.UUID, strings.ToUpper(d.PCIBusID), d.ProductName)
		util := float64(d.UUID[len(d.UUID)-1]%8) * 12.5 // which is exact, divided by 100, too
		metric, value := "DCGM_FI_DEV_GPU_UTIL", util
		if d.GPUInstance != nil {
			labels = fmt.Sprintf(`gpu="0",UUID=%q,pci_bus_id="0000%s",device="nvidia0",modelName=%q,GPU_I_PROFILE=%q,GPU_I_ID="%d",hostname="node"`,
				d.ParentUUID, strings.ToUpper(d.PCIBusID), d.ProductName, d.Profile, *d.GPUInstance)
			metric, value = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", util/100
		}
		series = append(series, fmt.Sprintf("%s{%s} %g", metric, labels, value), fmt.Sprintf("DCGM_FI_DEV_FB_USED{%s} 1024", labels))
		byPod[claim.Status.ReservedFor[0].Name] = util
	}
	slices.Sort(series)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.series = slices.Compact(series) // pods that share a GPU have one series
	return byPod
}

// waitDevice waits until a claim has its device in its status.
func waitDevice(t *testing.T, ctx context.Context, name string) *resourceapi.ResourceClaim {
	t.Helper()
	var claim *resourceapi.ResourceClaim
	must(t, workload.Until(ctx, "the status of claim "+name, func(ctx context.Context) (_ bool, _ string, err error) {
		claim, err = env.kube.ResourceV1().ResourceClaims(demo).Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(claim.Status.Devices) == 1 && len(claim.Status.ReservedFor) == 1, "no device", err
	}))
	return claim
}

// prometheus is a server that scrapes every few seconds.
type prometheus struct{ address string }

// rules are groups of them.
func startPrometheus(t *testing.T, ctx context.Context, tools, plugin, exporter string, rules any) prometheus {
	t.Helper()
	port, err := cluster.FreePort(ctx, "127.0.0.1")
	must(t, err)
	p := prometheus{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	dir := t.TempDir()
	// As the chart's PodMonitor and dcgm-exporter's ServiceMonitor have it.
	config := fmt.Sprintf(`
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: [rules.json]
scrape_configs:
  - job_name: %[1]s/cleave-plugin
    honor_labels: true
    static_configs: [{targets: [%[2]q], labels: {node: node, namespace: %[1]s, pod: cleave-plugin-x}}]
  - job_name: dcgm-exporter
    static_configs: [{targets: [%[3]q], labels: {node: node, namespace: gpu-operator, pod: dcgm-exporter-x}}]
`, namespace, plugin, exporter)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	groups, err := json.Marshal(rules) // which is YAML
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "rules.json"), groups, 0o600))
	var log bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(tools, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	command.Stdout, command.Stderr = &log, &log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("Prometheus: %s", log.String())
		}
	})
	return p
}

// sample is one of the answer of an instant query.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

func (s sample) value() float64 {
	text, _ := s.Value[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return v
}

// query makes an instant query.
func (p prometheus) query(ctx context.Context, query string) ([]sample, error) {
	status, text, err := process.Read(ctx, "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(query), "")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []sample `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return nil, fmt.Errorf("decode the answer to %s (status %d): %w", query, status, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", query, answer.Error)
	}
	return answer.Data.Result, nil
}

// eventually waits until a query has a sample that is a number.
func (p prometheus) eventually(t *testing.T, ctx context.Context, query string) {
	t.Helper()
	must(t, workload.Until(ctx, "data for "+query, func(ctx context.Context) (bool, string, error) {
		samples, err := p.query(ctx, query)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // it may be starting
		}
		return slices.ContainsFunc(samples, func(s sample) bool { return s.Value[1] != "NaN" }), fmt.Sprint(samples), nil
	}))
}

// waitByPod waits until a query has these values by the label pod.
func (p prometheus) waitByPod(t *testing.T, ctx context.Context, query string, want map[string]float64) {
	t.Helper()
	must(t, workload.Until(ctx, "the values by pod of "+query, func(ctx context.Context) (bool, string, error) {
		samples, err := p.query(ctx, query)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // series that no longer are may match twice for a while
		}
		got := map[string]float64{}
		for _, s := range samples {
			got[s.Metric["pod"]] = s.value()
		}
		diff := cmp.Diff(want, got)
		return diff == "", diff, nil
	}))
}
