// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// The plugins are the pods of their namespace that the chart labels: nobody else's figures count.
func TestAdvise_PluginsOfTheNamespace(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "web"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.Group, Pool: "n1", Device: "gpu"}}}}
	plugin := func(namespace, component string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: component, Labels: map[string]string{"app.kubernetes.io/component": component}}}
		p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
		p.Spec.Containers = []corev1.Container{{Args: []string{"kubelet-plugin"}, Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}}}
		return p
	}
	client := fake.NewClientset(claim, plugin("cleave-system", "plugin"), plugin("cleave-system", "mps"), plugin("ml", "plugin"))
	var asked []string
	read := func(_ context.Context, namespace, pod string, _ int32, _ string) ([]byte, error) {
		asked = append(asked, namespace+"/"+pod)
		return []byte("cleave_claim_first_look_timestamp_seconds 5\n"), nil
	}
	f := adviseFlags{driver: v1alpha1.Group, plugins: "cleave-system", params: defaultAdvice}
	a, err := f.advise(t.Context(), client, read, time.Now())
	if err != nil || a.Source != sizing.FromPlugins || a.Since != 0 || len(asked) != 1 || asked[0] != "cleave-system/plugin" {
		t.Errorf("got %+v, %v, asked %q", a, err, asked)
	}
	f.plugins = "elsewhere"
	want := "node n1: no plugin of the namespace runs there. Plugins are looked for in --plugin-namespace elsewhere, and"
	if _, err := f.advise(t.Context(), client, read, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error that says %q", err, want)
	}
}
