// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

func TestNodeOf_Paused(t *testing.T) {
	for name, tt := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"none":            {nil, ""},
		"all run":         {map[string]string{"nvidia.com/gpu.deploy.client": "true", "nvidia.com/gpu.deploy.dcgm": "true"}, ""},
		"kept off":        {map[string]string{"nvidia.com/gpu.deploy.device-plugin": "false", "nvidia.com/gpu.deploy.nvsm": ""}, ""},
		"driver":          {map[string]string{"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"}, "nvidia.com/gpu.deploy.client=paused-for-driver-upgrade"},
		"MIG mode":        {map[string]string{"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}, "nvidia.com/gpu.deploy.dcgm=paused-for-mig-change"},
		"after a value":   {map[string]string{"nvidia.com/gpu.deploy.mine": "special_paused-for-driver-upgrade"}, "nvidia.com/gpu.deploy.mine=special_paused-for-driver-upgrade"},
		"the first":       {map[string]string{"nvidia.com/gpu.deploy.b": "paused-for-x", "nvidia.com/gpu.deploy.a": "paused-for-y"}, "nvidia.com/gpu.deploy.a=paused-for-y"},
		"another's label": {map[string]string{"example.com/gpu.deploy.client": "paused-for-driver-upgrade", "nvidia.com/gpu.state": "paused-for-x"}, ""},
	} {
		got, ok := nodeOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: tt.labels}}, nil)
		if diff := cmp.Diff(tt.want, got.Paused); diff != "" || !ok || got.ReleaseDriver {
			t.Errorf("%s: kept %t, released %t; paused (-want +got):\n%s", name, ok, got.ReleaseDriver, diff)
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
