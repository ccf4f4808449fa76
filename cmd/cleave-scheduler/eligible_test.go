// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// inCluster is what is needed of a scheduler to know which nodes have devices, and their pods.
type inCluster struct {
	telling
	client   kubernetes.Interface
	factory  informers.SharedInformerFactory
	snapshot framework.SharedLister
}

func (i inCluster) ClientSet() kubernetes.Interface                        { return i.client }
func (i inCluster) SharedInformerFactory() informers.SharedInformerFactory { return i.factory }
func (i inCluster) SnapshotSharedLister() framework.SharedLister           { return i.snapshot }
func (i inCluster) SharedDRAManager() framework.SharedDRAManager           { return view{} }

// TestDone_Safe: a pod that may evict nobody yet is tried when it may. Pods without claims do not count where GPUPacking ended the attempt, as
// it lacks devices alone.
func TestDone_Safe(t *testing.T) {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.cleave.dev", NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1}}}
	for name, tt := range map[string]struct{ claims, ended, later bool }{
		"no claims":           {later: true},
		"no claims, and ends": {ended: true},
		"claims":              {claims: true, later: true},
		"claims, and ends":    {claims: true, ended: true, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			safe := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", PriorityClassName: "batch"}}
			if tt.claims {
				safe.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			handle := inCluster{client: fake.NewClientset(slice), snapshot: cache.NewSnapshot([]*corev1.Pod{safe}, []*corev1.Node{node})}
			handle.factory = informers.NewSharedInformerFactory(handle.client, 0)
			p := &preemptionPlugin{plugins: newPlugins(), handle: handle, later: newLater(handle),
				rules: &gpupacking.Rules{MinRuntime: map[string]metav1.Duration{"batch": {Duration: time.Hour}}}}
			if _, err := p.shared.New(t.Context(), nil, handle); err != nil {
				t.Fatal(err)
			}
			handle.factory.Start(t.Context().Done())
			if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
				return p.shared.HasDevices("n1"), nil
			}); err != nil {
				t.Fatal(err)
			}
			state, pod := scheduler.NewCycleState(), &corev1.Pod{Spec: corev1.PodSpec{Priority: new(int32(1000))}}
			if !tt.ended {
				state.Write(dynamicresources.Name, &removed{})
			}
			a := &attempt{preemptionPlugin: p, devices: &candidatePlugin{}, state: state}
			a.done(t.Context(), pod, scheduler.NewPostFilterResultWithNominatedNode(""), framework.NewStatus(framework.Unschedulable))
			if got := len(p.later.pods) > 0; got != tt.later {
				t.Errorf("the pod is tried later: %t", got)
			}
		})
	}
}
