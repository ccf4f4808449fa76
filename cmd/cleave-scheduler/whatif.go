// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// whatIf runs kube-scheduler's allocator as if some claims were not allocated, and devices were kept for other pods. It has a
// DynamicResources of its own, as that of the profile keeps the allocations of a scheduling cycle to itself.
type whatIf struct {
	// mu guards the tracker and the slices: the plugin reads them in PreFilter and Reserve alone.
	mu     sync.Mutex
	plugin *dynamicresources.DynamicResources
	slices *gpupacking.CandidateSlices
	claims *tracker
}

// whatIfHandle gives the plugin its view. Its profile has another name: the plugin adds an index of pods of that name to the
// informer, which may have each once.
type whatIfHandle struct{ candidateHandle }

func (h whatIfHandle) ProfileName() string { return h.Handle.ProfileName() + "/what-if" }

func newWhatIf(ctx context.Context, args *config.DynamicResourcesArgs, handle framework.Handle, fts feature.Features) (*whatIf, error) {
	w := &whatIf{
		slices: &gpupacking.CandidateSlices{SharedDRAManager: handle.SharedDRAManager()},
		claims: &tracker{ResourceClaimTracker: handle.SharedDRAManager().ResourceClaims(), dry: true},
	}
	var err error
	w.plugin, err = newDynamicResources(ctx, args, whatIfHandle{candidateHandle{handle, view{w.slices, w.claims}}}, fts)
	return w, err
}

// newDynamicResources is kube-scheduler's plugin.
func newDynamicResources(ctx context.Context, args *config.DynamicResourcesArgs, handle framework.Handle,
	fts feature.Features) (*dynamicresources.DynamicResources, error) {
	inner, err := dynamicresources.New(ctx, args, handle, fts)
	if err != nil {
		return nil, err
	}
	plugin, ok := inner.(*dynamicresources.DynamicResources)
	if !ok {
		return nil, fmt.Errorf("kube-scheduler's plugin is a %T", inner)
	}
	return plugin, nil
}

// filter is the plugin's answer for a pod on one node after a change.
func (w *whatIf) filter(ctx context.Context, pod *corev1.Pod, node framework.NodeInfo, c gpupacking.Change) *framework.Status {
	_, status := w.run(ctx, pod, node, c)
	return status
}

// allocate is what the allocator would give a pod on a node after a change.
func (w *whatIf) allocate(ctx context.Context, pod *corev1.Pod, node framework.NodeInfo,
	c gpupacking.Change) ([]gpupacking.Result, *framework.Status) {
	state, status := w.run(ctx, pod, node, c)
	if state == nil || !status.IsSuccess() {
		return nil, status
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.claims.reset()
	if status := w.plugin.Reserve(ctx, state, pod, node.Node().Name); !status.IsSuccess() {
		return nil, status
	}
	return w.claims.reserved, nil
}

// run filters; the state is nil where the pod has no claims.
func (w *whatIf) run(ctx context.Context, pod *corev1.Pod, node framework.NodeInfo,
	c gpupacking.Change) (framework.CycleState, *framework.Status) {
	state := scheduler.NewCycleState()
	if status := w.prepare(ctx, state, pod, node, c); status.IsSkip() {
		return nil, nil
	} else if !status.IsSuccess() {
		return nil, status
	}
	return state, w.plugin.Filter(ctx, state, pod, node)
}

func (w *whatIf) prepare(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node framework.NodeInfo,
	c gpupacking.Change) (status *framework.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.claims.reset()
	w.claims.kept = c.Kept
	w.claims.released = map[types.UID]*resourceapi.ResourceClaim{}
	for _, claim := range c.Released {
		w.claims.released[claim.UID] = claim
	}
	w.slices.Limited(pod, sets.New(node.Node().Name), func() {
		_, status = w.plugin.PreFilter(ctx, state, pod, []framework.NodeInfo{node})
	})
	return status
}
