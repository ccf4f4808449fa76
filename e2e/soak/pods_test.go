// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestRefusedPods(t *testing.T) {
	id, group, yes := types.UID("share"), "group", true
	claim := func(consumer, name string, results ...resourceapi.DeviceRequestAllocationResult) resourceapi.ResourceClaim {
		return resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: consumer, Name: name}},
		}}
	}
	claims := []resourceapi.ResourceClaim{
		claim("pods", "whole", resourceapi.DeviceRequestAllocationResult{Device: "gpu-0"}),
		claim("pods", "share", resourceapi.DeviceRequestAllocationResult{Device: "gpu-0-timeslice", ShareID: &id}),
		claim("pods", "admin", resourceapi.DeviceRequestAllocationResult{Device: "gpu-0-mps", AdminAccess: &yes}),
		claim("pods", "refused", resourceapi.DeviceRequestAllocationResult{Device: "gpu-0"}, resourceapi.DeviceRequestAllocationResult{Device: "gpu-1-mps"}),
		claim("podgroups", group, resourceapi.DeviceRequestAllocationResult{Device: "gpu-0-mig-9-4-timeslice"}),
		{},
	}
	var pods []corev1.Pod
	for _, name := range []string{"whole", "share", "admin", "refused", "member", "other"} {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	pods[4].Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	pods[5].Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
	if diff := cmp.Diff([]string{"refused", "member"}, refusedPods(claims, pods)); diff != "" {
		t.Errorf("pods whose claims are refused (-want +got):\n%s", diff)
	}
}

func TestEnded(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}
	refused := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "hook: no such file"}}
	givenUp := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 128, Reason: "StartError", Message: "failed to create containerd task: failed to create shim task: context canceled",
	}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for _, tc := range []struct {
		name   string
		phase  corev1.PodPhase
		status corev1.ContainerStatus
		want   bool
	}{
		{"it runs", corev1.PodRunning, corev1.ContainerStatus{State: running}, false},
		{"it has ended", corev1.PodRunning, corev1.ContainerStatus{State: over}, true},
		{"it has ended, and runs again", corev1.PodRunning, corev1.ContainerStatus{State: running, LastTerminationState: over, RestartCount: 1}, true},
		{"it has ended, and waits to run again", corev1.PodRunning, corev1.ContainerStatus{State: waits, LastTerminationState: over, RestartCount: 1}, true},
		{"the first never ran", corev1.PodRunning, corev1.ContainerStatus{State: running, LastTerminationState: waits, RestartCount: 1}, false},
		{"the first could not be started", corev1.PodRunning, corev1.ContainerStatus{State: waits, LastTerminationState: refused}, true},
		{"the first was given up", corev1.PodRunning, corev1.ContainerStatus{State: running, LastTerminationState: givenUp, RestartCount: 1}, false},
		{"it was given up", corev1.PodRunning, corev1.ContainerStatus{State: givenUp}, false},
		{"the pod failed", corev1.PodFailed, corev1.ContainerStatus{State: running}, true},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: tc.phase, ContainerStatuses: []corev1.ContainerStatus{tc.status}}}
		if got := ended(pod); got != tc.want {
			t.Errorf("%s: ended %t, want %t", tc.name, got, tc.want)
		}
	}
}
