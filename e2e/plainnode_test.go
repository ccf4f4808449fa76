// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/google/go-cmp/cmp"
)

// plainNode is a Node object without a kubelet, with a plugin of its own: the test is its kubelet. It disturbs no other
// test, so tests that use it alone run in parallel.
type plainNode struct {
	*node.Node
	*workload.Plugin
	space *space
	name  string
}

// plainNodes counts them.
var plainNodes atomic.Int32

// newPlainNode makes one that nothing is scheduled to. It has no driver yet, and its plugin does not run.
func (s *space) newPlainNode(ctx context.Context, change func(*corev1.Node), flags ...string) *plainNode {
	s.Helper()
	return s.newPlainNodeOf(ctx, change, node.Options{Flags: flags})
}

// newPlainNodeOf makes one with a driver of another name, or other options.
func (s *space) newPlainNodeOf(ctx context.Context, change func(*corev1.Node), opts node.Options) *plainNode {
	s.Helper()
	number := strconv.Itoa(int(plainNodes.Add(1)))
	name := "node-" + s.name[:min(len(s.name), 50)] + "-" + number
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if change != nil {
		change(object)
	}
	_, err := env.kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	s.must(err)
	// Sockets live below it, so its name is short.
	dir, err := env.cluster.GuestDir("n" + number)
	s.must(err)
	opts.Cluster, opts.Bin, opts.NodeName, opts.Dir = env.cluster, programsDir, name, dir
	n := node.Attach(opts)
	plugin, err := workload.Dial(n.Socket())
	s.must(err)
	atEnd(s.T, func(ctx context.Context) {
		if s.Failed() {
			s.Logf("the log of the plugin of %s ends with:\n%s", name, n.LogTail(25))
		}
		s.must(errors.Join(plugin.Close(), n.Kill()))
		// The slices have the Node as their owner and go with it, but not at once.
		s.must(env.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
		s.must(os.RemoveAll(dir))
	})
	return &plainNode{n, plugin, s, name}
}

// startPlainNode makes one of a model, starts its plugin and waits until claims can be prepared.
func (s *space) startPlainNode(ctx context.Context, flags ...string) *plainNode {
	s.Helper()
	n := s.newPlainNode(ctx, nil, flags...)
	n.sim(ctx, "create", "--node", model)
	s.must(n.Start(ctx))
	n.waitOffered(ctx, gpus)
	return n
}

// index of a device as nvml-sim counts.
func (n *plainNode) index(ctx context.Context, device string) string {
	n.space.Helper()
	device, _, _ = strings.Cut(device, "-mig-") // partitions do not publish it
	return fmt.Sprint(*find(n.space.published.devices(ctx, n.name), device).Attributes["index"].IntValue)
}

// smi runs nvidia-smi of a simulated node.
func (n *plainNode) smi(ctx context.Context, args ...string) (out string, code int) {
	n.space.Helper()
	var b bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(n.Root(), "usr/bin/nvidia-smi"), args...)
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return b.String(), exit.ExitCode()
	}
	n.space.must(err)
	return b.String(), 0
}

// waitOffered waits until claims can be prepared on a node and it publishes so many GPUs.
func (n *plainNode) waitOffered(ctx context.Context, devices int) {
	n.space.Helper()
	n.space.must(n.WaitReady(ctx))
	n.space.eventually(ctx, "the plugin of "+n.name+" to be ready but for the kubelet", func(ctx context.Context) (bool, string, error) {
		state := fmt.Sprint(n.Readiness(ctx))
		return strings.Contains(state, "waiting for the kubelet"), state, nil
	})
	n.space.eventually(ctx, "ResourceSlices of "+n.name, func(ctx context.Context) (bool, string, error) {
		found := len(wholeGPUs(n.space.published.slices(ctx, n.name)))
		return found == devices, fmt.Sprintf("%d GPUs", found), nil
	})
}

// sim runs nvml-sim on a node's driver root.
func (n *plainNode) sim(ctx context.Context, args ...string) string {
	n.space.Helper()
	out, err := n.Sim(ctx, args...)
	n.space.must(err)
	return out
}

// deviceNames are those of the whole GPUs that a node publishes, in the order in which the scheduler tries them.
func (n *plainNode) deviceNames(ctx context.Context) []string {
	n.space.Helper()
	return deviceNames(wholeGPUs(n.space.published.slices(ctx, n.name)))
}

// makeSchedulable gives a node without a kubelet the size of the real one, so that pods are scheduled to it.
func (n *plainNode) makeSchedulable(ctx context.Context) {
	n.space.Helper()
	nodes := env.kube.CoreV1().Nodes()
	real, err := nodes.Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	n.space.must(err)
	size := map[string]corev1.ResourceList{"capacity": real.Status.Capacity, "allocatable": real.Status.Allocatable}
	patch, err := json.Marshal(map[string]any{"status": size}) // no conflict with the controllers that change nodes, too
	n.space.must(err)
	_, err = nodes.Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	n.space.must(err)
}

// prepared prepares a claim and checks that it has so many devices, each with its CDI name and the metadata file of its
// request (KEP-5304).
func (n *plainNode) prepared(ctx context.Context, claim *drapb.Claim, count int) []*drapb.Device {
	n.space.Helper()
	devices, err := n.Prepare(ctx, claim)
	n.space.must(err)
	if len(devices) != count {
		n.space.Fatalf("claim %s got %v, want %d devices", claim.Name, devices, count)
	}
	for _, d := range devices {
		want := []string{workload.Driver + "/gpu=" + d.DeviceName}
		for _, request := range d.RequestNames {
			want = append(want, workload.Driver+"/metadata="+claim.Uid+"_"+request)
		}
		if diff := cmp.Diff(want, d.CdiDeviceIds); diff != "" {
			n.space.Errorf("CDI devices of claim %s (-want +got):\n%s", claim.Name, diff)
		}
	}
	return devices
}

// refused prepares a claim and checks that it is refused with an error that says all that it has to.
func (n *plainNode) refused(ctx context.Context, claim *drapb.Claim, says ...string) {
	n.space.Helper()
	devices, err := n.Prepare(ctx, claim)
	if err == nil {
		n.space.Errorf("claim %s got %v, want an error", claim.Name, devices)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			n.space.Errorf("claim %s: the error %q does not say %q", claim.Name, err, part)
		}
	}
}
