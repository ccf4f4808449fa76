// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics of one plugin, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry
	claims   *prometheus.HistogramVec
	gpus     prometheus.Gauge
	waiting  prometheus.Gauge
	// mpsEvents counts what happened to MPS servers while claims used them, by kind.
	mpsEvents *prometheus.CounterVec
	// healthy is 1 for a healthy GPU, by device name; xids counts what drivers report.
	healthy *prometheus.GaugeVec
	xids    *prometheus.CounterVec
	// policy is 1 for the name of the active policy.
	policy         *prometheus.GaugeVec
	policyInvalid  prometheus.Gauge
	policyFailures prometheus.Counter
	conflict       prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		mpsEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleave_mps_server_events_total", Help: "MPS servers that were lost, restarted or failed while claims used them.",
		}, []string{"kind"}),
		registry: prometheus.NewRegistry(),
		claims: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cleave_claim_duration_seconds",
			Help: "Time one claim took to prepare or unprepare, without the read of the claim from the API server.",
			// From a record's write (under a millisecond) to the kubelet's timeout (45 s).
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 45},
		}, []string{"operation", "outcome"}),
		gpus: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleave_gpus", Help: "GPUs that were found.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleave_waiting_for_driver", Help: "1 while the NVIDIA driver does not answer and no claim can be prepared.",
		}),
		policy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleave_policy_info", Help: "1 for the active node policy, by name.",
		}, []string{"policy"}),
		policyInvalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleave_policy_invalid", Help: "1 while the requested policy cannot be used and an earlier one, or none, is active.",
		}),
		policyFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleave_policy_failures_total", Help: "Requested policies that could not be used.",
		}),
		conflict: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleave_conflict", Help: "1 while another driver or device plugin offers GPUs of the node and nothing new is published.",
		}),
	}
	m.healthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cleave_gpu_healthy", Help: "1 while a GPU is healthy, 0 while it or a part of it is unhealthy.",
	}, []string{"gpu"})
	m.xids = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cleave_xid_total", Help: "XID errors that the driver reported, those of applications included.",
	}, []string{"gpu", "xid"})
	m.registry.MustRegister(m.claims, m.gpus, m.waiting, m.mpsEvents, m.healthy, m.xids, m.policy, m.policyInvalid, m.policyFailures,
		m.conflict, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe records one operation on one claim.
func (m *metrics) observe(operation string, took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.claims.WithLabelValues(operation, outcome).Observe(took.Seconds())
}

// policyIs sets which policy is active, and whether another one is requested that cannot be used.
func (m *metrics) policyIs(name string, invalid bool) {
	m.policy.Reset()
	m.policy.WithLabelValues(name).Set(1)
	m.policyInvalid.Set(number(invalid))
}

// number is 1 for true.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
