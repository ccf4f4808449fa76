// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

type fakeNode struct {
	framework.NodeInfo
	node    *corev1.Node
	usedCPU int64
	pods    []framework.PodInfo
	scalars map[corev1.ResourceName]int64
	// used are what its pods have of scalars and ports.
	used   map[corev1.ResourceName]int64
	ports  framework.HostPortInfo
	images map[string]*framework.ImageStateSummary
}

func (n *fakeNode) Node() *corev1.Node                                      { return n.node }
func (n *fakeNode) GetImageStates() map[string]*framework.ImageStateSummary { return n.images }
func (n *fakeNode) GetPods() []framework.PodInfo                            { return n.pods }
func (n *fakeNode) GetAllocatable() framework.Resource {
	return fakeResource{cpu: 8000, disk: 1 << 30, scalars: n.scalars}
}
func (n *fakeNode) GetRequested() framework.Resource {
	return fakeResource{cpu: n.usedCPU, disk: n.used[corev1.ResourceEphemeralStorage], scalars: n.used}
}
func (n *fakeNode) GetUsedPorts() framework.HostPortInfo { return n.ports }

type fakeResource struct {
	framework.Resource
	cpu, disk int64
	scalars   map[corev1.ResourceName]int64
}

func (r fakeResource) GetMilliCPU() int64                                { return r.cpu }
func (r fakeResource) GetMemory() int64                                  { return 1 << 40 }
func (r fakeResource) GetEphemeralStorage() int64                        { return r.disk }
func (r fakeResource) GetAllowedPodNumber() int                          { return 110 }
func (r fakeResource) GetScalarResources() map[corev1.ResourceName]int64 { return r.scalars }
