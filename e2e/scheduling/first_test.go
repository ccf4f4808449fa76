// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// kubernetesDir is where kubeadm has the files that it mounts.
const kubernetesDir = "/etc/kubernetes/"

// firstBed is for schedulers that run in place of the first.
type firstBed struct{ priorityBed }

// staticPod is the command of kube-scheduler's static pod as kubeadm makes it with the patch (e2e/kubeadm), with the files that it mounts
// in a directory of the test. The kubeconfig is kube-scheduler's own, as kubeadm has it.
func (b firstBed) staticPod() []string {
	b.t.Helper()
	data, err := os.ReadFile("../testdata/kubeadm/kube-scheduler.yaml")
	must(b.t, err)
	pod := &corev1.Pod{}
	must(b.t, yaml.UnmarshalStrict(data, pod))
	dir := filepath.Join(b.dir, "image")
	must(b.t, os.Mkdir(dir, 0o700))
	mounted := func(text string) string { return strings.ReplaceAll(text, kubernetesDir, dir+"/") }
	for _, v := range pod.Spec.Volumes {
		source := filepath.Join("..", "..", "deployments", "kubeadm", filepath.Base(v.HostPath.Path))
		if v.HostPath.Path == kubernetesDir+"scheduler.conf" {
			source = b.identity()
		}
		data, err := os.ReadFile(source)
		must(b.t, err)
		must(b.t, os.WriteFile(mounted(v.HostPath.Path), []byte(mounted(string(data))), 0o600))
	}
	command := pod.Spec.Containers[0].Command
	for i := range command {
		command[i] = mounted(command[i])
	}
	must(b.t, os.Symlink(bin("cleave-scheduler"), filepath.Join(dir, command[0])))
	command[0] = filepath.Join(dir, command[0])
	return command
}

// identity is the kubeconfig of system:kube-scheduler.
func (b firstBed) identity() string {
	return filepath.Join(filepath.Dir(b.kubeconfig), "pki", string(cluster.Scheduler)+".kubeconfig")
}

// leader is who holds kube-scheduler's lease.
func (b firstBed) leader(ctx context.Context) (string, error) {
	lease, err := b.kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "kube-scheduler", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// refused fails for what the API server has refused a scheduler, by its log.
func refused(b *bed, log string) {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, log))
	must(b.t, err)
	for line := range strings.Lines(string(data)) {
		if strings.Contains(strings.ToLower(line), "forbidden") {
			b.t.Errorf("it lacks a right: %s", line)
		}
	}
}

// TestFirst_StaticPod: on control planes one node after the other is changed. The patched static pod waits for the lease of the
// kube-scheduler that is left, takes over when that ends, and has all rights it needs by Kubernetes' own roles for kube-scheduler.
func TestFirst_StaticPod(t *testing.T) {
	b := firstBed{newPriorityBed(t, "n1", "n2")}
	command := b.staticPod()
	first := filepath.Join(b.dir, "first")
	must(t, os.Symlink(b.control.Scheduler(), first))
	b.start(first, "--kubeconfig="+b.identity())
	before := b.scheduler
	named := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.SchedulerName = name } }
	b.addPods("before", "mig-1g.10gb.cleave.dev", 1, named(corev1.DefaultSchedulerName))
	b.scheduled(1)
	held, err := b.leader(t.Context())
	must(t, err)

	b.start(command[0], command[1:]...)
	if now, err := b.leader(t.Context()); err != nil || now != held || held == "" {
		t.Errorf("the lease is %q's, want that of %q: %v", now, held, err)
	}
	must(t, before.End(syscall.SIGTERM))
	must(t, workload.Until(t.Context(), "the lease to be another's", func(ctx context.Context) (bool, string, error) {
		now, err := b.leader(ctx)
		return now != "" && now != held, now, err
	}))
	plain := podWith()
	plain.Name, plain.Spec.SchedulerName = "plain", corev1.DefaultSchedulerName
	must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), plain, metav1.CreateOptions{})))
	b.addPods("first", "mig-1g.10gb.cleave.dev", 3, named(corev1.DefaultSchedulerName))
	b.addPods("second", "mig-1g.10gb.cleave.dev", 3) // which name cleave-scheduler
	b.scheduled(8)
	if got := b.gpus(); len(got) != 1 {
		t.Errorf("seven partitions of the size of one GPU are on %v", got)
	}
	b.addPods("low", "gpu.cleave.dev", 15, priority("low"), graceful, named(corev1.DefaultSchedulerName))
	b.scheduled(23)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"), named(corev1.DefaultSchedulerName))
	b.ending(1)
	refused(b.bed, "kube-scheduler.log")
}
