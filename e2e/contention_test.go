// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// deleteByForce has a pod leave the API server at once.
func deleteByForce(ctx context.Context, s *space, pod string) {
	s.Helper()
	now := int64(0)
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// stubborn makes a pod's container ignore the request to end. The container carries a mark
// in its environment.
func stubborn(pod *corev1.Pod, mark string) {
	c := &pod.Spec.Containers[0]
	c.Command = []string{"/bin/sh", "-c", "trap '' TERM; while true; do sleep 1; done"}
	c.Env = []corev1.EnvVar{{Name: "E2E_MARK", Value: mark}}
}

func runsWithMark(mark string) bool {
	return slices.ContainsFunc(processes(), func(p process.Process) bool { return carriesMark(p, mark) })
}

func carriesMark(p process.Process, mark string) bool {
	return strings.Contains("\x00"+p.Environment, "\x00E2E_MARK="+mark+"\x00")
}

// A pod deleted by force leaves the API server at once, so the scheduler hands its GPU on while the kubelet still ends
// the container.
func TestContention_ForceDeletedPod(t *testing.T) {
	ctx, s := newSpace(t)
	target := contend(ctx, s, 30) // time for the second pod to be scheduled on a busy machine
	deleteByForce(ctx, s, "first")
	if !handedOver(ctx, s, target) {
		t.Error("the second pod was never scheduled while the first one's container ran: this test saw nothing of what it is for")
	}
}

// The kubelet takes a pod that was deleted by force for inactive, and unprepares its claim within a minute, also while its
// containers run (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra). Here they do because the container runtime does not
// answer; with real GPUs it is the driver that takes its time to end a process.
func TestContention_ForceDeletedPodUnprepared(t *testing.T) {
	t.Parallel() // it takes that minute
	needPodGroups(t)
	ctx, s := newSpace(t)
	target := contend(ctx, s, 2)
	first, err := env.kube.CoreV1().Pods(s.name).Get(ctx, "first", metav1.GetOptions{})
	s.must(err)
	shim := shimOf(s, s.name+"-first")
	s.must(syscall.Kill(shim, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { s.must(syscall.Kill(shim, syscall.SIGCONT)) })
	defer resume()
	deleteByForce(ctx, s, "first")
	s.events.wait(ctx, s.name, ownClaim(first), "ClaimNotReleased", "its pods still have processes")
	if runsWithMark(s.name + "-second") {
		t.Errorf("both pods run on GPU %s", target.Name)
	}
	resume()
	handedOver(ctx, s, target)
}

func needPodGroups(t *testing.T) {
	t.Helper()
	if !cluster.PodGroups(env.cluster) {
		t.Skip("the control groups of this machine cannot be written to")
	}
}

// shimOf is the process ID of the shim of containerd that runs the container of a mark.
func shimOf(s *space, mark string) int {
	s.Helper()
	parents := map[int]process.Process{}
	all := processes()
	for _, p := range all {
		parents[p.PID] = p
	}
	for _, p := range all {
		if parent := parents[p.Parent]; carriesMark(p, mark) && strings.HasPrefix(parent.Name, "containerd-shim") {
			return parent.PID
		}
	}
	s.Fatalf("no process of mark %s is the child of a shim", mark)
	return 0
}

// contend has pod first run on a GPU, with a container that does not end when it is asked to, but so many seconds later, and pod
// second wait for that GPU.
func contend(ctx context.Context, s *space, grace int64) (target resourceapi.Device) {
	s.Helper()
	target = s.published.gpus(ctx)[0]
	first, second := gpuPod("first", 1, thisGPU(&target)), gpuPod("second", 1, thisGPU(&target))
	stubborn(podOf(first), s.name+"-first")
	podOf(first).Spec.TerminationGracePeriodSeconds = &grace
	podOf(second).Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E2E_MARK", Value: s.name + "-second"}}
	s.create(ctx, first...)
	s.pods.running(ctx, "first")
	// A container that is created has its environment from the execution of its program on, which the pod's phase does not wait for.
	s.eventually(ctx, "a process with the mark of the first pod", func(context.Context) (bool, string, error) {
		return runsWithMark(s.name + "-first"), "none", nil
	})
	s.create(ctx, second...)
	s.pods.unschedulable(ctx, "second")
	return target
}

// handedOver waits until the second pod runs on a GPU whose first pod was deleted, and fails if it does before that one's
// container has ended. overlapped says that the second had the GPU allocated while the first one's container still ran.
func handedOver(ctx context.Context, s *space, target resourceapi.Device) (overlapped bool) {
	s.Helper()
	s.eventually(ctx, "the second pod to run", func(ctx context.Context) (bool, string, error) {
		if err := checkOneHolderEach(); err != nil {
			return false, "", err
		}
		// In this order: what ends between the two looks does not show as both.
		if runsWithMark(s.name+"-second") && runsWithMark(s.name+"-first") {
			return false, "", fmt.Errorf("containers of both pods run on GPU %s", target.Name)
		}
		pod, err := env.kube.CoreV1().Pods(s.name).Get(ctx, "second", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		overlapped = overlapped || pod.Spec.NodeName != "" && runsWithMark(s.name+"-first")
		return pod.Status.Phase == corev1.PodRunning, string(pod.Status.Phase), nil
	})
	second1 := s.pods.running(ctx, "second")
	s.pods.checkSees(ctx, second1, []string{target.Name})
	s.plugin.waitRecords(ctx, env.node, ownClaim(second1))
	return overlapped
}

// checkOneHolderEach fails if the plugin's records give a GPU to two claims.
func checkOneHolderEach() error {
	all, err := readRecords(env.node)
	if err != nil {
		return err
	}
	holder := map[string]string{}
	for _, r := range all {
		for _, d := range r.Devices {
			if other := holder[d.GPU]; other != "" && !d.AdminAccess {
				return fmt.Errorf("GPU %s is allocated to claims %s and %s", other, r.Claim, d.GPU)
			}
			if !d.AdminAccess {
				holder[d.GPU] = r.Claim.String()
			}
		}
	}
	return nil
}
