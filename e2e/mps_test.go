// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// mpsPod is a pod whose program uses an MPS share, with more flags for the program.
func mpsPod(name string, spec resourceapi.ResourceClaimSpec, flags ...string) []runtime.Object {
	objects := claimPod(name, spec)
	workload.RunCUDA(podOf(objects), flags...)
	return objects
}

// isMPS reports whether a process is such a program of MPS, of this node.
func isMPS(p process.Process, command string) bool {
	return strings.Contains(p.Command, command) && strings.Contains(p.Environment, "="+env.node.Supervisor.Dir())
}

func TestMPS_TwoServices(t *testing.T) {
	ctx, s := newSpace(t)
	objects, err := workload.Load(filepath.Join(env.source, "deployments", "examples", "mps-two-services.yaml"))
	s.must(err)
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			workload.RunCUDA(pod)
		}
	}
	// One after the other: while an allocation is under way, the scheduler counts its GPU as taken for other claims.
	s.create(ctx, objects[:2]...)
	embeddings := s.pods.running(ctx, "embeddings")
	s.create(ctx, objects[2:]...)
	chat := s.pods.running(ctx, "chat")
	if a, b := s.pods.device(ctx, embeddings), s.pods.device(ctx, chat); a != b || !strings.HasSuffix(a, "-mps") {
		t.Errorf("the services have %s and %s, want one GPU shared by MPS", a, b)
	}
	a, b := s.pods.served(ctx, embeddings), s.pods.served(ctx, chat)
	if diff := cmp.Diff(workload.Served{Server: a.Server, Threads: 25, Memory: 20 << 30}, a); diff != "" {
		t.Errorf("embeddings (-want +got):\n%s", diff)
	}
	// It lowered its own limit.
	if diff := cmp.Diff(workload.Served{Server: a.Server, Threads: 50, Memory: 36 << 30}, b); diff != "" {
		t.Errorf("chat (-want +got):\n%s", diff)
	}
	s.pods.delete(ctx, "embeddings")
	s.pods.checkUndisturbed(ctx, chat)
	s.pods.delete(ctx, "chat")
	s.hardware.waitNoMPS(ctx)
}

func TestMPS_MemoryLimit(t *testing.T) {
	ctx, s := newSpace(t)
	good := s.pods.run(ctx, mpsPod("good", shareSpec(mpsClass, "memory=10Gi")))
	s.pods.served(ctx, good)
	s.create(ctx, mpsPod("greedy", shareSpec(mpsClass, "memory=4Gi"), "--memory 5G")...)
	s.pods.until(ctx, "greedy", "to fail", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	s.pods.checkUndisturbed(ctx, good)
	shared := strings.TrimSuffix(s.pods.device(ctx, good), "-mps")
	s.pods.run(ctx, gpuPod("seven", gpus-1))
	s.create(ctx, gpuPod("whole", 1)...)
	s.pods.unschedulable(ctx, "whole")
	s.create(ctx, claimPod("time", shareSpec(timeSliceClass))...)
	s.pods.unschedulable(ctx, "time")
	s.pods.delete(ctx, "time")
	s.pods.delete(ctx, "good")
	s.pods.delete(ctx, "greedy")
	if got := s.pods.device(ctx, s.pods.running(ctx, "whole")); got != shared {
		t.Errorf("the eighth whole GPU is %s, want %s, which is shared no more", got, shared)
	}
	s.hardware.waitNoMPS(ctx)
}

func TestMPS_PluginRestarted(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, mpsPod("client", shareSpec(mpsClass)))
	before, daemon := s.pods.served(ctx, pod), s.hardware.daemon()
	for _, end := range []func() error{env.node.Kill, env.node.Stop} {
		s.must(end())
		s.plugin.start(ctx)
		s.pods.checkUndisturbed(ctx, pod)
		s.hardware.checkDaemon(daemon)
	}
	if got := s.pods.served(ctx, s.pods.run(ctx, mpsPod("second", shareSpec(mpsClass)))); got.Server != before.Server {
		t.Errorf("a second client has server %d, the first %d", got.Server, before.Server)
	}
	// A claim that goes while the plugin is down gives its share back when it is up again.
	s.must(env.node.Kill())
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "second", metav1.DeleteOptions{}))
	s.plugin.start(ctx)
	s.pods.gone(ctx, "second")
	s.pods.delete(ctx, "client")
	s.hardware.waitNoMPS(ctx)
}

func TestMPS_SupervisorKilled(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, mpsPod("client", shareSpec(mpsClass)))
	s.pods.served(ctx, pod)
	daemon := s.hardware.daemon()
	s.must(env.node.Supervisor.Kill())
	t.Cleanup(func() {
		if env.node.Supervisor.PID() == 0 {
			s.must(env.node.Supervisor.Start(context.WithoutCancel(ctx)))
		}
	})
	s.events.wait(ctx, "", env.cluster.NodeName(), "MPSSupervisorAway", ownClaim(pod))
	s.eventually(ctx, "shares by MPS to be tainted", func(ctx context.Context) (bool, string, error) {
		tainted := 0
		for _, d := range s.published.devices(ctx, env.cluster.NodeName()) {
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == nodeslices.TaintNoMPS }) {
				tainted++
			}
		}
		return tainted == gpus, fmt.Sprintf("%d devices", tainted), nil
	})
	s.create(ctx, mpsPod("waits", shareSpec(mpsClass))...)
	s.pods.unschedulable(ctx, "waits")
	s.pods.checkUndisturbed(ctx, pod)
	s.must(env.node.Supervisor.Start(ctx))
	s.hardware.checkDaemon(daemon)
	s.pods.served(ctx, s.pods.running(ctx, "waits"))
	s.pods.checkUndisturbed(ctx, pod)
	s.pods.delete(ctx, "waits")
	// A share that goes while no supervisor is there does not keep its pod, and is given back later.
	s.must(env.node.Supervisor.Kill())
	s.pods.delete(ctx, "client")
	s.must(env.node.Supervisor.Start(ctx))
	s.hardware.waitNoMPS(ctx)
}

func TestMPS_DaemonKilled(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, mpsPod("client", shareSpec(mpsClass)))
	s.pods.served(ctx, pod)
	const restarts = `cleave_mps_server_events_total{kind="DaemonRestarted"}`
	before, err := env.node.Metrics(ctx)
	s.must(err)
	s.must(syscall.Kill(s.hardware.daemon().PID, syscall.SIGKILL))
	s.events.wait(ctx, s.name, ownClaim(pod), "MPSDaemonLost", "GPU")
	s.events.wait(ctx, "", env.cluster.NodeName(), "MPSDaemonLost", ownClaim(pod))
	// The other daemon may be gone: it ends with the claim, and that with the client, which has lost its server.
	s.eventually(ctx, "another daemon to have started", func(ctx context.Context) (bool, string, error) {
		all, err := env.node.Metrics(ctx)
		return err == nil && all[restarts] != before[restarts], all[restarts], err
	})
	s.pods.served(ctx, s.pods.run(ctx, mpsPod("next", shareSpec(mpsClass))))
	s.pods.delete(ctx, "client")
	s.pods.delete(ctx, "next")
	s.hardware.waitNoMPS(ctx)
}
