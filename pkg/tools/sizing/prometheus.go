// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Prometheus is where figures are.
type Prometheus struct {
	// URL is that of the server, without /api.
	URL string
	// Selector is matchers of labels for all series, such as cluster="a"; empty for none.
	Selector string
}

// Metrics of the plugin, and labels by which their series belong to devices of claims.
const (
	memoryMetric   = "cleave_claim_memory_used_bytes"
	activityMetric = "cleave_claim_sm_active_ratio"
	// lastActiveMetric is a Unix time.
	lastActiveMetric = "cleave_claim_last_active_timestamp_seconds"

	namespaceLabel = "namespace"
	claimLabel     = "dra_claim_name"
	deviceLabel    = "dra_device_name"
)

// name is the URL without a password: pages and logs show it.
func (p *Prometheus) name() string {
	u, err := url.Parse(p.URL)
	if err != nil {
		return "its URL"
	}
	return u.Redacted()
}

// StepOf is how far apart figures of some time are: Prometheus answers with up to 11,000 points of a series, and fewer do.
func StepOf(since time.Duration) time.Duration {
	const points = 720
	return max(time.Minute, (since / points).Truncate(time.Minute))
}

// Read asks for the figures up to now: of memory the most of each step, of activity its mean. A step without samples has no point.
func (p *Prometheus) Read(ctx context.Context, now time.Time, params Params) (*Figures, error) {
	client, err := api.NewClient(api.Config{Address: p.URL})
	if err != nil {
		return nil, fmt.Errorf("create a client for Prometheus at %s: %w", p.name(), err)
	}
	f := &Figures{}
	for _, q := range []struct {
		to               *map[Key][]Point
		metric, function string
	}{{&f.Memory, memoryMetric, "max_over_time"}, {&f.Activity, activityMetric, "avg_over_time"}} {
		query := fmt.Sprintf("max by (%s, %s, %s) (%s(%s{%s}[%s]))", namespaceLabel, claimLabel, deviceLabel, q.function, q.metric, p.Selector,
			model.Duration(params.Step))
		during := promv1.Range{Start: now.Add(-params.Since), End: now, Step: params.Step}
		value, warnings, err := promv1.NewAPI(client).QueryRange(ctx, query, during)
		if err != nil {
			return nil, fmt.Errorf("ask Prometheus at %s for %s: %w", p.name(), q.metric, err)
		}
		matrix, ok := value.(model.Matrix)
		if !ok {
			return nil, fmt.Errorf("ask Prometheus at %s for %s: %w: %T", p.name(), q.metric, errAnswer, value)
		}
		for _, w := range warnings {
			f.Warnings = append(f.Warnings, "Prometheus warns: "+w)
		}
		*q.to = pointsOf(matrix)
	}
	return f, nil
}

// Used is what claims use of their devices now.
func (p *Prometheus) Used(ctx context.Context) (map[inspect.UsedKey]inspect.Used, error) {
	client, err := api.NewClient(api.Config{Address: p.URL})
	if err != nil {
		return nil, fmt.Errorf("create a client for Prometheus at %s: %w", p.name(), err)
	}
	all := map[inspect.UsedKey]inspect.Used{}
	for _, figure := range []struct {
		metric string
		note   func(u *inspect.Used, value float64)
	}{
		{memoryMetric, func(u *inspect.Used, v float64) { bytes := int64(v); u.MemoryBytes = &bytes }},
		{activityMetric, func(u *inspect.Used, v float64) { u.SMActive = &v }},
		{lastActiveMetric, func(u *inspect.Used, v float64) { at := time.UnixMilli(int64(v * 1000)).UTC(); u.LastActive = &at }},
	} {
		query := fmt.Sprintf("max by (%s, %s, %s) (%s{%s})", namespaceLabel, claimLabel, deviceLabel, figure.metric, p.Selector)
		value, _, err := promv1.NewAPI(client).Query(ctx, query, time.Time{})
		if err != nil {
			return nil, fmt.Errorf("ask Prometheus at %s for %s: %w", p.name(), figure.metric, err)
		}
		samples, ok := value.(model.Vector)
		if !ok {
			return nil, fmt.Errorf("ask Prometheus at %s for %s: %w: %T", p.name(), figure.metric, errAnswer, value)
		}
		for _, s := range samples {
			if v := float64(s.Value); v >= 0 && !math.IsInf(v, 0) { // not for NaN
				key := inspect.UsedKey{Claim: string(s.Metric[namespaceLabel] + "/" + s.Metric[claimLabel]), Device: string(s.Metric[deviceLabel])}
				u := all[key]
				figure.note(&u, v)
				all[key] = u
			}
		}
	}
	return all, nil
}

// pointsOf are the points of all series.
func pointsOf(matrix model.Matrix) map[Key][]Point {
	found := map[Key][]Point{}
	for _, series := range matrix {
		key := Key{string(series.Metric[namespaceLabel]), string(series.Metric[claimLabel]), string(series.Metric[deviceLabel])}
		for _, sample := range series.Values {
			found[key] = append(found[key], Point{sample.Timestamp.Time(), float64(sample.Value)})
		}
	}
	return found
}
