// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// names of devices, in the same order.
func deviceNames(devices []resourceapi.Device) []string {
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

func TestPods_SharedClaim(t *testing.T) {
	ctx, s := newSpace(t)
	s.createExample(ctx, "shared-claim")
	var devices []string
	for _, name := range []string{"shared-a", "shared-b"} {
		pod := s.pods.running(ctx, name)
		got := s.pods.devices(ctx, pod)
		if len(got) != 1 || len(devices) > 0 && got[0] != devices[0] {
			t.Errorf("pod %s has devices %v, want one, the same for all pods (%v)", name, got, devices)
		}
		devices = got
		s.pods.checkSees(ctx, pod, got)
	}
	s.plugin.waitRecords(ctx, env.node, "shared")

	s.pods.delete(ctx, "shared-a")
	s.plugin.waitRecords(ctx, env.node, "shared")
	if b := s.pods.running(ctx, "shared-b"); b.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("pod shared-b was restarted when the other pod of its claim ended")
	}
	s.pods.delete(ctx, "shared-b")
	s.plugin.waitRecords(ctx, env.node)
	s.eventually(ctx, "the claim to be free", func(ctx context.Context) (bool, string, error) {
		claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, "shared", metav1.GetOptions{})
		return err == nil && claim.Status.Allocation == nil, "allocated", err
	})
}

func TestPods_ContainerWithoutClaim(t *testing.T) {
	ctx, s := newSpace(t)
	objects := gpuPod("pod", 1)
	pod := podOf(objects)
	without := *pod.Spec.Containers[0].DeepCopy()
	without.Name, without.Resources = "without", corev1.ResourceRequirements{}
	pod.Spec.Containers = append(pod.Spec.Containers, without)
	s.create(ctx, objects...)
	s.pods.running(ctx, "pod")
	seen := s.pods.look(ctx, "pod", "without")
	if diff := cmp.Diff(workload.Seen{}, seen); diff != "" {
		t.Errorf("what the container without a claim sees (-want +got):\n%s", diff)
	}
	if seen = s.pods.look(ctx, "pod", "main"); len(seen.GPUNodes()) != 1 {
		t.Errorf("the container with the claim sees %v, want one GPU", seen)
	}
}

func TestPods_Completed(t *testing.T) {
	ctx, s := newSpace(t)
	objects := gpuPod("job", 1)
	podOf(objects).Spec.Containers[0].Command = []string{"/bin/sh", "-c", "ls /dev/nvidia[0-9]*"}
	s.create(ctx, objects...)
	_, err := env.client.WaitPod(ctx, s.name, "job", "to end", func(pod *corev1.Pod) (bool, error) {
		if pod.Status.Phase == corev1.PodFailed {
			return false, errors.New("it failed: it saw no GPU")
		}
		return pod.Status.Phase == corev1.PodSucceeded, nil
	})
	s.must(err)
	s.plugin.waitRecords(ctx, env.node)
}
