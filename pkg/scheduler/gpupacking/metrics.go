// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Outcomes of an attempt; values of a metric's label, where those of choice.passed are the others.
const (
	outcomeNarrowed = "narrowed" // to the best nodes
	outcomeFallback = "fallback" // to all nodes, after none of the best would do
	outcomeBusy     = "busy"     // only nodes without CPU, memory or pod slots have room on their GPUs
	outcomeFull     = "full"     // no node has room
	outcomeEvict    = "evict"    // no node has room, and on some the eviction of other pods would make it
	outcomeChecked  = "checked"  // no node seems to have room; the allocator was asked on all of them
)

var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "attempts_total", StabilityLevel: metrics.ALPHA,
		Help: "Scheduling attempts of pods with device claims, by strategy and outcome: narrowed to the best nodes, fallback " +
			"to all nodes after none of those would do, full, or why the pod passed through.",
	}, []string{"strategy", "outcome"})
	nodesConsidered = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "cleave_scheduler", Name: "nodes_considered", StabilityLevel: metrics.ALPHA,
		Help:    "Nodes compared for a pod.",
		Buckets: metrics.ExponentialBuckets(1, 4, 8),
	})
	choiceSeconds = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "cleave_scheduler", Name: "choice_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time to choose nodes for a pod.",
		Buckets: metrics.ExponentialBuckets(0.0001, 3, 10),
	})
	placementLost = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "cleave_scheduler", Name: "placement_lost_units", StabilityLevel: metrics.ALPHA,
		Help:    "Placement units of devices that stop fitting because of a placement: 0 for a share of a GPU that is shared already.",
		Buckets: []float64{0, 2, 4, 8, 16, 32, 64, 128, 256},
	}, []string{"strategy"})
	rejections = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "rejections_total", StabilityLevel: metrics.ALPHA,
		Help: "Attempts that found no room on any node, by the DeviceClass of the pod's first request and by what refuses it: \"room\", or " +
			"\"topology\" where it would fit without the constraints of its claims, such as one NVLink group.",
	}, []string{"class", "by"})
	queueSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "cleave_scheduler", Name: "queue_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Time from the first attempt of a pod with device claims to its binding, by the DeviceClass of its first request. A restart " +
			"of the scheduler begins anew.",
		Buckets: []float64{1, 5, 15, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600},
	}, []string{"class"})
	collisionEvictions = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "collision_evictions_total", StabilityLevel: metrics.ALPHA,
		Help: "Pods that were evicted because they could not start: what was allocated to them had been allocated to others, too.",
	})
)

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(attempts, nodesConsidered, choiceSeconds, placementLost, rejections, queueSeconds, collisionEvictions)
})
