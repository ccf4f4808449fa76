// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Plugins are those of a cluster, which are asked for the most that they have seen.
type Plugins struct {
	Driver string
	// Pods are those of the plugins, PluginSelector selects them.
	Pods []*corev1.Pod
	// Get reads a page of a pod.
	Get func(ctx context.Context, namespace, pod string, port int32, path string) ([]byte, error)
}

// PluginSelector selects the pods of the chart's plugins in their namespace.
const PluginSelector = "app.kubernetes.io/component=plugin"

const (
	// atOnce is how many plugins are read at a time, and readTimeout bounds each.
	atOnce      = 16
	readTimeout = 20 * time.Second
)

var errNoPlugin = errors.New("no plugin of the namespace runs there")

// Read asks the plugins of the nodes that claims have devices of. A node whose plugin cannot be read is a warning; that none can, an error.
func (p *Plugins) Read(ctx context.Context, now time.Time, claims []*resourceapi.ResourceClaim) (*Figures, error) {
	nodes := nodesOf(p.Driver, claims)
	type answer struct {
		most map[Key][]Most
		err  error
	}
	answers := make([]answer, len(nodes))
	group := errgroup.Group{}
	group.SetLimit(atOnce)
	for i, node := range nodes {
		group.Go(func() error {
			answers[i].most, answers[i].err = p.node(ctx, now, node)
			return nil
		})
	}
	_ = group.Wait() // none fails
	f := &Figures{Most: map[Key][]Most{}}
	var errs []error
	for i, a := range answers {
		if a.err != nil {
			errs = append(errs, a.err)
			f.Warnings = append(f.Warnings, fmt.Sprintf("what claims on node %s use is not known: %v", nodes[i], a.err))
		} else if len(a.most) == 0 {
			f.Warnings = append(f.Warnings, fmt.Sprintf("the plugin on node %s has not looked at claims: it has just started, "+
				"is of an earlier release, or metrics.usageInterval is 0s", nodes[i]))
		}
		for key, most := range a.most {
			f.Most[key] = append(f.Most[key], most...)
		}
	}
	if len(errs) > 0 && len(errs) == len(nodes) {
		return nil, fmt.Errorf("read from the plugins of %d nodes what claims use: node %s: %w", len(nodes), nodes[0], errs[0])
	}
	return f, nil
}

// nodesOf are the nodes of claims' devices, after which pools are named.
func nodesOf(driver string, claims []*resourceapi.ResourceClaim) []string {
	found := map[string]bool{}
	var nodes []string
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			if r := &c.Status.Allocation.Devices.Results[i]; r.Driver == driver && !found[r.Pool] {
				found[r.Pool] = true
				nodes = append(nodes, r.Pool)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

// node reads the plugins of a node, which are two during an update: one of them does.
func (p *Plugins) node(ctx context.Context, now time.Time, node string) (map[Key][]Most, error) {
	found, read, failed := map[Key][]Most{}, false, errNoPlugin
	for _, pod := range p.Pods {
		port, ok := metricsPort(pod)
		if pod.Spec.NodeName != node || !ok || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		if err := p.pod(ctx, now, pod, port, found); err != nil {
			failed = err
		} else {
			read = true
		}
	}
	if !read {
		return nil, failed
	}
	return found, nil
}

// metricsPort is the port of a plugin's metrics; false for another pod.
func metricsPort(pod *corev1.Pod) (int32, bool) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if len(c.Args) == 0 || c.Args[0] != "kubelet-plugin" {
			continue
		}
		for _, port := range c.Ports {
			if port.Name == "metrics" {
				return port.ContainerPort, true
			}
		}
	}
	return 0, false
}

// pod adds what a plugin has seen.
func (p *Plugins) pod(ctx context.Context, now time.Time, pod *corev1.Pod, port int32, to map[Key][]Most) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	page, err := p.Get(ctx, pod.Namespace, pod.Name, port, "/metrics")
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return fmt.Errorf("read the metrics of pod %s: %w", pod.Name, err)
	}
	type series struct {
		Key
		Most
	}
	all := map[model.Fingerprint]*series{} // by labels, which are those of all five metrics
	for name, note := range mostMetrics(now) {
		if families[name] == nil {
			continue
		}
		samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families[name])
		if err != nil {
			return fmt.Errorf("read the metric %s of pod %s: %w", name, pod.Name, err)
		}
		for _, s := range samples {
			key := Key{string(s.Metric[namespaceLabel]), string(s.Metric[claimLabel]), string(s.Metric[deviceLabel])}
			delete(s.Metric, model.MetricNameLabel)
			of := s.Metric.Fingerprint()
			if all[of] == nil {
				all[of] = &series{Key: key}
			}
			if v := float64(s.Value); v >= 0 && v < 1e18 { // not for NaN
				note(&all[of].Most, v)
			}
		}
	}
	for _, s := range all {
		to[s.Key] = append(to[s.Key], s.Most)
	}
	return nil
}

// mostMetrics are the metrics of the plugin, and where their values belong.
func mostMetrics(now time.Time) map[string]func(m *Most, value float64) {
	lasting := func(seconds float64) time.Duration { return time.Duration(min(seconds, 1e9) * float64(time.Second)) }
	return map[string]func(m *Most, value float64){
		"cleave_claim_memory_used_max_bytes":     func(m *Most, v float64) { m.Memory = &v },
		"cleave_claim_sm_active_max_ratio":       func(m *Most, v float64) { m.Activity = &v },
		"cleave_claim_memory_seen_seconds_total": func(m *Most, v float64) { m.MemoryFor = lasting(v) },
		"cleave_claim_sm_seen_seconds_total":     func(m *Most, v float64) { m.ActivityFor = lasting(v) },
		"cleave_claim_first_look_timestamp_seconds": func(m *Most, v float64) {
			m.Since = time.UnixMilli(int64(min(v, 1e12) * 1000))
			m.Looked = max(0, now.Sub(m.Since))
		},
	}
}
