// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// MaxMetrics bounds the metrics of a plugin that are read: a node of 56 partitions has some 300 KiB.
const MaxMetrics = 16 << 20

// used asks the plugin on this machine what claims use of their devices.
func (f *Inspection) used(ctx context.Context) (map[inspect.UsedKey]inspect.Used, error) {
	host, port, err := net.SplitHostPort(f.metricsAddress)
	if err != nil {
		return nil, fmt.Errorf("--metrics-address %q is not of the form address:port: %w", f.metricsAddress, err)
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read %s: %s", url, answer.Status)
	}
	return usedOf(io.LimitReader(answer.Body, MaxMetrics))
}

// usedOf reads what claims use from the plugin's metrics.
func usedOf(metrics io.Reader) (map[inspect.UsedKey]inspect.Used, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(metrics)
	if err != nil {
		return nil, fmt.Errorf("read the plugin's metrics: %w", err)
	}
	all := map[inspect.UsedKey]inspect.Used{}
	each := func(name string, note func(u *inspect.Used, source string, value float64)) {
		for _, m := range families["cleave_claim_"+name].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := inspect.UsedKey{Claim: labels["namespace"] + "/" + labels["dra_claim_name"], Device: labels["dra_device_name"]}
			u := all[key]
			note(&u, labels["source"], valueOf(m))
			all[key] = u
		}
	}
	each("memory_used_bytes", func(u *inspect.Used, _ string, v float64) {
		bytes := int64(v)
		u.MemoryBytes = &bytes
	})
	each("sm_active_ratio", func(u *inspect.Used, source string, v float64) { u.SMActive, u.Source = &v, source })
	each("dram_active_ratio", func(u *inspect.Used, _ string, v float64) { u.DRAMActive = &v })
	each("energy_joules_total", func(u *inspect.Used, _ string, v float64) { u.EnergyJoules = &v })
	each("last_active_timestamp_seconds", func(u *inspect.Used, _ string, v float64) {
		at := time.UnixMilli(int64(v * 1000)).UTC()
		u.LastActive = &at
	})
	return all, nil
}

func valueOf(m *dto.Metric) float64 {
	if m.GetCounter() != nil {
		return m.GetCounter().GetValue()
	}
	return m.GetGauge().GetValue()
}
