// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// compatible runs manifests that were written for NVIDIA's DRA driver, unchanged, with nvidiaCompatible: both classes, the parameters
// for time slices and MPS, and selection by what that driver publishes. The admission policies let them through.
func compatible(t *testing.T, ctx context.Context) {
	compatibleRefusals(t, ctx)
	for _, name := range []string{"gpus", "mig", "sharing"} {
		compatiblePods(t, ctx, name)
	}
}

// compatibleRefusals creates claims with parameters that cannot be honoured.
func compatibleRefusals(t *testing.T, ctx context.Context) {
	t.Helper()
	const policy = "cleave-claims"
	create := func(ctx context.Context, kind string) error {
		claim := &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "refused-"},
			Spec:       workload.WithParameters(resourceapi.ResourceClaimSpec{}, "gpu.nvidia.com", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"`+kind+`"}`),
		}
		_, err := env.kube.ResourceV1().ResourceClaims(demo).Create(ctx, claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// The API server takes a moment to read a policy.
	must(t, workload.Until(ctx, policy+" to be in force", func(ctx context.Context) (bool, string, error) {
		err := create(ctx, "NoSuchConfig")
		return err != nil && strings.Contains(err.Error(), policy), fmt.Sprint(err), nil
	}))
	for kind, says := range map[string]string{"VfioDeviceConfig": "virtual machines", "ComputeDomainChannelConfig": "compute-domain.nvidia.com", "GPUConfig": "GpuConfig or MigDeviceConfig"} {
		wantRefused(t, kind, create(ctx, kind), policy, says)
	}
}

// compatiblePods runs the pods of a file, and looks at what they see.
func compatiblePods(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	objects, err := workload.Load(filepath.Join("..", "packing", "testdata", "nvidia-compatible", name+".yaml"))
	must(t, err)
	var pods []string
	for _, o := range objects {
		pod, isPod := o.(*corev1.Pod)
		if !isPod {
			continue
		}
		pods = append(pods, pod.Name)
		if strings.HasPrefix(pod.Name, "mps-") {
			workload.RunCUDA(pod)
		}
	}
	must(t, workload.Create(ctx, env.kube, demo, objects))
	for _, pod := range pods {
		running := runs(t, ctx, pod)
		if strings.HasPrefix(pod, "mps-") { // the program prints what MPS serves it, and nothing else
			served := served(t, ctx, pod)
			if served.Threads != 50 {
				t.Errorf("pod %s has %+v of MPS, want half of the threads", pod, served)
			}
			continue
		}
		seen, err := env.client.Look(ctx, demo, pod, running.Spec.Containers[0].Name)
		must(t, err)
		if len(seen.GPUNodes()) == 0 {
			t.Errorf("pod %s sees no GPU, only %v", pod, seen.DeviceNodes)
		}
	}
	// Eight GPUs are enough for one file at a time.
	emptyDemo(t, ctx)
}
