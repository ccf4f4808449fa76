// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// pluginPod is a pod that stands for the plugin's: it is in the host's network, where the plugin serves its metrics.
func (s plugin) pluginPod(ctx context.Context) {
	s.Helper()
	port, err := node.MetricsPort(env.node)
	s.must(err)
	pod := workload.Pod("plugin", "")
	pod.Labels = map[string]string{"app.kubernetes.io/component": "plugin"}
	pod.Spec.HostNetwork = true
	pod.Spec.Containers[0].Args = []string{"kubelet-plugin"}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: port}}
	s.create(ctx, pod)
	s.pods.running(ctx, pod.Name)
}

// advise runs cleave advise, without Prometheus.
func (s plugin) advise(ctx context.Context) (advice *sizing.Advice, stderr string) {
	s.Helper()
	code, out, stderr := runProgram(ctx, s.T, "cleave", "advise", "--kubeconfig", env.cluster.Kubeconfig(), "--plugin-namespace", s.name,
		"--seen", "3s", "-o", "json")
	if code != 0 {
		return nil, stderr
	}
	s.must(json.Unmarshal([]byte(out), &advice))
	return advice, stderr
}

// checkAdvice checks that cleave advise shows the most that the pods' processes were told to do, and a smaller device for pod whole.
func (s plugin) checkAdvice(ctx context.Context, burns map[string]burn) {
	s.Helper()
	byPod := map[string]*sizing.Workload{}
	s.eventually(ctx, "the pods to be seen for long enough", func(ctx context.Context) (bool, string, error) {
		advice, stderr := s.advise(ctx)
		if advice == nil || len(advice.Problems) > 0 {
			return false, "", fmt.Errorf("cleave advise: %+v, %s", advice, stderr)
		}
		for i := range advice.Workloads {
			if w := &advice.Workloads[i]; w.Namespace == s.name {
				byPod[strings.TrimPrefix(w.Workload, "Pod/")] = w
			}
		}
		w := byPod["whole"] // the first look does not know its activity
		return w != nil && w.Suffices != nil, fmt.Sprintf("%+v", w), nil
	})
	for name, b := range burns {
		w := byPod[name]
		if w == nil || w.Memory == nil || w.Activity == nil {
			s.Errorf("of pod %s there is %+v", name, w)
			continue
		}
		if w.Memory.Max != float64(b.memory) || math.Abs(w.Activity.Max-b.sm) > b.sm/10 || w.Memory.P50 != nil {
			s.Errorf("pod %s used %+v of memory, and %+v of its multiprocessors", name, w.Memory, w.Activity)
		}
	}
	w, b := byPod["whole"], burns["whole"]
	if w.Verdict != sizing.Smaller || w.Suffices.Memory < b.memory || w.Suffices.Memory >= w.Asked.Memory ||
		float64(w.Suffices.Multiprocessors) < b.sm*float64(w.Asked.Multiprocessors) {
		s.Errorf("advice for pod whole: %+v, would do %+v", w, w.Suffices)
	}
}
