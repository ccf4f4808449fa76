// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespacesOf shows which namespaces a process is in.
func namespacesOf(t *testing.T) string {
	t.Helper()
	var all []string
	for _, name := range []string{"mnt", "net", "pid_for_children", "uts", "ipc"} {
		target, err := os.Readlink("/proc/self/ns/" + name)
		must(t, err)
		all = append(all, target)
	}
	return strings.Join(all, " ")
}

// TestCluster_SeveralNodes starts two nodes, kills one, and boots it again.
func TestCluster_SeveralNodes(t *testing.T) {
	dir := realCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	before := namespacesOf(t)
	if _, err := Up(ctx, Options{Dir: dir, Nodes: 2, Output: testWriter{t}}); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	must(t, err)
	waitHealth(ctx, t, c, isNil)
	client, err := c.Client()
	must(t, err)
	nodes := c.Nodes()
	runOn(ctx, t, c, nodes[1], "server", false, corev1.PodRunning, "sleep 3600")
	server, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "server", metav1.GetOptions{})
	must(t, err)
	runOn(ctx, t, c, nodes[0], "client", false, corev1.PodSucceeded, "ping -c 1 -W 5 "+server.Status.PodIP)
	for _, n := range nodes {
		testNode(ctx, t, c, n)
	}
	testKill(ctx, t, c, nodes[1])
	if after := namespacesOf(t); after != before {
		t.Errorf("this program is in the namespaces %s, was in %s", after, before)
	}
	bridge := layout{dir}.bridge()
	if _, err := net.InterfaceByName(bridge); err != nil {
		t.Errorf("the nodes are not connected by %s: %v", bridge, err)
	}
	must(t, c.Down(ctx))
	checkNothingLeft(t, dir)
	if _, err := net.InterfaceByName(bridge); err == nil {
		t.Errorf("%s is left", bridge)
	}
}

// runOn is runPod on a node, with a command of the shell.
func runOn(ctx context.Context, t *testing.T, c *Cluster, n Node, name string, hostNetwork bool, want corev1.PodPhase, command string) {
	t.Helper()
	runPod(ctx, t, c, name, func(spec *corev1.PodSpec) { spec.NodeName, spec.HostNetwork = n.Name(), hostNetwork }, BusyboxImage, want, "sh", "-c", command)
}

// testNode looks at a node from inside, by a pod on its network and by Inside.
func testNode(ctx context.Context, t *testing.T, c *Cluster, n Node) {
	t.Helper()
	runOn(ctx, t, c, n, "look-"+n.Name(), true, corev1.PodSucceeded, "hostname; ip -4 addr show eth0")
	got, err := c.PodLogs(ctx, metav1.NamespaceDefault, "look-"+n.Name(), "c")
	if err != nil || !strings.HasPrefix(got, n.Name()+"\n") || !strings.Contains(got, n.machine.address+"/24") {
		t.Errorf("a pod on the network of %s sees %q, %v", n.Name(), got, err)
	}
	guests, err := n.GuestDir("test")
	must(t, err)
	must(t, os.WriteFile(n.HostPath(guests)+"/name", []byte(n.Name()), 0o600))
	err = n.Inside(func() error {
		hostname, err := os.Hostname()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(guests + "/name")
		if hostname != n.Name() || string(content) != n.Name() {
			t.Errorf("inside, the host is %s, with the file of %s", hostname, content)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// testKill kills a node and boots it again.
func testKill(ctx context.Context, t *testing.T, c *Cluster, n Node) {
	t.Helper()
	must(t, n.Kill(ctx))
	for _, component := range []Component{Containerd, Kubelet} {
		if d, err := findDaemon(n.layout, component); err != nil || d.process.alive() {
			t.Errorf("%s of %s runs, or was never started: %v", component, n.Name(), err)
		}
	}
	waitHealth(ctx, t, c, func(err error) bool { return err != nil && strings.Contains(err.Error(), "containerd on "+n.Name()) })
	if err := n.Inside(func() error { return nil }); err == nil {
		t.Error("a node that was killed can be entered")
	}
	must(t, n.Boot(ctx))
	for _, component := range []Component{Containerd, Kubelet} {
		must(t, n.Component(component).Start(ctx))
	}
	waitHealth(ctx, t, c, isNil)
	runOn(ctx, t, c, n, "again", false, corev1.PodSucceeded, "true")
}
