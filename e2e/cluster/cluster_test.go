// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// realCluster skips a test unless real clusters are asked for, and returns a
// directory for one of its own.
func realCluster(t *testing.T) string {
	t.Helper()
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("CLEAVE_E2E=1 runs tests with real clusters, as root")
	}
	// The directory of t.TempDir is too long for sockets.
	dir, err := os.MkdirTemp("/tmp", "cleave-")
	must(t, err)
	t.Cleanup(func() {
		if err := Down(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// testWriter shows progress in the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// waitHealth looks at the cluster until it says what is wanted: on a busy machine a component may miss a single look.
func waitHealth(ctx context.Context, t *testing.T, c *Cluster, want func(error) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := poll(ctx, pollInterval, func(ctx context.Context) error {
		if err := c.Healthy(ctx); !want(err) {
			return fmt.Errorf("the cluster says: %v", err) //nolint:errorlint // nil is not wanted, either
		}
		return nil
	})
	must(t, err)
}

func isNil(err error) bool { return err == nil }

func TestCluster(t *testing.T) {
	dir := realCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	up, err := Up(ctx, Options{Dir: dir, NodeLabels: map[string]string{"test": "yes"}, Output: testWriter{t}})
	must(t, err)
	// What follows is what another program would see.
	c, err := Open(dir)
	must(t, err)
	waitHealth(ctx, t, c, isNil)
	client, err := c.Client()
	must(t, err)
	node, err := client.CoreV1().Nodes().Get(ctx, c.NodeName(), metav1.GetOptions{})
	must(t, err)
	if got := node.Status.NodeInfo.KubeletVersion; got != "v"+c.Version() || node.Labels["test"] != "yes" {
		t.Errorf("the node runs %s, labels %v", got, node.Labels)
	}
	t.Run("pods", func(t *testing.T) { testPods(ctx, t, c) })
	t.Run("kubelet killed", func(t *testing.T) { testKubelet(ctx, t, c, syscall.SIGKILL) })
	t.Run("kubelet ended", func(t *testing.T) { testKubelet(ctx, t, c, syscall.SIGTERM) })
	t.Run("image of a program", func(t *testing.T) { testImport(ctx, t, c) })
	must(t, up.Down(ctx))
	checkNothingLeft(t, dir)
	if err := Down(ctx, dir); err != nil {
		t.Errorf("a second Down: %v", err)
	}
}

// testPods runs a pod on the host's network, one on its own, and leaves one.
func testPods(ctx context.Context, t *testing.T, c *Cluster) {
	for name, hostNetwork := range map[string]bool{"host": true, "plain": false} {
		runPod(ctx, t, c, name, onHostNetwork(hostNetwork), BusyboxImage, corev1.PodSucceeded, "sh", "-c", "echo hello from $HOSTNAME; id -u")
		got, err := c.PodLogs(ctx, metav1.NamespaceDefault, name, "c")
		must(t, err)
		if !strings.HasPrefix(got, "hello from ") || !strings.HasSuffix(got, "\n0\n") {
			t.Errorf("log of pod %s: %q", name, got)
		}
	}
	runPod(ctx, t, c, "stays", nil, BusyboxImage, corev1.PodRunning, "sleep", "3600")
	client, err := c.Client()
	must(t, err)
	data, err := client.CoreV1().Pods(metav1.NamespaceDefault).GetLogs("plain", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil || !bytes.Contains(data, []byte("hello from plain")) {
		t.Errorf("log of pod plain through the API server: %q, %v", data, err)
	}
}

// testKubelet restarts the kubelet under a pod that goes on.
func testKubelet(ctx context.Context, t *testing.T, c *Cluster, sig syscall.Signal) {
	before, err := findDaemon(c.layout, Kubelet)
	must(t, err)
	must(t, c.Component(Kubelet).Restart(ctx, sig))
	after, err := findDaemon(c.layout, Kubelet)
	if err != nil || after.process == before.process || before.process.alive() {
		t.Errorf("the kubelet was process %v and is %v, %v", before.process, after, err)
	}
	runPod(ctx, t, c, fmt.Sprintf("after-%d", sig), onHostNetwork(true), BusyboxImage, corev1.PodSucceeded, "true")
	client, err := c.Client()
	must(t, err)
	pod, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "stays", metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("pod stays did not go on: %v, %+v", err, pod.Status)
	}
}

// testImport runs a program in an image that holds nothing else.
func testImport(ctx context.Context, t *testing.T, c *Cluster) {
	files := []File{{Path: "/env", Mode: 0o755, Source: busyboxPath()}} // which acts by its name
	image := Image{Ref: "cleave.local/env:test", Files: files, Entrypoint: []string{"/env"}, Env: []string{"FROM_IMAGE=yes"}}
	must(t, c.ImportImage(ctx, image))
	runPod(ctx, t, c, "env", onHostNetwork(true), image.Ref, corev1.PodSucceeded)
	got, err := c.PodLogs(ctx, metav1.NamespaceDefault, "env", "c")
	if err != nil || !strings.Contains(got, "FROM_IMAGE=yes\n") {
		t.Errorf("log %q, %v", got, err)
	}
}

func onHostNetwork(is bool) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.HostNetwork = is }
}

// runPod runs a pod, which something may be changed of, until it is in a phase.
func runPod(ctx context.Context, t *testing.T, c *Cluster, name string, change func(*corev1.PodSpec), image string, want corev1.PodPhase, command ...string) {
	t.Helper()
	client, err := c.Client()
	must(t, err)
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: corev1.PullNever, Command: command}},
	}
	if change != nil {
		change(&spec)
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err = pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err = poll(ctx, pollInterval, func(ctx context.Context) error {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase == want {
			return err
		}
		return fmt.Errorf("pod %s is %s: %+v", name, pod.Status.Phase, pod.Status.ContainerStatuses)
	})
	must(t, err)
}

// TestDown_UpKilled kills the command in the middle of its work, at several
// places, and takes down what it leaves.
func TestDown_UpKilled(t *testing.T) {
	dir := realCluster(t)
	binary := filepath.Join(t.TempDir(), "cluster")
	if output, err := exec.Command("go", "build", "-o", binary, "../cmd/cluster").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, output)
	}
	must(t, Build(t.Context(), Options{Output: testWriter{t}}))
	l := layout{dir}
	for _, at := range []string{l.state(), l.pidFile(Etcd), l.pidFile(Containerd), l.pidFile(APIServer), l.pidFile(Kubelet)} {
		t.Run(filepath.Base(at), func(t *testing.T) {
			killedUp(t, binary, dir, at)
			// Half of the files are missing as well.
			must(t, errors.Join(os.RemoveAll(l.path("pids")), os.RemoveAll(l.state())))
			if output, err := exec.Command(binary, "down", "--dir", dir).CombinedOutput(); err != nil {
				t.Fatalf("down: %v\n%s", err, output)
			}
			checkNothingLeft(t, dir)
		})
	}
	t.Run("up over what a killed up left", func(t *testing.T) {
		killedUp(t, binary, dir, l.pidFile(Scheduler))
		c, err := Up(t.Context(), Options{Dir: dir, Output: testWriter{t}})
		must(t, err)
		runPod(t.Context(), t, c, "stays", nil, BusyboxImage, corev1.PodRunning, "sleep", "3600")
		must(t, os.Remove(l.state()))
		must(t, Down(t.Context(), dir))
		checkNothingLeft(t, dir)
	})
}

// killedUp starts a cluster and kills the command as soon as a file is there.
func killedUp(t *testing.T, binary, dir, file string) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	must(t, err)
	cmd := exec.Command(binary, "up", "--dir", dir)
	cmd.Stdout, cmd.Stderr = output, output
	must(t, errors.Join(cmd.Start(), output.Close()))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err = poll(ctx, pollInterval/10, func(context.Context) error {
		_, err := os.Stat(file)
		return err
	})
	killErr := cmd.Process.Kill()
	_ = cmd.Wait() // it says that the command was killed
	if err := errors.Join(err, killErr); err != nil {
		text, _ := os.ReadFile(output.Name())
		t.Fatalf("up: %v\n%s", err, text)
	}
}

// checkNothingLeft looks for traces of a cluster by other means than Down does.
func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if strings.Contains(lines.Text(), dir) {
			t.Errorf("a mount is left: %s", lines.Text())
		}
	}
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, name := range []string{"cmdline", "environ", "mountinfo"} {
			data, err := os.ReadFile(procPath(pid, name))
			if err == nil && bytes.Contains(data, []byte(dir)) {
				t.Errorf("process %d is left: its %s mentions %s", pid, name, dir)
			}
		}
	}
	left, err := filepath.Glob("/var/lib/cni/results/" + layout{dir}.networkName() + "*")
	if err != nil || len(left) > 0 {
		t.Errorf("results of network plugins are left: %v, %v", left, err)
	}
}
