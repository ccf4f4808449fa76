// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// A claim is allocated a partition, and before the kubelet has it prepared, which it does once volumes are mounted, the policy
// comes to offer whole GPUs alone; and once the pod runs, the node reboots. The partition stays the claim's throughout.
func TestPolicy_SwitchedBeforePrepare(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	s.plugin.usePolicies(ctx, "partitions", map[string]string{"partitions": "[{tiers: [mig]}]", "whole": "[{tiers: [exclusive]}]"})
	s.published.waitOffer(ctx, name, "mig=200")
	kubelet := env.cluster.Component(cluster.Kubelet)
	s.must(kubelet.Signal(syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { s.must(kubelet.Signal(syscall.SIGCONT)) })
	defer resume()
	s.create(ctx, partitionPod("late", smallClass)...)
	s.pods.scheduled(ctx, "late")
	s.plugin.selectPolicy(ctx, "whole")
	const offer = "gpu=8 mig!=1"
	s.published.waitOffer(ctx, name, offer)
	s.create(ctx, gpuPod("all", gpus)...)
	s.pods.unschedulable(ctx, "all")
	resume()
	pod := s.pods.running(ctx, "late")
	s.pods.checkDevices(ctx, pod, s.pods.devices(ctx, pod))
	before := s.hardware.partitions(ctx)

	s.must(env.node.Kill())
	s.hardware.sim(ctx, "reboot")
	s.plugin.start(ctx)
	s.hardware.waitPartitions(ctx)
	s.plugin.waitRecords(ctx, env.node)
	s.published.waitOffer(ctx, name, offer)
	s.pods.unschedulable(ctx, "all")
	// After a reboot the kubelet prepares the claims of the pods whose containers it starts again.
	claim, _ := s.pods.ownClaim(ctx, pod)
	plugin, err := workload.Dial(env.node.Socket())
	s.must(err)
	defer func() { s.must(plugin.Close()) }()
	_, err = plugin.Prepare(ctx, claim)
	s.must(err)
	s.hardware.waitPartitions(ctx, before...)
	s.plugin.waitRecords(ctx, env.node, claim.Name)
	s.pods.delete(ctx, "late")
	s.published.waitOffer(ctx, name, "gpu=8")
	s.pods.running(ctx, "all")
}
