// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// smallClass is the DeviceClass of the smallest partitions.
const smallClass = "mig-1g.10gb.cleave.dev"

// partitionPod is a pod with a partition of a class, all selectors fitting.
func partitionPod(name, class string, selectors ...string) []runtime.Object {
	return claimPod(name, workload.ClaimSpec(class, 1, selectors...))
}

// partitions are those that exist on the simulated node, as "GPU PROFILE PLACEMENT".
func (s *space) partitions(ctx context.Context) []string {
	s.Helper()
	out, err := env.node.Sim(ctx, "mig", "list")
	s.must(err)
	var found []string
	for line := range strings.Lines(out) {
		// GPU GI CI PROFILE PLACEMENT UUID
		if fields := strings.Fields(line); len(fields) == 6 && strings.HasPrefix(fields[5], "MIG-") {
			found = append(found, strings.Join([]string{fields[0], fields[3], fields[4]}, " "))
		}
	}
	slices.Sort(found)
	return found
}

// waitPartitions waits until just these exist.
func (s *space) waitPartitions(ctx context.Context, want ...string) {
	s.Helper()
	slices.Sort(want)
	s.eventually(ctx, fmt.Sprintf("the partitions %q and no others", want), func(ctx context.Context) (bool, string, error) {
		got := s.partitions(ctx)
		return slices.Equal(got, want), fmt.Sprintf("%q", got), nil
	})
}

// occupied are the devices of the cluster's node that are tainted as occupied, in order of publication.
func (s *space) occupied(ctx context.Context) []string {
	s.Helper()
	var names []string
	for _, d := range devicesOf(s.slices(ctx, env.cluster.NodeName())) {
		if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == publish.TaintOccupied }) {
			names = append(names, d.Name)
		}
	}
	return names
}

func TestMIG_SevenPods(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.createExample(ctx, "seven-small-pods")
	capabilities := map[string]string{}
	var want []string
	for i := range 7 {
		pod := s.running(ctx, fmt.Sprintf("seven-small-%d", i+1))
		s.checkSees(ctx, pod, s.devices(ctx, pod))
		seen, err := env.client.Look(ctx, s.name, pod.Name, "main")
		s.must(err)
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
	s.waitPartitions(ctx, want...)
	s.delete(ctx, "seven-small-3")
	s.eventually(ctx, "one partition less", func(ctx context.Context) (bool, string, error) {
		got := s.partitions(ctx)
		return len(got) == 6, fmt.Sprintf("%q", got), nil
	})
}

func TestMIG_4gAnd3g(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.createExample(ctx, "mig-pair-4g-3g")
	pod := s.running(ctx, "mig-pair")
	s.waitPartitions(ctx, "0 4g.40gb 0:4", "0 3g.40gb 4:4")
	var seen []string
	for _, c := range []string{"trainer", "evaluator"} {
		look, err := env.client.Look(ctx, s.name, pod.Name, c)
		s.must(err)
		seen = append(seen, look.Capabilities()...)
	}
	if len(seen) != 4 || len(slices.Compact(slices.Sorted(slices.Values(seen)))) != 4 {
		t.Errorf("the containers see %v, want two capability nodes each and none in common", seen)
	}
	s.delete(ctx, "mig-pair")
	s.waitPartitions(ctx)
}

func TestMIG_ExtendedResource(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.createExample(ctx, "mig-extended-resource")
	s.running(ctx, "mig-extended-resource")
	s.waitPartitions(ctx, "0 1g.10gb 5:1", "0 1g.10gb 6:1")
}

func TestMIG_WholeGPUWaits(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.create(ctx, partitionPod("part", smallClass)...)
	s.running(ctx, "part")
	s.create(ctx, gpuPod("seven", 7)...)
	s.running(ctx, "seven")
	s.create(ctx, gpuPod("eighth", 1)...)
	if message := s.unschedulable(ctx, "eighth"); !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("the scheduler says %q", message)
	}
	s.delete(ctx, "part")
	eighth := s.running(ctx, "eighth")
	s.checkSees(ctx, eighth, s.devices(ctx, eighth))
	s.waitPartitions(ctx)
}

func TestMIG_UnmanagedPartition(t *testing.T) {
	ctx, s := newSpace(t, nil)
	simulate := func(args ...string) {
		t.Helper()
		_, err := env.node.Sim(ctx, args...)
		s.must(err)
	}
	simulate("mig", "mode", "--gpu", "0", "on")
	simulate("mig", "create", "--gpu", "0", "--profile", "2g.20gb", "--start", "4")
	gpu := slices.Min(deviceNames(s.published(ctx))) // GPU 0
	overlapped := []string{gpu, gpu + "-timeslice", gpu + "-mps", gpu + "-mig-19-5", gpu + "-mig-19-4", gpu + "-mig-20-5", gpu + "-mig-20-4",
		gpu + "-mig-15-4", gpu + "-mig-14-4", gpu + "-mig-9-4", gpu + "-mig-0-0"}
	s.eventually(ctx, "what overlaps the partition to be tainted", func(ctx context.Context) (bool, string, error) {
		got := s.occupied(ctx)
		return slices.Equal(got, overlapped), cmp.Diff(overlapped, got), nil
	})
	// Alongside it there is room; in its place there is none.
	s.create(ctx, partitionPod("neighbour", smallClass, onGPU(gpu))...)
	s.running(ctx, "neighbour")
	s.waitPartitions(ctx, "0 1g.10gb 6:1", "0 2g.20gb 4:2")
	s.must(env.node.Kill())
	s.startPlugin(ctx)
	s.delete(ctx, "neighbour")
	s.waitPartitions(ctx, "0 2g.20gb 4:2")
	if diff := cmp.Diff(overlapped, s.occupied(ctx)); diff != "" {
		t.Errorf("tainted devices after a restart (-want +got):\n%s", diff)
	}
	simulate("mig", "destroy", "--gpu", "0", "--all")
	s.eventually(ctx, "the taints to go", func(ctx context.Context) (bool, string, error) {
		got := s.occupied(ctx)
		return len(got) == 0, fmt.Sprint(got), nil
	})
}

// onGPU selects the partitions of a GPU by the device name of the GPU, which holds its PCI address.
func onGPU(device string) string {
	address := strings.Split(strings.TrimPrefix(device, "gpu-"), "-")
	return fmt.Sprintf(`device.attributes["resource.kubernetes.io"].pciBusID == "%s:%s:%s.%s"`, address[0], address[1], address[2], address[3])
}

func TestMIG_PluginKilled(t *testing.T) {
	ctx, s := newSpace(t, nil)
	for _, name := range []string{"stays", "goes"} {
		s.create(ctx, partitionPod(name, smallClass)...)
	}
	stays := s.running(ctx, "stays")
	s.running(ctx, "goes")
	before := s.partitions(ctx)
	if len(before) != 2 {
		t.Fatalf("there are partitions %q, want two", before)
	}
	s.must(env.node.Kill())
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "goes", metav1.DeleteOptions{}))
	s.startPlugin(ctx)
	s.gone(ctx, "goes")
	s.eventually(ctx, "the partition of the pod that is gone to go", func(ctx context.Context) (bool, string, error) {
		got := s.partitions(ctx)
		return len(got) == 1, fmt.Sprintf("%q", got), nil
	})
	s.checkUndisturbed(ctx, stays)
	s.waitRecords(ctx, env.node, ownClaim(stays))
}

func TestMIG_Reboot(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.create(ctx, partitionPod("holds", smallClass)...)
	pod := s.running(ctx, "holds")
	before := s.partitions(ctx)
	s.must(env.node.Kill())
	_, err := env.node.Sim(ctx, "reboot")
	s.must(err)
	s.startPlugin(ctx)
	s.waitPartitions(ctx)
	s.waitRecords(ctx, env.node)

	// After a reboot the kubelet prepares the claims of the pods whose containers it starts again.
	claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, ownClaim(pod), metav1.GetOptions{})
	s.must(err)
	plugin, err := workload.Dial(env.node.Socket())
	s.must(err)
	defer func() { s.must(plugin.Close()) }()
	_, err = plugin.Prepare(ctx, &drapb.Claim{Namespace: s.name, Name: claim.Name, Uid: string(claim.UID)})
	s.must(err)
	s.waitPartitions(ctx, before...)
	s.waitRecords(ctx, env.node, claim.Name)
	s.delete(ctx, "holds")
	s.waitPartitions(ctx)
}
