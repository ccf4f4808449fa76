// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// namespace of all that is placed.
const namespace = metav1.NamespaceDefault

// parallel is how many requests go to the API server at once.
const parallel = 16

// bench is a control plane with nodes.
type bench struct {
	options
	cluster   *cluster.Cluster
	client    kubernetes.Interface
	dir       string
	watch     *podWatch
	published nodeSlices // of one node
	classes   allocator.Classes
	// serial numbers pods and claims.
	serial int
	// touched are the GPUs of which something is allocated before pods are placed.
	touched map[string]bool
}

// newBench prepares a control plane for pods: nothing in it creates service accounts.
func newBench(ctx context.Context, o options, c *cluster.Cluster) (*bench, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 5000, 5000
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	b := &bench{options: o, cluster: c, client: client, touched: map[string]bool{}}
	if b.dir, err = c.GuestDir("bench-scale"); err != nil {
		return nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the service account of pods: %w", err)
	}
	classes, err := packing.Classes(filepath.Join(o.source, "deployments", "manifests"))
	if err != nil {
		return nil, err
	}
	b.classes = classes
	for _, class := range classes {
		if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create DeviceClass %s: %w", class.Name, err)
		}
	}
	if b.published, err = packing.PublishedByModel(ctx, o.nodeModel, o.policy); err != nil {
		return nil, err
	}
	b.watch, err = watchPods(ctx, client)
	return b, err
}

func (b *bench) close() { b.watch.stop() }

// addNodes creates nodes that are Ready, and publishes GPUs for them.
func (b *bench) addNodes(ctx context.Context, n int) error {
	fmt.Fprintf(os.Stderr, "publishing %d nodes of %d slices each\n", n, len(b.published))
	return inParallel(ctx, n, func(ctx context.Context, i int) error { return b.addNode(ctx, nodeName(i)) })
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func (b *bench) addNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	node, err := b.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	node.Spec.Taints = nil // admission says that it is not ready, which no controller takes back here
	if node, err = b.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("remove the taint of node %s: %w", name, err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2Ti"),
		corev1.ResourcePods: resource.MustParse("500"),
	}
	node.Status.Allocatable = node.Status.Capacity
	if _, err := b.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("make node %s ready: %w", name, err)
	}
	for _, s := range packing.ForNode(b.published, name) {
		if _, err := b.client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("publish slice %s: %w", s.Name, err)
		}
	}
	return nil
}

// inParallel calls a function with the numbers below n. The first error ends it.
func inParallel(ctx context.Context, n int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range queue {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		queue <- i
	}
	close(queue)
	workers.Wait()
	return context.Cause(ctx)
}
