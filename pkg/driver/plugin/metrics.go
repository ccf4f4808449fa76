// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/usage"
)

// Values of the labels operation, outcome and tier.
const (
	prepareOperation   = "prepare"
	unprepareOperation = "unprepare"
	outcomeOK          = "ok"
	outcomeError       = "error"
	// tierNone is for claims of unknown tier: they have no device here, or no record.
	tierNone = "none"
)

// metrics of one plugin, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry
	build    *prometheus.GaugeVec
	// claims has the durations, errors counts failures, failing has the currently failing claims.
	claims  *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	failing *failing
	gpus    prometheus.Gauge
	waiting prometheus.Gauge
	// unready returns why the plugin is not ready; nil before it serves.
	unready func() error
	// notCounted is 1 for resources that the cluster does not count.
	notCounted *prometheus.GaugeVec
	// mpsEvents counts events of MPS servers while claims used them, by kind.
	mpsEvents *prometheus.CounterVec
	// healthy is 1 for a healthy GPU, by device name; xids counts XIDs that drivers report.
	healthy *prometheus.GaugeVec
	xids    *prometheus.CounterVec
	// policy is 1 for the name of the active policy.
	policy         *prometheus.GaugeVec
	policyInvalid  prometheus.Gauge
	policyFailures prometheus.Counter
	conflict       prometheus.Gauge
	// slicesDeleted counts ResourceSlices that another client deleted, classesMissing has the DeviceClasses that no longer exist.
	slicesDeleted  prometheus.Counter
	classesMissing prometheus.Gauge
	// labelsOfOthers is the number of node labels that other clients set.
	labelsOfOthers prometheus.Gauge
	// metadataFailures counts claims that were prepared without device metadata.
	metadataFailures prometheus.Counter
	// notices reports notices about the node's machine.
	notices *noticed
	// usage reports allocated and free devices, used what claims do with theirs.
	usage *usageCollector
	used  *usedCollector
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), failing: newFailing(time.Now), usage: &usageCollector{},
		notices: newNoticed(time.Now)}
	m.used = newUsedCollector(m.usage.source.Load)
	m.build = gaugeVec("cleave_build_info", "1 for the plugin's version and that of the Go that built it.", "version", "goversion")
	m.claims = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "cleave_claim_duration_seconds",
		Help: "Time one claim took to prepare or unprepare, without the read of the claim from the API server, by the tier of its first device.",
		// From a record's write (under a millisecond) to the kubelet's timeout (45 s).
		Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 45},
	}, []string{"operation", "outcome", "tier"})
	m.errors = counterVec("cleave_claim_errors_total",
		"Attempts to prepare or unprepare a claim that failed, by reason.", "operation", "reason")
	m.gpus = gauge("cleave_gpus", "GPUs that were found.")
	m.waiting = gauge("cleave_waiting_for_driver", "1 while the NVIDIA driver does not answer and no claim can be prepared.")
	m.notCounted = gaugeVec("cleave_not_counted",
		"1 while the cluster does not count what tiers need (counters or shares), and GPUs offer fewer than their policy has.", "what")
	m.mpsEvents = counterVec("cleave_mps_server_events_total",
		"MPS servers that were lost, restarted or failed while claims used them.", "kind")
	m.healthy = gaugeVec("cleave_gpu_healthy",
		"1 while a GPU is healthy, 0 while it or a part of it is unhealthy, or the driver does not read it.", "gpu")
	m.xids = counterVec("cleave_xid_total", "XID errors that the driver reported, those of applications included.", "gpu", "xid")
	m.policy = gaugeVec("cleave_policy_info", "1 for the active node policy, by name.", "policy")
	m.policyInvalid = gauge("cleave_policy_invalid", "1 while the requested policy cannot be used and an earlier one, or none, is active.")
	m.policyFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cleave_policy_failures_total", Help: "Requested policies that could not be used."})
	m.slicesDeleted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cleave_resourceslices_deleted_total", Help: "ResourceSlices of the node that another client deleted; they are published again."})
	m.classesMissing = gauge("cleave_device_classes_missing",
		"DeviceClasses that were installed with the plugin and do not exist; all nodes report the same.")
	m.labelsOfOthers = gauge("cleave_node_labels_of_others",
		"Labels of the node that the plugin is to set, and that another client has set to another value; they stay as they are.")
	m.metadataFailures = prometheus.NewCounter(prometheus.CounterOpts{Name: "cleave_device_metadata_failures_total",
		Help: "Files of device metadata that could not be written; the claim's containers start without them."})
	m.conflict = gauge("cleave_conflict", "1 while another driver or device plugin offers GPUs of the node and nothing new is published.")
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cleave_ready", Help: "1 while the plugin is ready: its /readyz says why it is not."},
		func() float64 { return number(m.unready != nil && m.unready() == nil) })
	m.registry.MustRegister(m.build, m.claims, m.errors, m.failing, m.gpus, m.waiting, m.notCounted, m.mpsEvents, m.healthy, m.xids, m.policy,
		ready, m.policyInvalid, m.policyFailures, m.conflict, m.slicesDeleted, m.classesMissing, m.labelsOfOthers,
		m.metadataFailures, m.notices, m.usage, m.used,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.begin()
	return m
}

// begin creates all series whose labels are known: rate() would miss the first increase of a series that does not exist.
// Durations of failed attempts are left out, as their number equals that of the errors.
func (m *metrics) begin() {
	for _, operation := range []string{prepareOperation, unprepareOperation} {
		for _, tier := range usage.Tiers() {
			m.claims.WithLabelValues(operation, outcomeOK, string(tier))
		}
		for _, reason := range reasons() {
			m.errors.WithLabelValues(operation, reason)
		}
	}
	for _, kind := range []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted, mps.DaemonFailed} {
		m.mpsEvents.WithLabelValues(string(kind))
	}
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// observe records one operation on one claim.
func (m *metrics) observe(operation, tier string, claim types.UID, took time.Duration, err error) {
	outcome := outcomeOK
	if err != nil {
		outcome = outcomeError
		m.errors.WithLabelValues(operation, reasonOf(err)).Inc()
	}
	m.failing.note(operation, claim, err)
	m.claims.WithLabelValues(operation, outcome, tier).Observe(took.Seconds())
}

// policyIs sets the active policy, and whether another, unusable one is requested.
func (m *metrics) policyIs(name string, invalid bool) {
	m.policy.Reset()
	m.policy.WithLabelValues(name).Set(1)
	m.policyInvalid.Set(number(invalid))
}

// number converts true to 1 and false to 0.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
