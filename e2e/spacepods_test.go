// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// pods is what a test sees and asks of the pods of its namespace.
type pods struct{ *space }

// checkLibrary checks that a pod's container has a library of the driver.
func (s pods) checkLibrary(ctx context.Context, pod *corev1.Pod, path string) {
	s.Helper()
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod.Name, "--", "sh", "-c", "ls "+path)
	s.must(err)
	if diff := cmp.Diff(path, strings.TrimSpace(out)); diff != "" {
		s.Errorf("library of the driver in pod %s (-want +got):\n%s", pod.Name, diff)
	}
}

// waitHealth waits until a pod's status says of all its devices how they are, and returns what it says besides.
func (s pods) waitHealth(ctx context.Context, name string, want corev1.ResourceHealthStatus) string {
	s.Helper()
	var message string
	s.until(ctx, name, "to say that its devices are "+string(want), func(pod *corev1.Pod) bool {
		devices, other := 0, 0
		for _, c := range pod.Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				for _, h := range r.Resources {
					devices++
					if h.Health != want {
						other++
					}
					if h.Message != nil {
						message = *h.Message
					}
				}
			}
		}
		return devices > 0 && other == 0
	})
	return message
}

// look is what a container of a pod sees.
func (s pods) look(ctx context.Context, pod, container string) workload.Seen {
	s.Helper()
	seen, err := env.client.Look(ctx, s.name, pod, container)
	s.must(err)
	return seen
}

// served waits until a pod's program has an MPS server.
func (s pods) served(ctx context.Context, pod *corev1.Pod) workload.Served {
	s.Helper()
	got, err := env.client.Served(ctx, s.name, pod.Name)
	s.must(err)
	return got
}

// createAnywhere creates a pod, with its template, that nodes without a kubelet may get, and removes it after the test.
func (s pods) createAnywhere(ctx context.Context, objects []runtime.Object, selector map[string]string) {
	s.Helper()
	pod := podOf(objects)
	pod.Spec.NodeSelector = selector
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	s.create(ctx, objects...)
	s.Cleanup(func() {
		now := int64(0) // no kubelet ends it
		_ = env.kube.CoreV1().Pods(s.name).Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
}

// scheduled waits until a pod has a node.
func (s pods) scheduled(ctx context.Context, name string) *corev1.Pod {
	s.Helper()
	return s.until(ctx, name, "to be scheduled", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

// ownClaim is the claim that a pod has of its own, as the kubelet names it to the plugin, and its allocation.
func (s pods) ownClaim(ctx context.Context, pod *corev1.Pod) (*drapb.Claim, *resourceapi.AllocationResult) {
	s.Helper()
	claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, ownClaim(pod), metav1.GetOptions{})
	s.must(err)
	return &drapb.Claim{Namespace: s.name, Name: claim.Name, Uid: string(claim.UID)}, claim.Status.Allocation
}

// checkUndisturbed checks that the containers of a pod are the same as before.
func (s pods) checkUndisturbed(ctx context.Context, before *corev1.Pod) {
	s.Helper()
	diff, err := env.client.Undisturbed(ctx, before)
	s.must(err)
	if diff != "" {
		s.Errorf("containers of pod %s (-before +after):\n%s", before.Name, diff)
	}
}

// run creates a pod, with the objects that it needs, and waits until it runs.
func (s pods) run(ctx context.Context, objects []runtime.Object) *corev1.Pod {
	s.Helper()
	s.create(ctx, objects...)
	return s.running(ctx, podOf(objects).Name)
}

// until waits until a pod is as it has to be, and returns it.
func (s pods) until(ctx context.Context, name, what string, done func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	start := time.Now()
	pod, err := env.client.WaitPod(ctx, s.name, name, what, func(pod *corev1.Pod) (bool, error) { return done(pod), nil })
	s.must(err)
	s.logSlow("pod "+name+" "+what, start)
	return pod
}

// running waits until a pod runs.
func (s pods) running(ctx context.Context, name string) *corev1.Pod {
	s.Helper()
	start := time.Now()
	pod, err := env.client.WaitRunning(ctx, s.name, name)
	s.must(err)
	s.logSlow("pod "+name+" to run", start)
	return pod
}

// delete deletes a pod and waits until it is gone.
func (s pods) delete(ctx context.Context, name string) {
	s.Helper()
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, name, metav1.DeleteOptions{}))
	s.gone(ctx, name)
}

// gone waits until a pod is no longer there.
func (s pods) gone(ctx context.Context, name string) {
	s.Helper()
	start := time.Now()
	s.must(env.client.WaitGone(ctx, s.name, name))
	s.logSlow("pod "+name+" to go", start)
}

// unschedulable waits until the scheduler says that a pod fits nowhere, and returns its message.
func (s pods) unschedulable(ctx context.Context, name string) string {
	s.Helper()
	var message string
	s.until(ctx, name, "to be turned down by the scheduler", func(pod *corev1.Pod) bool {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				message = c.Message
				// Before its claim exists a pod is unschedulable too.
				return !strings.Contains(message, "waiting for dynamic resource controller")
			}
		}
		return false
	})
	return message
}

// devices are the names of the devices that a pod's claims were allocated, sorted.
func (s pods) devices(ctx context.Context, pod *corev1.Pod) []string {
	s.Helper()
	allocated, err := env.client.Devices(ctx, pod)
	s.must(err)
	var names []string
	for _, a := range allocated {
		names = append(names, a.Device)
	}
	slices.Sort(names)
	return names
}

// checkSees is checkDevices, and checks that every container has the driver's library where Debian has it.
func (s pods) checkSees(ctx context.Context, pod *corev1.Pod, devices []string) {
	s.Helper()
	s.checkDevices(ctx, pod, devices)
	for _, c := range pod.Spec.Containers {
		seen := s.pods.look(ctx, pod.Name, c.Name)
		if diff := cmp.Diff([]string{"/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, seen.Libraries); diff != "" {
			s.Errorf("libraries that container %s of pod %s finds (-want +got):\n%s", c.Name, pod.Name, diff)
		}
	}
}

// checkDevices checks that every container of a pod sees the device nodes of exactly these devices, and what any CUDA
// program needs besides.
func (s pods) checkDevices(ctx context.Context, pod *corev1.Pod, devices []string) {
	s.Helper()
	published := s.published.devices(ctx, env.cluster.NodeName())
	var want []string
	for _, name := range devices {
		d := find(published, name)
		if d == nil {
			s.Fatalf("pod %s has device %s, which is not published", pod.Name, name)
		}
		want = append(want, s.hardware.deviceNode(d))
	}
	slices.Sort(want)
	want = slices.Compact(want) // partitions of one GPU share its node
	for _, c := range pod.Spec.Containers {
		seen := s.pods.look(ctx, pod.Name, c.Name)
		if diff := cmp.Diff(want, seen.GPUNodes()); diff != "" {
			s.Errorf("GPUs that container %s of pod %s sees (-want +got):\n%s", c.Name, pod.Name, diff)
		}
		for _, control := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} {
			if !slices.Contains(seen.DeviceNodes, control) {
				s.Errorf("container %s of pod %s has no %s, only %v", c.Name, pod.Name, control, seen.DeviceNodes)
			}
		}
		if !slices.Contains(seen.Environment, "NVIDIA_VISIBLE_DEVICES=void") {
			s.Errorf("container %s of pod %s lacks NVIDIA_VISIBLE_DEVICES=void, which keeps other hooks away: %v", c.Name, pod.Name, seen.Environment)
		}
	}
}

// environment is what a pod's container has of the variables with some prefixes, sorted.
func (s pods) environment(ctx context.Context, pod *corev1.Pod, prefixes ...string) []string {
	s.Helper()
	seen := s.pods.look(ctx, pod.Name, "main")
	var found []string
	for _, v := range seen.Environment {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(v, p) }) {
			found = append(found, v)
		}
	}
	slices.Sort(found)
	return found
}

func (s pods) device(ctx context.Context, pod *corev1.Pod) string {
	s.Helper()
	names := s.devices(ctx, pod)
	if len(names) != 1 {
		s.Fatalf("pod %s has devices %v, want one", pod.Name, names)
	}
	return names[0]
}
