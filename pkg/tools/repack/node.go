// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// node is a node with GPUs, or any before its slices are known.
type node struct {
	name   string
	object *corev1.Node // nil where there are only slices
	// used are the resources of the node that pods request, in thousandths.
	used map[corev1.ResourceName]int64
	// nominated: a pod with devices is to come here when others have ended. What is free is kept for it.
	nominated bool

	published *pools.Node
	state     *packing.State
	gpus      []*gpu // by the model's index
	// whole is how many GPUs of the state are whole.
	whole int
	// unsure: a replacement may be here, or on another node.
	unsure bool
	// openings are what demands lose on an untouched GPU, by number.
	openings map[int]int
	// plans predict demands, by number; dropped when the state changes.
	plans []plan
}

// plan is where a demand would get devices on a node, and at what cost.
type plan struct {
	known, fits bool
	err         error
	uses        []packing.Use
	cost        packing.Cost
}

func newNode(n *corev1.Node) *node {
	return &node{name: n.Name, object: n, used: map[corev1.ResourceName]int64{}}
}

// need is an amount of a resource that a pod requests, in thousandths.
type need struct {
	resource corev1.ResourceName
	amount   int64
}

// reserve adds or subtracts the requests of a pod.
func (n *node) reserve(needs []need, sign int64) {
	if n.used == nil {
		return // there is no Node object
	}
	for _, r := range needs {
		n.used[r.resource] += sign * r.amount
	}
}

// hasRoom reports whether a node's CPU, memory and other resources suffice.
func (n *node) hasRoom(needs []need) bool {
	return !slices.ContainsFunc(needs, func(r need) bool {
		total := n.object.Status.Allocatable[r.resource]
		return n.used[r.resource]+r.amount > total.MilliValue()
	})
}

func (n *node) gpuOf(u packing.Use) *gpu { return n.gpus[n.state.Model().Devices[u.Device].GPU] }

// recount counts whole GPUs after a change.
func (n *node) recount() {
	n.whole = 0
	if !n.takesPods() {
		return
	}
	for g := range n.state.Model().GPUs {
		if n.state.Whole(g) {
			n.whole++
		}
	}
}

// takesPods reports whether GPUs of the node are of use once they are whole.
func (n *node) takesPods() bool { return n.object != nil && inspect.NodeState(n.object) == "" }

func toleratesCordon(p *corev1.Pod) bool {
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return corev1helpers.TolerationsTolerateTaint(klog.Logger{}, p.Spec.Tolerations, &cordoned, true)
}

// admits reports whether the scheduler's filters of nodes let a pod be there, but for those that count.
func (n *node) admits(p *corev1.Pod, affinity nodeaffinity.RequiredNodeAffinity, volumes []*nodeaffinity.NodeSelector) bool {
	if n.object == nil || n.nominated {
		return false
	}
	spec := &n.object.Spec
	if spec.Unschedulable && !toleratesCordon(p) {
		return false
	}
	hard := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	if _, refused := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, spec.Taints, p.Spec.Tolerations, hard, true); refused {
		return false
	}
	if fits, err := affinity.Match(n.object); err != nil || !fits {
		return false
	}
	return !slices.ContainsFunc(volumes, func(s *nodeaffinity.NodeSelector) bool { return !s.Match(n.object) })
}
