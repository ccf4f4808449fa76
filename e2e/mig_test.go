// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// smallClass is the DeviceClass of the smallest partitions.
const smallClass = "mig-1g.10gb.cleave.dev"

// partitionPod is a pod with a partition of a class, all selectors fitting.
func partitionPod(name, class string, selectors ...string) []runtime.Object {
	return claimPod(name, workload.ClaimSpec(class, 1, selectors...))
}

func TestMIG_SevenPods(t *testing.T) {
	ctx, s := newSpace(t)
	s.createExample(ctx, "seven-small-pods")
	capabilities := map[string]string{}
	var want []string
	for i := range 7 {
		pod := s.pods.running(ctx, fmt.Sprintf("seven-small-%d", i+1))
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
		seen := s.pods.look(ctx, pod.Name, "main")
		if len(seen.Capabilities()) != 2 {
			t.Errorf("pod %s sees %v, want the nodes of its GPU instance and its compute instance", pod.Name, seen.Capabilities())
		}
		for _, c := range seen.Capabilities() {
			if other, taken := capabilities[c]; taken {
				t.Errorf("pods %s and %s both see %s", pod.Name, other, c)
			}
			capabilities[c] = pod.Name
		}
		want = append(want, fmt.Sprintf("0 1g.10gb %d:1", i))
	}
	s.hardware.waitPartitions(ctx, want...)
	s.pods.delete(ctx, "seven-small-3")
	s.hardware.waitPartitionCount(ctx, 6)
}

func TestMIG_4gAnd3g(t *testing.T) {
	ctx, s := newSpace(t)
	s.createExample(ctx, "mig-pair-4g-3g")
	pod := s.pods.running(ctx, "mig-pair")
	s.hardware.waitPartitions(ctx, "0 4g.40gb 0:4", "0 3g.40gb 4:4")
	var seen []string
	for _, c := range []string{"trainer", "evaluator"} {
		look := s.pods.look(ctx, pod.Name, c)
		seen = append(seen, look.Capabilities()...)
	}
	if len(seen) != 4 || len(slices.Compact(slices.Sorted(slices.Values(seen)))) != 4 {
		t.Errorf("the containers see %v, want two capability nodes each and none in common", seen)
	}
	s.pods.delete(ctx, "mig-pair")
	s.hardware.waitPartitions(ctx)
}

func TestMIG_ExtendedResource(t *testing.T) {
	ctx, s := newSpace(t)
	s.createExample(ctx, "mig-extended-resource")
	s.pods.running(ctx, "mig-extended-resource")
	s.hardware.waitPartitions(ctx, "0 1g.10gb 5:1", "0 1g.10gb 6:1")
}

func TestMIG_WholeGPUWaits(t *testing.T) {
	ctx, s := newSpace(t)
	s.pods.run(ctx, partitionPod("part", smallClass))
	s.pods.run(ctx, gpuPod("seven", 7))
	s.create(ctx, gpuPod("eighth", 1)...)
	if message := s.pods.unschedulable(ctx, "eighth"); !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("the scheduler says %q", message)
	}
	s.pods.delete(ctx, "part")
	eighth := s.pods.running(ctx, "eighth")
	s.pods.checkSees(ctx, eighth, s.pods.devices(ctx, eighth))
	s.hardware.waitPartitions(ctx)
}

func TestMIG_UnmanagedPartition(t *testing.T) {
	ctx, s := newSpace(t)
	simulate := func(args ...string) {
		t.Helper()
		s.hardware.sim(ctx, args...)
	}
	simulate("mig", "mode", "--gpu", "0", "on")
	simulate("mig", "create", "--gpu", "0", "--profile", "2g.20gb", "--start", "4")
	gpu := slices.Min(deviceNames(s.published.gpus(ctx))) // GPU 0
	overlapped := []string{gpu, gpu + "-timeslice", gpu + "-mps", gpu + "-mig-19-5", gpu + "-mig-19-4", gpu + "-mig-20-5", gpu + "-mig-20-4",
		gpu + "-mig-15-4", gpu + "-mig-14-4", gpu + "-mig-9-4", gpu + "-mig-0-0"}
	s.eventually(ctx, "what overlaps the partition to be tainted", func(ctx context.Context) (bool, string, error) {
		got := s.published.occupied(ctx)
		return slices.Equal(got, overlapped), cmp.Diff(overlapped, got), nil
	})
	// Alongside it there is room; in its place there is none.
	s.pods.run(ctx, partitionPod("neighbour", smallClass, onGPU(*find(s.published.gpus(ctx), gpu).Attributes["uuid"].StringValue)))
	s.hardware.waitPartitions(ctx, "0 1g.10gb 6:1", "0 2g.20gb 4:2")
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	s.pods.delete(ctx, "neighbour")
	s.hardware.waitPartitions(ctx, "0 2g.20gb 4:2")
	if diff := cmp.Diff(overlapped, s.published.occupied(ctx)); diff != "" {
		t.Errorf("tainted devices after a restart (-want +got):\n%s", diff)
	}
	simulate("mig", "destroy", "--gpu", "0", "--all")
	s.eventually(ctx, "the taints to go", func(ctx context.Context) (bool, string, error) {
		got := s.published.occupied(ctx)
		return len(got) == 0, fmt.Sprint(got), nil
	})
}

// onGPU selects the partitions of a GPU.
func onGPU(uuid string) string {
	return fmt.Sprintf(`device.attributes["gpu.cleave.dev"].parentUUID == %q`, uuid)
}
