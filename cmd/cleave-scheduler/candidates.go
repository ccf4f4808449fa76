// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// candidateResources is the name of this variant of kube-scheduler's plugin DynamicResources: if GPUPacking, whose PreFilter runs
// first, has narrowed the search, its allocator uses only the candidates' devices instead of the cluster's. It replaces that plugin
// in a profile, with the same arguments, DynamicResourcesArgs. The name must differ: kube-scheduler rejects a plugin with the name
// of one of its own.
const candidateResources = "CandidateDynamicResources"

// candidatePlugin is DynamicResources with another name and a PreFilter that may see fewer devices.
type candidatePlugin struct {
	*dynamicresources.DynamicResources
	slices *gpupacking.CandidateSlices
}

// candidateHandle gives DynamicResources a view of devices that can be limited.
type candidateHandle struct {
	framework.Handle
	slices *gpupacking.CandidateSlices
}

func (h candidateHandle) SharedDRAManager() framework.SharedDRAManager { return h.slices }

// newCandidatePlugin creates the plugin of a profile.
func newCandidatePlugin(ctx context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
	args, err := dynamicResourcesArgs(arguments)
	if err != nil {
		return nil, fmt.Errorf("decode the arguments of %s: %w", candidateResources, err)
	}
	slices := &gpupacking.CandidateSlices{SharedDRAManager: handle.SharedDRAManager()}
	inner, err := dynamicresources.New(ctx, args, candidateHandle{handle, slices},
		feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", candidateResources, err)
	}
	plugin, ok := inner.(*dynamicresources.DynamicResources)
	if !ok {
		return nil, fmt.Errorf("start %s: kube-scheduler's plugin is a %T", candidateResources, inner)
	}
	return &candidatePlugin{plugin, slices}, nil
}

// dynamicResourcesArgs are arguments with kube-scheduler's defaults.
func dynamicResourcesArgs(arguments runtime.Object) (*config.DynamicResourcesArgs, error) {
	versioned := &configv1.DynamicResourcesArgs{}
	if err := gpupacking.DecodeArgs(arguments, versioned); err != nil {
		return nil, err
	}
	scheme.Scheme.Default(versioned)
	args := &config.DynamicResourcesArgs{}
	return args, scheme.Scheme.Convert(versioned, args, nil)
}

// Name is that of the plugin.
func (p *candidatePlugin) Name() string { return candidateResources }

// PostFilter is that of DynamicResources. If another plugin's PreFilter ended the attempt before its own, it has nothing to undo,
// and would fail.
func (p *candidatePlugin) PostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	statuses framework.NodeToStatusReader) (*framework.PostFilterResult, *framework.Status) {
	if _, err := state.Read(dynamicresources.Name); err != nil {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return p.DynamicResources.PostFilter(ctx, state, pod, statuses)
}

// PreFilter is that of DynamicResources.
func (p *candidatePlugin) PreFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (result *framework.PreFilterResult, status *framework.Status) {
	candidates := gpupacking.Candidates(state)
	if node := pod.Status.NominatedNodeName; candidates != nil && node != "" {
		candidates.Insert(node) // it is tried first, regardless of PreFilter
	}
	if candidates != nil {
		klog.FromContext(ctx).V(4).Info("Limited the allocator to the devices of candidates", "pod", klog.KObj(pod), "nodes", len(candidates))
	}
	p.slices.Limited(candidates, func() {
		result, status = p.DynamicResources.PreFilter(ctx, state, pod, nodes)
	})
	return result, status
}
