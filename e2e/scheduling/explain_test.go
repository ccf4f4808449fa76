// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// explained is what the program says of a pod, and its exit code.
func explained(ctx context.Context, b *bed, pod string) (e explain.Explanation, code int, err error) {
	out, err := exec.CommandContext(ctx, bin("cleave"), "explain", "pod", pod, "-n", namespace, "--kubeconfig", b.kubeconfig, "-o", "json").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err != nil {
		return e, code, fmt.Errorf("explain pod %s: %w", pod, err)
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return e, code, fmt.Errorf("read the explanation of pod %s: %w", pod, err)
	}
	return e, code, nil
}

// explains waits until the program says so of a pod.
func (b *bed) explains(pod string, state explain.State, outlook explain.Outlook, code int, want string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	must(b.t, workload.Until(ctx, "the explanation of pod "+pod, func(ctx context.Context) (bool, string, error) {
		e, got, err := explained(ctx, b, pod)
		text, _ := json.Marshal(e)
		return err == nil && e.State == state && e.Outlook == outlook && got == code && strings.Contains(string(text), want),
			fmt.Sprintf("exit code %d, %s", got, text), err
	}))
}

// What cleave explain says of a real API server and scheduler: who never looks, what waits, and what never fits.
func TestExplain_Schedulers(t *testing.T) {
	b := newBed(t, "n1")
	says := b.explains
	b.addPodOf("lost", workload.ClaimSpec("gpu.cleave.dev", 1))
	says("lost", explain.Waits, "", 3, "no scheduler has looked at the pod since it was created")
	b.startScheduler("{}")
	b.scheduled(1)
	says("lost", explain.Scheduled, "", 0, `"devices":[{"claim":"default/lost","request":"gpu"`)

	b.addPodOf("cpu", workload.ClaimSpec("gpu.cleave.dev", 1), requests("1000", "1Gi"))
	says("cpu", explain.Waits, "", 3, "the scheduler says: 0/1 nodes are available: 1 Insufficient cpu")
	b.addPodOf("many", workload.ClaimSpec("gpu.cleave.dev", 9))
	says("many", explain.Refused, explain.Never, 1, "9 devices requested, and no node has more than 8")
	b.addPodOf("all", workload.ClaimSpec("gpu.cleave.dev", 8))
	says("all", explain.Refused, explain.NotNow, 1, `1 device is allocated to default/lost (lost, since 20`)
	b.addPodOf("gated", workload.ClaimSpec("gpu.cleave.dev", 1), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/queue"}}
	})
	says("gated", explain.Waits, "", 3, "the pod has the scheduling gate example.com/queue")
}

// A kube-scheduler without counters ignores the devices that the API server counts: they are free, and its pod waits.
func TestExplain_SchedulerIgnores(t *testing.T) {
	b := newBed(t, "n1")
	b.startKubeScheduler(cluster.DefaultVersion, map[string]bool{"DRAPartitionableDevices": false})
	b.addPodOf("ignored", workload.ClaimSpec("gpu.cleave.dev", 1), func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName })
	b.explains("ignored", explain.Waits, "", 3, "the scheduler says: 0/1 nodes are available: 1 cannot allocate all claims")
	b.explains("ignored", explain.Waits, "", 3, "it ignores these devices: it is older than the API server, or has a feature gate")
}
