// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// Outcomes of a search for pods to evict; values of a metric's label.
const (
	outcomeEvicted = "evicted" // pods are evicted, and the pod is nominated for their node
	outcomeWaiting = "waiting" // pods that make room end anyway, or what was freed for the pod is not deallocated yet
	outcomeNone    = "none"    // no eviction makes room, or the pod may evict nobody now
	outcomeError   = "error"
)

var (
	preemptions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "preemptions_total", StabilityLevel: metrics.ALPHA,
		Help: "Searches for pods whose eviction makes room for a pod that found none, by outcome: evicted, waiting for pods that end " +
			"anyway or for devices that were freed for it to be deallocated, none, or error.",
	}, []string{"outcome"})
	victimPods = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "preemption_victims_total", StabilityLevel: metrics.ALPHA,
		Help: "Pods that were evicted to make room for others.",
	})
	evictedUnits = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "cleave_scheduler", Name: "preemption_units_total", StabilityLevel: metrics.ALPHA,
		Help: "Placement units of the devices of pods that were evicted to make room for others.",
	})
)

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(preemptions, victimPods, evictedUnits) })

// tell records an Event of each victim and one of the pod they make room for, which name the devices.
func (a *attempt) tell(pod *corev1.Pod, node string, r room) {
	of := map[string][]*resourceapi.ResourceClaim{} // by the pod's name
	for _, claim := range r.change.Released {
		for _, c := range claim.Status.ReservedFor {
			of[claim.Namespace+"/"+c.Name] = append(of[claim.Namespace+"/"+c.Name], claim)
		}
	}
	recorder, priority := a.handle.EventRecorder(), schedulinghelpers.PodPriority(pod)
	var names, ending []string
	for _, victim := range r.victims {
		key := victim.Namespace + "/" + victim.Name
		if victim.DeletionTimestamp != nil {
			ending = append(ending, named(victim, pod))
			continue
		}
		names = append(names, named(victim, pod))
		var had []gpupacking.Result
		for _, claim := range of[key] {
			had = append(had, claim.Status.Allocation.Devices.Results...)
		}
		freed := "CPU, memory or other resources"
		if len(had) > 0 {
			freed = gpupacking.DeviceNames(had)
		}
		recorder.Eventf(victim, pod, corev1.EventTypeNormal, "PreemptedForDevices", "Preempting",
			"To be evicted from node %s with %s, to make room for pod %s of priority %d.", node, freed, named(pod, victim), priority)
	}
	if len(names) == 0 {
		slices.Sort(ending)
		recorder.Eventf(pod, nil, corev1.EventTypeNormal, "PreemptsForDevices", "Preempting",
			"Waits for %s on node %s, which end anyway; gets %s when they have ended.", few(ending), node, gpupacking.DeviceNames(r.devices))
		return
	}
	slices.Sort(names)
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "PreemptsForDevices", "Preempting",
		"Evicts %s on node %s; gets %s when they have ended.", few(names), node, gpupacking.DeviceNames(r.devices))
}

// named is a pod in an Event of another one: by its UID alone if it is of another namespace, whose names are not for everybody who reads
// Events of this one (kubernetes/kubernetes#114882).
func named(pod, of *corev1.Pod) string {
	if pod.Namespace != of.Namespace {
		return string(pod.UID)
	}
	return pod.Namespace + "/" + pod.Name
}

// maxNamed bounds the names in an Event.
const maxNamed = 10

func few(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more pods", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return "pods " + strings.Join(names, ", ")
}
