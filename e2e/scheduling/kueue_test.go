// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	kueueNamespace = "kueue-system"
	kueueExamples  = "../../deployments/examples/kueue"
)

// queueBed is an API server with Kueue, the controllers of Jobs and claims, and cleave-scheduler.
type queueBed struct {
	*bed
	kueue *process.Program
}

// newQueueBed starts Kueue with a configuration of the examples, and what its queues need. There are no nodes.
func newQueueBed(t *testing.T, configuration string) queueBed {
	t.Helper()
	b := queueBed{bed: newBedWith(t, cluster.Options{})}
	program, err := cluster.BuildKueue(t.Context(), cluster.Options{Output: t.Output()})
	must(t, err)
	b.startController()
	b.runPods()
	b.startScheduler("{}")
	b.startKueue(program, configuration)
	return b
}

// startController starts the controllers of Kubernetes that queued work needs.
func (b *queueBed) startController() {
	b.t.Helper()
	o, err := cluster.Options{}.Resolve()
	must(b.t, err)
	p, err := process.Start(exec.Command(bin("kubernetes", "v"+o.Version, "kube-controller-manager"), "--kubeconfig="+b.kubeconfig,
		"--leader-elect=false", "--secure-port=0",
		"--controllers=job-controller,resourceclaim-controller,garbage-collector-controller"), filepath.Join(b.dir, "controller.log"))
	must(b.t, err)
	b.t.Cleanup(func() { _ = p.End(syscall.SIGKILL) })
}

// runPods does what kubelets do, until the test ends: pods with a node run, and those that are deleted end.
func (b *queueBed) runPods() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(b.t.Context(), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_ = b.runAll(ctx) // after an error, another look follows
			return false, nil
		})
	}()
	b.t.Cleanup(func() { <-done })
}

func (b *queueBed) runAll(ctx context.Context) error {
	pods, err := b.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if err := b.runPod(ctx, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *queueBed) runPod(ctx context.Context, pod *corev1.Pod) error {
	pods := b.kube.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.Spec.NodeName == "":
		return nil
	case pod.DeletionTimestamp != nil:
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Status.Phase == corev1.PodPending:
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		return errOf(pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}))
	}
	return nil
}

// startKueue installs what Kueue's chart does but for its pod, and starts its program in place of that.
func (b *queueBed) startKueue(program, configuration string) {
	b.t.Helper()
	ports, err := cluster.FreePorts(b.t.Context(), "127.0.0.1", 2)
	must(b.t, err)
	webhooks, health := ports[0], ports[1]
	b.kubectl(kueueObjects(b.t, webhooks), "create", "-f", "-")
	certificates := filepath.Join(b.dir, "kueue-certificates")
	must(b.t, os.Mkdir(certificates, 0o700))
	command := exec.Command(program, "--config="+b.kueueConfig(configuration, webhooks, health, certificates))
	command.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	b.kueue, err = process.Start(command, filepath.Join(b.dir, "kueue.log"))
	must(b.t, err)
	b.t.Cleanup(func() { _ = b.kueue.End(syscall.SIGKILL) })
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	must(b.t, b.kueue.WaitReady(ctx, func(ctx context.Context) error {
		if err := b.mountCertificates(ctx, certificates); err != nil {
			return err
		}
		return process.Ask(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", health))
	}))
}

// kueueService is where the API server finds webhooks, in every object that names them.
var kueueService = regexp.MustCompile(`(?m)^( +)name: 'kueue-webhook-service'$`)

// kueueObjects are those of Kueue's chart that its program needs. Their webhooks are at a port of this machine: of a Service with an
// ExternalName the API server takes name and port as they are (ResolveCluster of k8s.io/apiserver/pkg/util/proxy).
func kueueObjects(t *testing.T, port int) string {
	t.Helper()
	dir, err := cluster.ModuleDir(t.Context(), "../..", "kueue", "sigs.k8s.io/kueue")
	must(t, err)
	chart := filepath.Join(dir, "charts", "kueue")
	rendered, err := exec.CommandContext(t.Context(), bin("helm"), "template", "kueue", chart, "--namespace", kueueNamespace).Output()
	must(t, err)
	objects := []string{fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: kueue-webhook-service, namespace: %[1]s}
spec: {type: ExternalName, externalName: localhost}`, kueueNamespace)}
	kinds := []string{"CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Secret"}
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		var kind struct{ Kind string }
		must(t, yaml.Unmarshal([]byte(document), &kind))
		if slices.Contains(kinds, kind.Kind) {
			objects = append(objects, kueueService.ReplaceAllString(document, fmt.Sprintf("$0\n${1}port: %d", port)))
		}
	}
	return strings.Join(objects, "\n---\n")
}

// kueueConfig is the file of a configuration of the examples, with what is of this machine.
func (b *queueBed) kueueConfig(name string, webhooks, health int, certificates string) string {
	b.t.Helper()
	config := map[string]any{}
	must(b.t, yaml.UnmarshalStrict(readExample(b.t, name), &config))
	gates, _ := config["featureGates"].(map[string]any)
	if gates == nil {
		gates = map[string]any{}
	}
	gates["VisibilityOnDemand"] = false // an API server that nobody asks
	config["featureGates"] = gates
	config["health"] = map[string]any{"healthProbeBindAddress": fmt.Sprintf("127.0.0.1:%d", health)}
	config["clientConnection"] = map[string]any{"qps": 300, "burst": 500} // as in its chart
	config["metrics"] = map[string]any{"bindAddress": "0"}
	config["webhook"] = map[string]any{"host": "127.0.0.1", "port": webhooks, "certDir": certificates}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	data, err := json.Marshal(config)
	must(b.t, err)
	path := filepath.Join(b.dir, "kueue.json")
	must(b.t, os.WriteFile(path, data, 0o600))
	return path
}

// mountCertificates writes what Kueue's Secret has to the directory where its pod would have it mounted.
func (b *queueBed) mountCertificates(ctx context.Context, dir string) error {
	secret, err := b.kube.CoreV1().Secrets(kueueNamespace).Get(ctx, "kueue-webhook-server-cert", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for name, data := range secret.Data {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubectl runs kubectl with an input.
func (b *queueBed) kubectl(input string, args ...string) {
	b.t.Helper()
	client := workload.Client{Cluster: b.control, Kube: b.kube}
	if _, err := client.Kubectl(b.t.Context(), input, args...); err != nil {
		b.t.Fatal(err)
	}
}

func readExample(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(kueueExamples, name+".yaml"))
	must(t, err)
	return data
}
