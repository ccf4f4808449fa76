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

	"github.com/cleave-dra/cleave/e2e/workload"
)

// Classes of shared partitions.
const (
	partitionMPSClass   = "mig-mps.cleave.dev"
	partitionSliceClass = "mig-timeslice.cleave.dev"
)

// sharedProfile asks for a share of a partition of a profile.
func sharedProfile(class, profile string, amounts ...string) resourceapi.ResourceClaimSpec {
	spec := shareSpec(class, amounts...)
	spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes[%q].profile == %q", workload.Driver, profile),
	}}}
	return spec
}

// Eight services share one partition, alongside another one that a claim has alone; the first makes it, the last removes it.
func TestPartitionShare_EightServices(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	s.plugin.usePolicies(ctx, "shared", map[string]string{"shared": "[{tiers: [mig], mig: {share: [{profile: 3g.40gb, mps: {shares: 8}}]}}]"})
	s.published.waitOffer(ctx, name, "mig-mps=16 mig=200")
	alone := s.pods.run(ctx, partitionPod("alone", "mig-4g.40gb.cleave.dev"))
	pods, devices := eightServices(ctx, s, workload.Served{Threads: 12, Memory: 4864 << 20})
	if len(slices.Compact(slices.Clone(devices))) != 1 || !strings.HasSuffix(devices[0], "-mig-9-4-mps") {
		t.Errorf("the services have %v, want one shared partition", devices)
	}
	s.hardware.waitPartitions(ctx, "0 4g.40gb 0:4", "0 3g.40gb 4:4")
	ninth := s.pods.run(ctx, mpsPod("ninth", sharedProfile(partitionMPSClass, "3g.40gb")))
	if device := s.pods.device(ctx, ninth); device == devices[0] {
		t.Errorf("a ninth service has %s, which is full", device)
	}
	s.pods.delete(ctx, "ninth")
	daemon := s.hardware.daemon()
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	s.hardware.checkDaemon(daemon)
	for _, pod := range pods[1:] {
		s.pods.delete(ctx, pod.Name)
	}
	s.pods.checkUndisturbed(ctx, pods[0])
	s.hardware.waitPartitions(ctx, "0 4g.40gb 0:4", "0 3g.40gb 4:4")
	s.pods.delete(ctx, pods[0].Name)
	s.hardware.waitNoMPS(ctx)
	s.hardware.waitPartitions(ctx, "0 4g.40gb 0:4")
	s.pods.checkUndisturbed(ctx, alone)
	s.pods.delete(ctx, "alone")
	s.hardware.waitPartitions(ctx)
	s.plugin.checkRecords(ctx)
}

// eightServices starts eight pods, each with a share of a partition, and checks that one server serves them with these limits.
func eightServices(ctx context.Context, s *space, want workload.Served) (pods []*corev1.Pod, devices []string) {
	s.Helper()
	for i := range 8 { // one after the other, see TestMPS_TwoServices
		pod := s.pods.run(ctx, mpsPod(fmt.Sprintf("service-%d", i+1), sharedProfile(partitionMPSClass, "3g.40gb")))
		pods, devices = append(pods, pod), append(devices, s.pods.device(ctx, pod))
		got := s.pods.served(ctx, pod)
		if i == 0 {
			want.Server = got.Server
		}
		if got != want {
			s.Errorf("service %d: got %+v, want %+v", i+1, got, want)
		}
	}
	return pods, devices
}

func TestPartitionShare_InTime(t *testing.T) {
	ctx, s := newSpace(t)
	s.plugin.usePolicies(ctx, "shared", map[string]string{
		"shared": "[{tiers: [mig], mig: {layout: {3g.40gb: 2}, share: [{profile: 3g.40gb, timeSlice: {shares: 2}}]}}]",
	})
	s.published.waitOffer(ctx, env.cluster.NodeName(), "mig-timeslice=16 mig=16")
	var layout []string
	for i := range gpus {
		layout = append(layout, fmt.Sprintf("%d 3g.40gb 0:4", i), fmt.Sprintf("%d 3g.40gb 4:4", i))
	}
	s.hardware.waitPartitions(ctx, layout...)
	a := s.pods.run(ctx, claimPod("a", sharedProfile(partitionSliceClass, "3g.40gb")))
	b := s.pods.run(ctx, claimPod("b", sharedProfile(partitionSliceClass, "3g.40gb", "memory=10Gi")))
	if x, y := s.pods.device(ctx, a), s.pods.device(ctx, b); x != y {
		t.Errorf("the pods have %s and %s, want one partition", x, y)
	}
	for _, pod := range []*corev1.Pod{a, b} {
		seen := s.pods.look(ctx, pod.Name, "main")
		if len(seen.Capabilities()) != 2 {
			t.Errorf("pod %s sees %v, want the nodes of the partition", pod.Name, seen.Capabilities())
		}
	}
	s.pods.delete(ctx, "a")
	s.pods.checkUndisturbed(ctx, b)
	s.pods.delete(ctx, "b")
	s.hardware.waitPartitions(ctx, layout...)
}
