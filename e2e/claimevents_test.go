// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// A pod whose partition others use ends, and the partition is destroyed once they do not.
func TestClaimEvents_PartitionInUse(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, partitionPod("stuck", smallClass))
	device := s.pods.device(ctx, pod)
	partitions, err := env.node.Partitions(ctx)
	s.must(err)
	if len(partitions) != 1 {
		t.Fatalf("there are partitions %v, want one", partitions)
	}
	p := partitions[0]
	client := []string{"--gpu", p.GPU, "--pid", fmt.Sprint(os.Getpid())}
	s.hardware.sim(ctx, append([]string{"client", "add", "--gi", p.GPUInstance, "--ci", p.ComputeInstance}, client...)...)
	inUse := true
	leave := func(ctx context.Context) {
		if inUse {
			inUse = false
			s.hardware.sim(ctx, append([]string{"client", "remove"}, client...)...)
		}
	}
	defer func() { leave(context.WithoutCancel(ctx)) }()
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "stuck", metav1.DeleteOptions{}))
	s.pods.gone(ctx, "stuck")
	s.events.wait(ctx, "", env.cluster.NodeName(), "ClaimNotReleased", device, fmt.Sprint(os.Getpid()), ". Once nothing uses the partition")
	leave(ctx)
	s.hardware.waitPartitions(ctx)
}

// So it is where an agent has it open that NVML does not list.
func TestClaimEvents_PartitionHeldByAgent(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, partitionPod("ended", smallClass))
	device := s.pods.device(ctx, pod)
	partitions, err := env.node.Partitions(ctx)
	s.must(err)
	if len(partitions) != 1 {
		t.Fatalf("there are partitions %v, want one", partitions)
	}
	agent, leave := holdOpen(ctx, s, env.node.Root(), "--gpu", partitions[0].GPU, "--gi", partitions[0].GPUInstance)
	defer leave()
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "ended", metav1.DeleteOptions{}))
	s.pods.gone(ctx, "ended")
	s.events.wait(ctx, "", env.cluster.NodeName(), "ClaimNotReleased", device, fmt.Sprintf("open in nvml-sim (process %d)", agent))
	leave()
	s.hardware.waitPartitions(ctx)
}

// So does a pod whose partition the driver does not destroy.
func TestClaimEvents_UnprepareFails(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	pod := s.pods.run(ctx, partitionPod("stuck", smallClass))
	gpu, _, _ := strings.Cut(s.pods.device(ctx, pod), "-mig-")
	s.hardware.fault(ctx, gpu, "--fail", "nvmlGpuInstanceDestroy", "UNKNOWN")
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "stuck", metav1.DeleteOptions{}))
	s.events.waitOnce(ctx, pod, "unprepare", "other", "UnprepareFailed", "Cannot unprepare the claim: ", ". The kubelet retries")
	s.hardware.sim(ctx, "fault", "--clear")
	s.pods.gone(ctx, "stuck")
	s.hardware.waitPartitions(ctx)
}

// And one whose MPS server is lost, or does not start.
func TestClaimEvents_MPSServer(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	pod := s.pods.run(ctx, mpsPod("client", shareSpec(mpsClass)))
	s.pods.served(ctx, pod)
	s.hardware.sim(ctx, "fault", "--fail", "mpsControlStart", "UNKNOWN")
	s.must(syscall.Kill(s.hardware.daemon().PID, syscall.SIGKILL))
	for _, object := range []string{"client", ownClaim(pod)} {
		s.events.wait(ctx, s.name, object, "MPSDaemonLost", "is lost", ". It restarts automatically")
	}
	s.create(ctx, mpsPod("next", shareSpec(mpsClass))...)
	next := s.pods.scheduled(ctx, "next")
	s.events.waitOnce(ctx, next, "prepare", "other", "MPSDaemonNotStarted", "start the MPS server of GPU", ". The kubelet retries")
	s.events.checkOnce(ctx, pod, "MPSDaemonLost")
	s.hardware.sim(ctx, "fault", "--clear")
	s.pods.running(ctx, "next")
	s.pods.delete(ctx, "next")
	s.pods.delete(ctx, "client")
	s.hardware.waitNoMPS(ctx)
}

// What a claim leaves that was unprepared without a driver is reported until it is gone.
func TestClaimEvents_NotReleased(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	yes := "true"
	release := func(value *string) {
		s.plugin.labelNode(context.WithoutCancel(ctx), v1alpha1.ReleaseDriverLabel, value)
	}
	t.Cleanup(func() { release(nil) })
	pod := s.pods.run(ctx, partitionPod("ended", smallClass))
	gpu, _, _ := strings.Cut(s.pods.device(ctx, pod), "-mig-")
	s.hardware.fault(ctx, gpu, "--fail", "nvmlGpuInstanceDestroy", "UNKNOWN")
	release(&yes)
	s.plugin.waitReadiness(ctx, "release-driver=true")
	s.pods.delete(ctx, "ended")
	release(nil)
	s.plugin.waitReadiness(ctx, "")
	s.events.wait(ctx, "", env.cluster.NodeName(), "ClaimNotReleased", "Claim "+s.name+"/"+ownClaim(pod), ". Cleave retries")
	s.events.wait(ctx, s.name, ownClaim(pod), "ClaimNotReleased", "Claim "+s.name+"/"+ownClaim(pod), ". Cleave retries")
	s.hardware.sim(ctx, "fault", "--clear")
	s.hardware.waitPartitions(ctx)
	s.plugin.waitRecords(ctx, env.node)
	if got := s.events.count(ctx, s.name, ownClaim(pod), "ClaimNotReleased"); got != 1 {
		t.Errorf("%d Events on the claim, want 1", got)
	}
}

// A claim that is gone keeps its GPU while a process uses it.
func TestClaimEvents_GoneWhileInUse(t *testing.T) {
	needPodGroups(t)
	ctx, s := newSpace(t)
	s.plugin.restart(ctx, "--reconcile-every", "500ms")
	atEnd(s.T, func(ctx context.Context) { s.plugin.restart(ctx) })
	device := s.published.gpus(ctx)[0]
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Spec: claimOf(1, thisGPU(&device))}
	pod := workload.Pod("runs", "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	s.create(ctx, claim, pod)
	s.pods.running(ctx, "runs")
	claims := env.kube.ResourceV1().ResourceClaims(s.name)
	s.eventually(ctx, "the pod to be known of the claim", func(ctx context.Context) (bool, string, error) {
		c, err := claims.Get(ctx, "taken", metav1.GetOptions{})
		return err == nil && len(c.Status.Devices) > 0, "no status", err
	})
	s.must(claims.Delete(ctx, "taken", metav1.DeleteOptions{}))
	_, err := claims.Patch(ctx, "taken", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	s.must(err)
	says := []string{"Claim " + s.name + "/taken", "its pods still have processes", ". End those processes"}
	for _, object := range []string{"taken", "runs"} {
		s.events.wait(ctx, s.name, object, "ClaimNotReleased", says...)
	}
	s.events.wait(ctx, "", env.cluster.NodeName(), "ClaimNotReleased", says...)
	s.plugin.waitRecords(ctx, env.node, "taken")
	s.pods.delete(ctx, "runs")
	s.plugin.waitRecords(ctx, env.node)
	for _, object := range []string{"taken", "runs"} {
		if got := s.events.count(ctx, s.name, object, "ClaimNotReleased"); got != 1 {
			t.Errorf("%d Events on %s, want 1", got, object)
		}
	}
}

// waitOnce waits for an Event of a reason on a pod and its claim, with all parts, until the kubelet has tried its operation twice
// more, which the metrics count under an error, and checks that it is still the only one.
func (s events) waitOnce(ctx context.Context, pod *corev1.Pod, operation, failure, reason string, parts ...string) {
	s.Helper()
	for _, object := range []string{pod.Name, ownClaim(pod)} {
		s.wait(ctx, s.name, object, reason, parts...)
	}
	metric := fmt.Sprintf("cleave_claim_errors_total{operation=%q,reason=%q}", operation, failure)
	attempts := func(ctx context.Context) int {
		all, err := env.node.Metrics(ctx)
		s.must(err)
		n, err := strconv.Atoi(all[metric])
		s.must(err)
		return n
	}
	before := attempts(ctx)
	s.eventually(ctx, "two more attempts to "+operation, func(ctx context.Context) (bool, string, error) {
		now := attempts(ctx)
		return now >= before+2, fmt.Sprintf("%d attempts, before %d", now, before), nil
	})
	s.checkOnce(ctx, pod, reason)
}

// checkOnce checks that a pod and its claim have one Event of a reason each.
func (s events) checkOnce(ctx context.Context, pod *corev1.Pod, reason string) {
	s.Helper()
	for _, object := range []string{pod.Name, ownClaim(pod)} {
		if got := s.count(ctx, s.name, object, reason); got != 1 {
			s.Errorf("%d Events %s on %s, want 1", got, reason, object)
		}
	}
}

// count is how often an Event of a reason was written on an object.
func (s events) count(ctx context.Context, namespace, object, reason string) int {
	s.Helper()
	list, err := env.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + object})
	s.must(err)
	count := 0
	for i := range list.Items {
		count += int(max(1, list.Items[i].Count))
	}
	return count
}
