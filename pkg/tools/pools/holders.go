// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// StartOf is when a pod started, or when it was created if it has not.
func StartOf(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// Budgets are PodDisruptionBudgets.
type Budgets struct {
	all []budget
	// Allowed is how many pods each lets go.
	Allowed []int
}

type budget struct {
	namespace string
	selector  labels.Selector
	disrupted map[string]metav1.Time
}

// NewBudgets reads PodDisruptionBudgets, in the order of their names. One with an empty selector covers nobody, as kube-scheduler has it.
func NewBudgets(all []*policyv1.PodDisruptionBudget) *Budgets {
	b := &Budgets{}
	all = slices.SortedFunc(slices.Values(all), func(a, b *policyv1.PodDisruptionBudget) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, one := range all {
		selector, err := metav1.LabelSelectorAsSelector(one.Spec.Selector)
		if err != nil || selector.Empty() {
			continue
		}
		b.all = append(b.all, budget{one.Namespace, selector, one.Status.DisruptedPods})
		b.Allowed = append(b.Allowed, int(one.Status.DisruptionsAllowed))
	}
	return b
}

// of are those that cover a pod, by their index.
func (b *Budgets) of(pod *corev1.Pod) (found []int) {
	for i := range b.all {
		one := &b.all[i]
		if _, done := one.disrupted[pod.Name]; !done && one.namespace == pod.Namespace && one.selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, i)
		}
	}
	return found
}

// Holders are the pods of a node whose eviction releases claims. Pods that share a claim are one holder.
type Holders struct {
	All []packing.Holder
	// Pods are those of each holder.
	Pods [][]*corev1.Pod
	at   map[types.UID]int
}

// NewHolders is without holders.
func NewHolders() *Holders { return &Holders{at: map[types.UID]int{}} }

// Add notes that devices are released if pods end: it joins the holders that have one of them.
func (h *Holders) Add(uses []packing.Use, pods []*corev1.Pod) {
	at := -1
	for _, p := range pods {
		known, ok := h.at[p.UID]
		switch {
		case !ok || known == at:
		case at < 0:
			at = known
		default: // two that were apart
			h.All[at].Uses = append(h.All[at].Uses, h.All[known].Uses...)
			h.Pods[at] = append(h.Pods[at], h.Pods[known]...)
			for _, moved := range h.Pods[known] {
				h.at[moved.UID] = at
			}
			h.All[known].Uses, h.Pods[known] = nil, nil
		}
	}
	if at < 0 {
		at = len(h.All)
		h.All, h.Pods = append(h.All, packing.Holder{}), append(h.Pods, nil)
	}
	h.All[at].Uses = append(h.All[at].Uses, uses...)
	for _, p := range pods {
		if known, ok := h.at[p.UID]; !ok || known != at {
			h.at[p.UID] = at
			h.Pods[at] = append(h.Pods[at], p)
		}
	}
}

// Complete fills in what is known of the pods, and drops holders that were joined to others. Nothing is added afterwards.
func (h *Holders) Complete(budgets *Budgets) {
	var holders []packing.Holder
	var pods [][]*corev1.Pod
	for i, one := range h.All {
		if len(h.Pods[i]) == 0 {
			continue
		}
		first := h.Pods[i][0]
		one.Priority, one.Since, one.Pods = schedulinghelpers.PodPriority(first), StartOf(first).Unix(), len(h.Pods[i])
		for _, p := range h.Pods[i] {
			one.Priority = max(one.Priority, schedulinghelpers.PodPriority(p))
			one.Since = min(one.Since, StartOf(p).Unix())
			one.Budgets = append(one.Budgets, budgets.of(p)...)
		}
		holders, pods = append(holders, one), append(pods, h.Pods[i])
	}
	h.All, h.Pods = holders, pods
}
