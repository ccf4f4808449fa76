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

func TestAdvise_Usage(t *testing.T) {
	for want, args := range map[string][]string{
		"--selector needs --prometheus":     {"--selector", "a"},
		"--since needs --prometheus":        {"--since", "24h"},
		"--since 30m0s is less than":        {"--prometheus", "http://p", "--since", "30m"},
		"--margin -1 is not in 0 to 10":     {"--margin", "-1"},
		"--margin NaN is not in 0 to 10":    {"--prometheus", "http://p", "--margin", "NaN"},
		"--seen 200h0m0s is more than":      {"--prometheus", "http://p", "--seen", "200h"},
		"--seen 0s is not more than 0":      {"--seen", "0s"},
		`--output "wide" is not one of tab`: {"--prometheus", "http://p", "-o", "wide"},
		"unexpected argument":               {"web"},
	} {
		cmd := newAdvise()
		cmd.SetArgs(append(args, "--kubeconfig", "/nonexistent"))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

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
