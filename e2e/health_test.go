// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

func TestHealth_TaintAndRecovery(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	node := env.cluster.NodeName()
	holder := s.pods.run(ctx, gpuPod("holder", 1))
	faulty := s.pods.device(ctx, holder)
	s.pods.waitHealth(ctx, "holder", corev1.ResourceHealthStatusHealthy)
	free := s.published.gpus(ctx)[0].Name // which the next claim would get
	if free == faulty {
		free = s.published.gpus(ctx)[1].Name
	}
	s.hardware.fault(ctx, faulty, "--xid", "79")
	s.hardware.fault(ctx, free, "--xid", "31") // a program's
	s.hardware.fault(ctx, free, "--xid", "74")
	want := s.published.family(ctx, faulty, "xid-79:NoSchedule")
	for d, taint := range s.published.family(ctx, free, "xid-74:NoSchedule") {
		want[d] = taint
	}
	s.published.waitUnhealthy(ctx, want)

	if got := s.pods.waitHealth(ctx, "holder", corev1.ResourceHealthStatusUnhealthy); !strings.Contains(got, "XID 79") {
		t.Errorf("the pod's status says %q, want the XID", got)
	}
	s.events.wait(ctx, s.name, ownClaim(holder), "GPUUnhealthy", faulty, "XID 79")
	s.events.wait(ctx, "default", node, "GPUUnhealthy", faulty, "XID 79", s.name+"/"+ownClaim(holder))
	s.events.wait(ctx, "default", node, "GPUUnhealthy", free, "XID 74")
	s.pods.checkUndisturbed(ctx, holder)
	s.plugin.checkMetrics(ctx, map[string]string{
		fmt.Sprintf(`cleave_gpu_healthy{gpu=%q}`, faulty):                               "0",
		fmt.Sprintf(`cleave_xid_total{gpu=%q,xid="79"}`, faulty):                        "1",
		fmt.Sprintf(`cleave_xid_total{gpu=%q,xid="31"}`, free):                          "1",
		fmt.Sprintf(`cleave_gpu_healthy{gpu=%q}`, s.published.other(ctx, faulty, free)): "1",
	})

	again := func() { // an error that does not recur is over after a minute (health.Probation)
		s.hardware.fault(ctx, faulty, "--xid", "79")
		s.hardware.fault(ctx, free, "--xid", "74")
	}
	again()
	if got := s.pods.devices(ctx, s.pods.run(ctx, gpuPod("others", gpus-2))); slices.Contains(got, faulty) || slices.Contains(got, free) {
		t.Errorf("a pod got %v, and %s and %s are unhealthy", got, faulty, free)
	}
	s.create(ctx, gpuPod("waits", 1)...)
	s.pods.unschedulable(ctx, "waits")
	again()
	if got := s.pods.device(ctx, s.pods.run(ctx, claimPod("tolerates", tolerating(claimOf(1), resourceapi.DeviceTaintEffectNoSchedule)))); got != free {
		t.Errorf("a claim that tolerates the taint got %s, want %s", got, free)
	}
	s.pods.delete(ctx, "tolerates")

	s.hardware.heal(ctx, faulty, free)
	if got := s.pods.device(ctx, s.pods.running(ctx, "waits")); got != free {
		t.Errorf("the pod that waited got %s, want %s", got, free)
	}
	s.pods.waitHealth(ctx, "holder", corev1.ResourceHealthStatusHealthy)
	s.events.wait(ctx, "default", node, "GPURecovered", faulty)
	s.events.wait(ctx, s.name, ownClaim(holder), "GPURecovered", faulty)
	s.pods.checkUndisturbed(ctx, holder)
}

// tolerating makes a claim tolerate unhealthy GPUs.
func tolerating(spec resourceapi.ResourceClaimSpec, effects ...resourceapi.DeviceTaintEffect) resourceapi.ResourceClaimSpec {
	for _, effect := range effects {
		exactly := spec.Devices.Requests[0].Exactly
		exactly.Tolerations = append(exactly.Tolerations, resourceapi.DeviceToleration{
			Key: nodeslices.TaintUnhealthy, Operator: resourceapi.DeviceTolerationOpExists, Effect: effect,
		})
	}
	return spec
}

func TestHealth_UnhealthyPartition(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	sick := s.pods.device(ctx, s.pods.run(ctx, partitionPod("sick", smallClass))) // the topmost place of GPU 0
	s.pods.run(ctx, partitionPod("sound", smallClass))
	gpu, _, _ := strings.Cut(sick, "-mig-")
	gi := s.hardware.instance(ctx, strings.TrimPrefix(sick, gpu+"-mig-19-")+":1")
	s.hardware.fault(ctx, gpu, "--xid", "94", "--gi", gi)
	want := map[string]string{}
	for _, name := range []string{"", "-timeslice", "-mps", "-mig-19-6", "-mig-20-6", "-mig-15-6", "-mig-9-4", "-mig-0-0"} {
		want[gpu+name] = "xid-94:NoSchedule"
	}
	s.published.waitUnhealthy(ctx, want)
	s.pods.waitHealth(ctx, "sick", corev1.ResourceHealthStatusUnhealthy)
	s.pods.waitHealth(ctx, "sound", corev1.ResourceHealthStatusHealthy)
	s.hardware.fault(ctx, gpu, "--xid", "94", "--gi", gi) // again: one that does not recur is over after a minute
	s.pods.delete(ctx, "sick")
	if got := s.pods.device(ctx, s.pods.run(ctx, partitionPod("next", smallClass))); got == sick || !strings.HasPrefix(got, gpu+"-mig-19-") {
		t.Errorf("the next partition is %s, want one of GPU %s that is not %s", got, gpu, sick)
	}
	s.published.waitUnhealthy(ctx, map[string]string{}) // the driver wants nothing, and it does not come again
}

// A plugin that starts knows what drivers want before it publishes anything: taints never go in between.
func TestHealth_TaintsOutlivePlugin(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	gpu := s.published.gpus(ctx)[0].Name
	s.hardware.fault(ctx, gpu, "--recovery", "2")
	want := s.published.family(ctx, gpu, "needs-reboot:NoSchedule")
	s.published.waitUnhealthy(ctx, want)
	added := s.published.taintAdded(ctx, gpu)
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	s.published.waitUnhealthy(ctx, want)
	if got := s.published.taintAdded(ctx, gpu); got != added {
		t.Errorf("the taint is there since %s, want %s: it was away for a while", got, added)
	}
	s.hardware.heal(ctx, gpu)
}

func TestHealth_LostGPUEvictsPods(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	policy := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n  - health: {reaction: %s}\n"
	s.must(os.WriteFile(path, fmt.Appendf(nil, policy, "NoExecute"), 0o600))
	s.must(env.node.Kill())
	env.node.SetFlags("--policy", path)
	t.Cleanup(func() {
		env.node.SetFlags()
		s.must(env.node.Kill())
		s.plugin.start(context.WithoutCancel(ctx))
	})
	s.plugin.start(ctx)
	gone := s.pods.device(ctx, s.pods.run(ctx, gpuPod("evicted", 1)))
	stays := s.pods.run(ctx, claimPod("stays", tolerating(claimOf(1), resourceapi.DeviceTaintEffectNoExecute)))
	elsewhere := s.pods.run(ctx, gpuPod("elsewhere", 1))
	faulty := s.pods.device(ctx, stays)
	s.hardware.fault(ctx, gone, "--xid", "79", "--lost")
	s.hardware.fault(ctx, faulty, "--xid", "79", "--lost")
	s.pods.gone(ctx, "evicted")
	want := s.published.family(ctx, gone, "gpu-lost:NoExecute")
	for d, taint := range s.published.family(ctx, faulty, "gpu-lost:NoExecute") {
		want[d] = taint
	}
	s.published.waitUnhealthy(ctx, want)
	s.pods.waitHealth(ctx, "stays", corev1.ResourceHealthStatusUnhealthy)
	s.pods.checkUndisturbed(ctx, stays)
	s.pods.checkUndisturbed(ctx, elsewhere)
	s.plugin.waitRecords(ctx, env.node, ownClaim(stays), ownClaim(elsewhere)) // giving a lost GPU back asks nothing of it

	// Another reaction holds at once for the taints that are there.
	s.must(os.WriteFile(path, fmt.Appendf(nil, policy, "None"), 0o600))
	for d := range want {
		want[d] = "gpu-lost:None"
	}
	s.published.waitUnhealthy(ctx, want)
	s.hardware.sim(ctx, "fault", "--clear")
	s.published.waitUnhealthy(ctx, map[string]string{})
	if got := s.pods.devices(ctx, s.pods.run(ctx, gpuPod("again", gpus-2))); !slices.Contains(got, gone) {
		t.Errorf("all free GPUs are %v, want %s among them, which is back", got, gone)
	}
}
