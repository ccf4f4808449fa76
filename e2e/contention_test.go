// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/process"
)

func TestContention_NinthPod(t *testing.T) {
	ctx, s := newSpace(t, nil)
	allocated := map[string]string{} // device by pod
	for i := range gpus {
		s.create(ctx, gpuPod(fmt.Sprintf("pod-%d", i), 1)...)
	}
	for i := range gpus {
		pod := s.pods.running(ctx, fmt.Sprintf("pod-%d", i))
		for _, device := range s.pods.devices(ctx, pod) {
			for other, taken := range allocated {
				if taken == device {
					t.Errorf("pods %s and %s both have %s", other, pod.Name, device)
				}
			}
			allocated[pod.Name] = device
		}
		s.pods.checkSees(ctx, pod, []string{allocated[pod.Name]})
	}
	s.create(ctx, gpuPod("ninth", 1)...)
	if message := s.pods.unschedulable(ctx, "ninth"); !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("the scheduler says %q of the ninth pod, want that it cannot allocate all claims", message)
	}
	s.pods.delete(ctx, "pod-3")
	ninth := s.pods.running(ctx, "ninth")
	got := s.pods.devices(ctx, ninth)
	if !slices.Equal(got, []string{allocated["pod-3"]}) {
		t.Errorf("the ninth pod has %v, want %s, which pod-3 gave back", got, allocated["pod-3"])
	}
	s.pods.checkSees(ctx, ninth, got)
}

// stubborn makes a pod's container ignore the request to end. The container carries a mark
// in its environment.
func stubborn(pod *corev1.Pod, mark string) {
	c := &pod.Spec.Containers[0]
	c.Command = []string{"/bin/sh", "-c", "trap '' TERM; while true; do sleep 1; done"}
	c.Env = []corev1.EnvVar{{Name: "E2E_MARK", Value: mark}}
}

// runsWithMark reports whether a process of that mark runs.
func runsWithMark(mark string) bool {
	return slices.ContainsFunc(processes(), func(p process.Process) bool {
		return strings.Contains("\x00"+p.Environment, "\x00E2E_MARK="+mark+"\x00")
	})
}

// A pod deleted by force leaves the API server at once, so the scheduler hands its GPU on while the kubelet still ends
// the container.
func TestContention_ForceDeletedPod(t *testing.T) {
	ctx, s := newSpace(t, nil)
	handOverForced(ctx, s, 8)
}

// The kubelet takes a pod that was deleted by force for inactive, and unprepares its claim within a minute, while the
// containers have time left to end (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra).
func TestContention_ForceDeletedPodUnprepared(t *testing.T) {
	t.Parallel() // it takes longer than that minute
	ctx, s := newSpace(t, nil)
	handOverForced(ctx, s, 65)
}

// handOverForced deletes a pod by force whose container takes so many seconds to end, and fails if another pod runs on its GPU
// before that.
func handOverForced(ctx context.Context, s *space, grace int64) {
	s.Helper()
	target := s.published.gpus(ctx)[0]
	first, second := gpuPod("first", 1, thisGPU(&target)), gpuPod("second", 1, thisGPU(&target))
	stubborn(podOf(first), s.name+"-first")
	podOf(first).Spec.TerminationGracePeriodSeconds = &grace
	podOf(second).Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E2E_MARK", Value: s.name + "-second"}}
	s.create(ctx, first...)
	s.pods.running(ctx, "first")
	if !runsWithMark(s.name + "-first") {
		s.Fatal("the first pod runs, but no process carries its mark")
	}
	s.create(ctx, second...)
	s.pods.unschedulable(ctx, "second")

	now := int64(0)
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "first", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	overlapped := false // the second pod had the GPU allocated while the first one's container still ran
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
	if !overlapped {
		s.Error("the second pod was never scheduled while the first one's container ran: this test saw nothing of what it is for")
	}
	second1 := s.pods.running(ctx, "second")
	s.pods.checkSees(ctx, second1, []string{target.Name})
	s.plugin.waitRecords(ctx, env.node, ownClaim(second1))
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
