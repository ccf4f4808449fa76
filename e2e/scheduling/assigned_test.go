// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// warnings keeps those of the API server.
type warnings []string

// HandleWarningHeader adds a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestAssigned: with the chart's policy, pods for GPUs that name no scheduler get Cleave's, others keep theirs, and those that name another one
// are warned.
func TestAssigned(t *testing.T) {
	b := newBed(t)
	b.applyChart("scheduler.enabled=true,deviceClasses.mps.extendedResourceName=example.com/mps,deviceClasses.migProfiles.extendedResourcePrefix=example.com/mig-",
		"admission-scheduler")
	config, err := b.control.RESTConfig()
	must(t, err)
	var said warnings
	config.WarningHandler = &said
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	create := func(ctx context.Context, change func(*corev1.Pod)) (scheduler string, warned []string, err error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		change(pod)
		said = nil
		pod, err = kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", nil, err
		}
		return pod.Spec.SchedulerName, said, nil
	}
	claim := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	}
	limit := func(name corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
		}
	}
	// The API server takes some time to know a policy.
	must(t, workload.Until(t.Context(), "the policy to hold", func(ctx context.Context) (bool, string, error) {
		scheduler, _, err := create(ctx, claim)
		if err != nil || scheduler != "cleave-scheduler" {
			return false, scheduler, err
		}
		_, warned, err := create(ctx, func(p *corev1.Pod) { claim(p); p.Spec.SchedulerName = "other" })
		return len(warned) > 0, fmt.Sprint(warned), err
	}))
	for _, c := range []struct {
		what, want, warning string
		change              func(*corev1.Pod)
	}{
		{"no GPU", "default-scheduler", "", func(*corev1.Pod) {}},
		{"a claim", "cleave-scheduler", "", claim},
		{"nvidia.com/gpu", "cleave-scheduler", "", limit("nvidia.com/gpu")},
		{"a class as a resource", "cleave-scheduler", "", limit("deviceclass.resource.kubernetes.io/gpu.cleave.dev")},
		{"a class's own name", "cleave-scheduler", "", limit("example.com/mps")},
		{"a profile's own name", "cleave-scheduler", "", limit("example.com/mig-1g.10gb")},
		{"another resource", "default-scheduler", "", limit("example.com/nic")},
		{"an init container", "cleave-scheduler", "", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
		}},
		{"opted out", "default-scheduler", "", func(p *corev1.Pod) {
			claim(p)
			p.Labels = map[string]string{"gpu.cleave.dev/scheduler": "none"}
		}},
		{"another label", "cleave-scheduler", "", func(p *corev1.Pod) { claim(p); p.Labels = map[string]string{"app": "x"} }},
		{"another scheduler", "other", "this pod has GPU claims and scheduler other", func(p *corev1.Pod) { claim(p); p.Spec.SchedulerName = "other" }},
		{"on a node", "default-scheduler", "", func(p *corev1.Pod) { claim(p); p.Spec.NodeName = "n1" }},
	} {
		scheduler, warned, err := create(t.Context(), c.change)
		must(t, err)
		if scheduler != c.want {
			t.Errorf("%s: scheduler %s, want %s", c.what, scheduler, c.want)
		}
		if text := strings.Join(warned, "; "); !strings.Contains(text, c.warning) || c.warning == "" && text != "" {
			t.Errorf("%s: warned of %q, want %q", c.what, text, c.warning)
		}
	}
}
