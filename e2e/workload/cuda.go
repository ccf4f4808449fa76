// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// asSimulator makes the simulated MPS daemon's own program, which CDI mounts, the simulator's under another name.
const asSimulator = "ln -s /usr/bin/nvidia-cuda-mps-control /tmp/nvml-sim && "

// cudaProgram is a stand-in for a CUDA program. It prints the server that it got and stays until that is gone.
const cudaProgram = asSimulator + "exec /tmp/nvml-sim cuda-client --hold"

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

// RunBurn makes the containers of a pod burn what devices they have by a script of nvml-sim burn, again and again with a pause of ten
// seconds if it ends. The root of the simulated node stands in for the kernel driver, so they have it, and the node's PIDs.
func RunBurn(pod *corev1.Pod, root, script string) {
	pod.Spec.HostPID = true
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: "driver", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: root}},
	})
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "driver", MountPath: root})
		c.Command = []string{"/bin/sh", "-c", asSimulator + `while /tmp/nvml-sim burn --root "$0" --script "$1"; do sleep 10; done`, root, script}
	}
}
