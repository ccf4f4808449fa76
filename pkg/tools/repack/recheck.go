// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Recheck replays the rest of a step in the cluster as it is now. It returns it with the places of now, which are among those that
// were advised, or why the step does not hold anymore. Whether budgets allow it is left to the Eviction API, when the time has come.
// The cluster cannot be asked again.
func (c *Cluster) Recheck(ctx context.Context, rest Step) (now Step, why string) {
	c.Budgets = nil
	s, kept := c.load()
	g, why := s.emptied(rest, kept)
	if why != "" {
		return Step{}, why
	}
	if !s.empty(ctx, g, rest.Cordon != "") {
		return Step{}, fmt.Sprintf("the replacements would no longer leave %s of node %s, or would take another GPU that is whole",
			g.name(), g.on.name)
	}
	now = Step{Cordon: rest.Cordon, Frees: rest.Frees}
	for i := range s.moves {
		m := s.moves[i].advice()
		before := &rest.Pods[slices.IndexFunc(rest.Pods, m.isOf)]
		for _, at := range m.places() {
			if !slices.ContainsFunc(before.places(), at.isIn) {
				return Step{}, fmt.Sprintf("the replacement of pod %s/%s would be at %s now, %s was advised", m.Namespace, m.Pod, at, before.Where())
			}
		}
		m.Budget = before.Budget
		now.Pods = append(now.Pods, m)
	}
	return now, ""
}

// emptied is the GPU that the rest of a step empties, with the pods of the step and no others.
func (s *search) emptied(rest Step, kept []Kept) (g *gpu, why string) {
	for i := range kept {
		if slices.ContainsFunc(rest.Pods, func(m Move) bool { return m.Namespace == kept[i].Namespace && m.Pod == kept[i].Pod }) {
			return nil, fmt.Sprintf("pod %s/%s may not be restarted anymore: %s", kept[i].Namespace, kept[i].Pod, kept[i].Message)
		}
	}
	for _, g := range s.gpus {
		if slices.Contains(rest.Frees, GPU{g.on.name, g.name()}) && g.movable() && len(g.pods) == len(rest.Pods) &&
			!slices.ContainsFunc(g.pods, func(p *pod) bool { return !slices.ContainsFunc(rest.Pods, p.isWhere) }) {
			return g, ""
		}
	}
	return nil, fmt.Sprintf("the pods on %s are not those that were advised", rest.Freed())
}

// isWhere reports whether a pod is that of a move, and has the devices that the move says.
func (p *pod) isWhere(m Move) bool {
	return p.object.UID == m.UID && p.on.place(p.uses).String() == m.From.String()
}

func (m *Move) isOf(other Move) bool { return m.UID == other.UID }

// places are all of a replacement.
func (m *Move) places() []Place { return append([]Place{m.To}, m.Or...) }

// Has reports whether a place is one of the move's.
func (m *Move) Has(at Place) bool { return slices.ContainsFunc(m.places(), at.isIn) }

// isIn reports whether a place is another one, or one of its node where that says no devices.
func (p Place) isIn(other Place) bool {
	return p.Node == other.Node && (len(other.Devices) == 0 ||
		slices.Equal(slices.Sorted(slices.Values(p.Devices)), slices.Sorted(slices.Values(other.Devices))))
}

func (g *gpu) name() string { return g.on.state.Model().GPUs[g.index].Name }

// untainted is a node without the taint of a repack: it is gone when the repack is over. Its name is noted.
func (c *Cluster) untainted(n *corev1.Node) *corev1.Node {
	if !slices.ContainsFunc(n.Spec.Taints, IsTaint) {
		return n
	}
	c.tainted = append(c.tainted, n.Name)
	without := *n
	without.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), IsTaint)
	return &without
}

// IsTaint reports whether a taint is that of a repack.
func IsTaint(t corev1.Taint) bool { return t.Key == v1alpha1.RepackKey }

// Tainted are the nodes that have the taint of a repack.
func (c *Cluster) Tainted() []string { return slices.Sorted(slices.Values(c.tainted)) }

// Moving are the pods with devices that are evicted or scheduled right now, so that nobody can say where they are. One that was created,
// or was to have ended, before a time waits for something else.
func (c *Cluster) Moving(since time.Time) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.moving)) {
		if !c.moving[name].Before(since) {
			names = append(names, name)
		}
	}
	return names
}

// undecidable reports whether the scheduler has tried a pod and found no node, or is not to try. It does not say so of one whose claim
// does not exist: PreEnqueue keeps that out of its queue (kube-scheduler 1.37, plugins/dynamicresources).
func undecidable(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			(c.Reason == corev1.PodReasonUnschedulable || c.Reason == corev1.PodReasonSchedulingGated)
	})
}

// isEvicted reports whether a pod ends because of the Eviction API (pkg/registry/core/pod/storage/eviction.go).
func isEvicted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == evictionReason
	})
}

const evictionReason = "EvictionByEvictionAPI"
