// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// plainNode is a Node object without a kubelet, with a plugin of its own: the test is its kubelet. It disturbs no other
// test, so tests that use it alone run in parallel.
type plainNode struct {
	*node.Node
	*workload.Plugin
	name string
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
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("the log of the plugin of %s ends with:\n%s", name, n.LogTail(25))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.must(errors.Join(plugin.Close(), n.Kill()))
		// The slices have the Node as their owner and go with it, but not at once.
		s.must(env.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
		s.must(os.RemoveAll(dir))
	})
	return &plainNode{n, plugin, name}
}

// startPlainNode makes one of a model, starts its plugin and waits until claims can be prepared.
func (s *space) startPlainNode(ctx context.Context, flags ...string) *plainNode {
	s.Helper()
	n := s.newPlainNode(ctx, nil, flags...)
	s.sim(ctx, n, "create", "--node", model)
	s.must(n.Start(ctx))
	s.offers(ctx, n, gpus)
	return n
}

// offers waits until claims can be prepared on a node and it publishes so many GPUs.
func (s *space) offers(ctx context.Context, n *plainNode, devices int) {
	s.Helper()
	s.must(n.WaitReady(ctx))
	s.eventually(ctx, "the plugin of "+n.name+" to be ready but for the kubelet", func(ctx context.Context) (bool, string, error) {
		state := fmt.Sprint(n.Readiness(ctx))
		return strings.Contains(state, "waiting for the kubelet"), state, nil
	})
	s.eventually(ctx, "ResourceSlices of "+n.name, func(ctx context.Context) (bool, string, error) {
		found := len(wholeGPUs(s.slices(ctx, n.name)))
		return found == devices, fmt.Sprintf("%d GPUs", found), nil
	})
}

// sim runs nvml-sim on a node's driver root.
func (s *space) sim(ctx context.Context, n *plainNode, args ...string) string {
	s.Helper()
	out, err := n.Sim(ctx, args...)
	s.must(err)
	return out
}

// deviceNames are those of the whole GPUs that a node publishes, in the order in which the scheduler tries them.
func (s *space) deviceNames(ctx context.Context, n *plainNode) []string {
	s.Helper()
	return deviceNames(wholeGPUs(s.slices(ctx, n.name)))
}

// schedulable gives a node without a kubelet the size of the real one, so that pods are scheduled to it.
func (s *space) schedulable(ctx context.Context, n *plainNode) {
	s.Helper()
	nodes := env.kube.CoreV1().Nodes()
	object, err := nodes.Get(ctx, n.name, metav1.GetOptions{})
	s.must(err)
	real, err := nodes.Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	object.Status.Capacity, object.Status.Allocatable = real.Status.Capacity, real.Status.Allocatable
	_, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	s.must(err)
}

// createAnywhere creates a pod, with its template, that nodes without a kubelet may get, and removes it after the test.
func (s *space) createAnywhere(ctx context.Context, objects []runtime.Object, selector map[string]string) {
	s.Helper()
	pod := podOf(objects)
	pod.Spec.NodeSelector = selector
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	s.create(ctx, objects...)
	s.Cleanup(func() {
		now := int64(0) // no kubelet ends it
		_ = env.kube.CoreV1().Pods(s.name).Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
}

// scheduled waits until a pod has a node.
func (s *space) scheduled(ctx context.Context, name string) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.eventually(ctx, "pod "+name+" to be scheduled", func(ctx context.Context) (bool, string, error) {
		var err error
		if pod, err = env.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, "", err
		}
		return pod.Spec.NodeName != "", workload.Describe(pod), nil
	})
	return pod
}

// ownClaimOf is the claim that a pod has of its own, as the kubelet names it to the plugin, and its allocation.
func (s *space) ownClaimOf(ctx context.Context, pod *corev1.Pod) (*drapb.Claim, *resourceapi.AllocationResult) {
	s.Helper()
	claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, ownClaim(pod), metav1.GetOptions{})
	s.must(err)
	return &drapb.Claim{Namespace: s.name, Name: claim.Name, Uid: string(claim.UID)}, claim.Status.Allocation
}
