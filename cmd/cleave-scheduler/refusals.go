// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// refusals are the nodes, by the UID of a pod, on which the API server refused to delete a victim, as an admission policy may. The Executor
// tries the pod at once again, before all others, and the same victims would be the best.
type refusals struct {
	mutex sync.Mutex
	nodes map[types.UID]string
}

// maxRefusals bounds the pods: those that are deleted do not ask anymore.
const maxRefusals = 1000

func (r *refusals) put(pod types.UID, node string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.nodes == nil || len(r.nodes) >= maxRefusals {
		r.nodes = map[types.UID]string{}
	}
	r.nodes[pod] = node
}

// take is the node of a pod since the last call; empty for none.
func (r *refusals) take(pod types.UID) string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	node := r.nodes[pod]
	delete(r.nodes, pod)
	return node
}

// watch notes what becomes of evictions.
func (r *refusals) watch(executor *preemption.Executor) {
	preempt := executor.PreemptPod
	executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *corev1.Pod,
		plugin string) (inMemory bool, err error) {
		if inMemory, err = preempt(ctx, c, preemptor, victim, plugin); err != nil {
			r.put(preemptor.UID(), c.Name())
		} else {
			victimPods.Inc()
		}
		return inMemory, err
	}
}

// refused ends an attempt after the API server refused an eviction, unless other victims end on that node. The next attempt is without what
// is held there, has other nodes first, and comes later: there may be many that refuse. The nomination ends with it, as kube-scheduler
// would look at that node first, whatever PreFilter says (evaluateNominatedNode).
func (a *attempt) refused(ctx context.Context, pod *corev1.Pod) (*framework.PostFilterResult, *framework.Status) {
	if a.refusedOn == "" {
		return nil, nil
	}
	if ok, _ := a.PodEligibleToPreemptOthers(ctx, pod, nil); !ok {
		return nil, nil
	}
	preemptions.WithLabelValues(outcomeError).Inc()
	a.shared.Denied(pod.UID, a.refusedOn)
	a.later.add(pod, time.Now())
	return scheduler.NewPostFilterResultWithNominatedNode(""), framework.NewStatus(framework.Unschedulable,
		fmt.Sprintf("preemption: the API server refused to delete a pod on node %s; others are tried in %s", a.refusedOn, soonest))
}
