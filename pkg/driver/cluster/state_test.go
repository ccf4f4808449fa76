// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

func TestNodeOf(t *testing.T) {
	const other = "nvidia.com/mig.config"
	for name, tt := range map[string]struct {
		labels map[string]string
		want   Node
	}{
		"none":              {nil, Node{}},
		"first policy":      {map[string]string{v1alpha1.PolicyLabel: "a"}, Node{Policy: "a"}},
		"second policy":     {map[string]string{other: "all-balanced"}, Node{Policy: "all-balanced", PolicyLabel: other}},
		"the first of both": {map[string]string{v1alpha1.PolicyLabel: "a", other: "b"}, Node{Policy: "a"}},
		"the first empty":   {map[string]string{v1alpha1.PolicyLabel: "", other: "b"}, Node{Policy: "b", PolicyLabel: other}},
		"all run":           {map[string]string{"nvidia.com/gpu.deploy.client": "true", "nvidia.com/gpu.deploy.dcgm": "true"}, Node{}},
		"kept off":          {map[string]string{"nvidia.com/gpu.deploy.device-plugin": "false", "nvidia.com/gpu.deploy.nvsm": ""}, Node{}},
		"paused": {map[string]string{"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"},
			Node{Paused: "nvidia.com/gpu.deploy.client=paused-for-driver-upgrade"}},
		"after a value": {map[string]string{"nvidia.com/gpu.deploy.mine": "special_paused-for-driver-upgrade"},
			Node{Paused: "nvidia.com/gpu.deploy.mine=special_paused-for-driver-upgrade"}},
		"the first paused": {map[string]string{"nvidia.com/gpu.deploy.b": "paused-for-x", "nvidia.com/gpu.deploy.a": "paused-for-y"},
			Node{Paused: "nvidia.com/gpu.deploy.a=paused-for-y"}},
		"another's label": {map[string]string{"example.com/gpu.deploy.client": "paused-for-driver-upgrade", "nvidia.com/gpu.state": "paused-for-x"}, Node{}},
	} {
		got, ok := nodeOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels}}, []string{v1alpha1.PolicyLabel, other})
		if diff := cmp.Diff(tt.want, got); diff != "" || !ok {
			t.Errorf("%s: kept %t (-want +got):\n%s", name, ok, diff)
		}
	}
}

func TestNodeOf_Notices(t *testing.T) {
	const key = "karpenter.sh/disrupted"
	got, _ := nodeOf(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key}}}}, nil)
	want := []notices.Notice{{Source: notices.Node, ID: key, Kind: notices.Reclaim, Text: "taint " + key}}
	if diff := cmp.Diff(want, got.Notices); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// The stores look at each object under a lock of theirs, which State takes as well.
func TestWatcher_StateWhileNodeChanges(t *testing.T) {
	w := NewWatcher(fake.NewClientset(), "gpu.cleave.dev", "node-1", "", func() {})
	node := nodeObject("")
	node.UID = "first"
	changed := make(chan error)
	go func() {
		defer close(changed)
		for range 10_000 {
			if err := w.object.Update(node); err != nil {
				changed <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-changed:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			w.State()
		}
	}
}
