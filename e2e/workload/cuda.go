// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// cudaProgram is a stand-in for a CUDA program: the simulated MPS daemon's own program, which CDI mounts, acts as one
// under another name. It prints the server that it got and stays until that is gone.
const cudaProgram = "ln -s /usr/bin/nvidia-cuda-mps-control /tmp/nvml-sim && exec /tmp/nvml-sim cuda-client --hold"

// RunCUDA makes the containers of a pod run a stand-in for a CUDA program, with more flags for it.
func RunCUDA(pod *corev1.Pod, flags ...string) {
	for i := range pod.Spec.Containers {
		RunCUDAIn(&pod.Spec.Containers[i], flags...)
	}
}

// RunCUDAIn is RunCUDA for one container.
func RunCUDAIn(c *corev1.Container, flags ...string) {
	c.Command = []string{"/bin/sh", "-c", strings.Join(append([]string{cudaProgram}, flags...), " ")}
}

// Served is what a CUDA program says of its MPS server.
type Served struct {
	Server  int    `json:"serverPID"`
	Threads int    `json:"activeThreadPercentage"`
	Memory  uint64 `json:"memoryLimitBytes"`
}

// Served waits until the program of a pod's container main has an MPS server.
func (c Client) Served(ctx context.Context, namespace, pod string) (Served, error) {
	var got Served
	err := Until(ctx, "the program of pod "+pod+" to have an MPS server", func(ctx context.Context) (bool, string, error) {
		log, err := c.Cluster.PodLogs(ctx, namespace, pod, "main")
		if err != nil {
			return false, err.Error(), nil
		}
		for line := range strings.Lines(log) {
			if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &got) == nil && got.Server > 0 {
				return true, "", nil
			}
		}
		return false, log, nil
	})
	return got, err
}
