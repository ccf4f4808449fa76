// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// DeviceClasses of shared GPUs.
const (
	timeSliceClass = "timeslice.cleave.dev"
	mpsClass       = "mps.cleave.dev"
)

// shareSpec asks for one share of a class, with amounts such as "memory=20Gi".
func shareSpec(class string, amounts ...string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{workload.Request("gpu", class, 1, amounts...)}}}
}

// withParameters gives a claim opaque parameters.
func withParameters(spec resourceapi.ResourceClaimSpec, parameters string) resourceapi.ResourceClaimSpec {
	return workload.WithParameters(spec, workload.Driver, `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig",`+parameters+`}`)
}

func TestTimeSlice_FourNotebooks(t *testing.T) {
	ctx, s := newSpace(t)
	s.pods.run(ctx, gpuPod("seven", gpus-1))
	notebooks, err := workload.Load(env.source + "/deployments/examples/timeslice-four-notebooks.yaml")
	s.must(err)
	var devices []string
	for i := range 4 {
		// One after the other: a pod that meets the GPU while another's allocation is under way is turned down, and tried
		// again only when something is freed or after minutes.
		s.create(ctx, notebooks[i])
		pod := s.pods.running(ctx, fmt.Sprintf("notebook-%d", i+1))
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
		device := s.pods.device(ctx, pod)
		devices = append(devices, device)
		uuid := *find(s.published.devices(ctx, env.cluster.NodeName()), device).Attributes["uuid"].StringValue
		want := []string{"CLEAVE_GPU_UUID=" + uuid, "CLEAVE_MEMORY_MIB=20224", "CLEAVE_SHARES=1"}
		if diff := cmp.Diff(want, s.pods.environment(ctx, pod, "CLEAVE_")); diff != "" {
			t.Errorf("environment of %s (-want +got):\n%s", pod.Name, diff)
		}
	}
	if len(slices.Compact(devices)) != 1 || !strings.HasSuffix(devices[0], "-timeslice") {
		t.Errorf("the notebooks have %v, want one time-sliced GPU", devices)
	}
	fifth := podOf(gpuPod("fifth", 1))
	fifth.Spec.ResourceClaims, fifth.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu.shared": resource.MustParse("1")},
	}
	s.create(ctx, fifth)
	s.pods.unschedulable(ctx, "fifth")
	s.pods.delete(ctx, "notebook-2")
	s.pods.running(ctx, "fifth")
}

func TestTimeSlice_Interval(t *testing.T) {
	ctx, s := newSpace(t)
	s.pods.run(ctx, gpuPod("seven", gpus-1))
	s.pods.run(ctx, claimPod("any", shareSpec(timeSliceClass)))
	if got := s.hardware.timeSlices(ctx); len(got) != 0 {
		t.Errorf("nobody asked for an interval, and there are %v", got)
	}
	s.pods.run(ctx, claimPod("long", withParameters(shareSpec(timeSliceClass), `"timeSlice":{"interval":"Long"}`)))
	if got := s.hardware.timeSlices(ctx); len(got) != 1 || !strings.Contains(strings.ToLower(got[0]), "long") {
		t.Errorf("the intervals are %v, want one Long", got)
	}
	s.create(ctx, claimPod("short", withParameters(shareSpec(timeSliceClass), `"timeSlice":{"interval":"Short"}`))...)
	s.events.wait(ctx, s.name, "short", prepareFailed, "time slices Long because claim "+s.name+"/long")
	// The driver cannot be unloaded while the plugin has it open, and forgets intervals when it is.
	s.must(env.node.Kill())
	for _, action := range []string{"unload", "load"} {
		s.hardware.sim(ctx, "driver", action)
	}
	if got := s.hardware.timeSlices(ctx); len(got) != 0 {
		t.Fatalf("after a reload of the driver the intervals are %v, want none", got)
	}
	s.plugin.start(ctx)
	s.eventually(ctx, "the interval to be Long again", func(ctx context.Context) (bool, string, error) {
		got := s.hardware.timeSlices(ctx)
		return len(got) == 1 && strings.Contains(strings.ToLower(got[0]), "long"), fmt.Sprint(got), nil
	})
	s.pods.delete(ctx, "short")
	s.pods.delete(ctx, "long")
	s.hardware.waitDefaultTimeSlices(ctx)
}

func TestTimeSlice_Quota(t *testing.T) {
	ctx, s := newSpace(t)
	objects, err := workload.Load(env.source + "/deployments/examples/quota.yaml")
	s.must(err)
	for _, o := range objects {
		if quota, ok := o.(*corev1.ResourceQuota); ok {
			quota.Namespace = ""
			s.create(ctx, quota)
		}
	}
	s.eventually(ctx, "the quota to be counted", func(ctx context.Context) (bool, string, error) {
		quota, err := env.kube.CoreV1().ResourceQuotas(s.name).Get(ctx, "gpus", metav1.GetOptions{})
		return err == nil && len(quota.Status.Used) == len(quota.Spec.Hard), fmt.Sprint(quota.Status.Used), err
	})
	claim := func(name, class string, count int64) error {
		spec := shareSpec(class)
		spec.Devices.Requests[0].Exactly.Count = count
		_, err := env.kube.ResourceV1().ResourceClaims(s.name).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	s.must(claim("three", timeSliceClass, 3))
	for name, class := range map[string]string{"two": timeSliceClass, "whole": workload.Driver} {
		if err := claim(name, class, 2); err == nil || !strings.Contains(err.Error(), "exceeded quota") {
			t.Errorf("claim %s: got %v, want that it exceeds the quota", name, err)
		}
	}
}
