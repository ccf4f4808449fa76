// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// extended are the resources of the device plugin that a node has.
func extended(list corev1.ResourceList) (found []string) {
	for name, quantity := range list {
		if rest, ok := strings.CutPrefix(string(name), "nvidia.com/"); ok && !quantity.IsZero() {
			found = append(found, quantity.String()+" "+rest)
		}
	}
	slices.Sort(found)
	return found
}

// published are the devices that Cleave offers on a node, by type.
func (p *place) published(ctx context.Context) (map[string]int, error) {
	list, err := env.client.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + p.Name() + "," +
			resourceapi.ResourceSliceSelectorDriver + "=" + nvidia.DriverName})
	if err != nil {
		return nil, err
	}
	types := map[string]int{}
	for i := range list.Items {
		if int64(len(list.Items)) != list.Items[i].Spec.Pool.ResourceSliceCount {
			continue // the pool is being written
		}
		for _, d := range list.Items[i].Spec.Devices {
			types[*d.Attributes["type"].StringValue]++
		}
	}
	return types, nil
}

// row is the first cell of the node's row.
func (p *place) row() string { return "the node `" + p.config + "`" }

// cell says what a node offers.
func (p *place) cell(t *testing.T, ctx context.Context) string {
	t.Helper()
	node, err := env.client.Kube.CoreV1().Nodes().Get(ctx, p.Name(), metav1.GetOptions{})
	must(t, err)
	types, err := p.published(ctx)
	must(t, err)
	allocatable := extended(node.Status.Allocatable)
	if len(allocatable) == 0 {
		allocatable = []string{"none"}
	}
	var devices []string
	for _, name := range slices.Sorted(maps.Keys(types)) {
		devices = append(devices, fmt.Sprintf("%d %s", types[name], name))
	}
	if len(devices) == 0 {
		devices = []string{"none"}
	}
	return "allocatable: " + strings.Join(allocatable, ", ") + "; published: " + strings.Join(devices, ", ")
}

// waitAllocatable waits until the device plugin has registered with the kubelet for all resources of a node.
func (p *place) waitAllocatable(t *testing.T, ctx context.Context, want ...string) {
	t.Helper()
	must(t, workload.Until(ctx, "the device plugin on "+p.Name(), func(ctx context.Context) (bool, string, error) {
		node, err := env.client.Kube.CoreV1().Nodes().Get(ctx, p.Name(), metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		got := extended(node.Status.Allocatable)
		return slices.Equal(got, want), fmt.Sprint(got), nil
	}))
}

// waitRemoved waits until the pods of the device plugin are gone from a node: one that is still there registers with a new kubelet.
func (p *place) waitRemoved(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, workload.Until(ctx, "the device plugin to leave "+p.Name(), func(ctx context.Context) (bool, string, error) {
		list, err := env.client.Kube.CoreV1().Pods(operator).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + p.Name()})
		if err != nil {
			return false, "", err
		}
		return len(list.Items) == 0, fmt.Sprintf("%d pods", len(list.Items)), nil
	}))
}

// waitPublished waits until Cleave offers devices on a node, or none.
func (p *place) waitPublished(t *testing.T, ctx context.Context, some bool) {
	t.Helper()
	must(t, workload.Until(ctx, fmt.Sprintf("devices of Cleave on %s: %t", p.Name(), some), func(ctx context.Context) (bool, string, error) {
		types, err := p.published(ctx)
		return (len(types) > 0) == some, fmt.Sprint(types), err
	}))
}

// watch looks again and again whether a node offers GPUs by the device plugin and by Cleave at once. What it returns ends it and lists
// when that was.
func watch(ctx context.Context) func() []string {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var found []string
	wg.Go(func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, p := range env.places {
				if twice, err := p.offeredTwice(ctx); err != nil && !errors.Is(err, context.Canceled) {
					found = append(found, err.Error())
				} else if twice != "" {
					found = append(found, twice)
				}
			}
		}
	})
	return func() []string {
		cancel()
		wg.Wait()
		return found
	}
}

// offeredTwice says what a node offers by the device plugin, if that was so before and after Cleave was seen to offer devices without a
// taint.
func (p *place) offeredTwice(ctx context.Context) (string, error) {
	offers := func() ([]string, error) {
		node, err := env.client.Kube.CoreV1().Nodes().Get(ctx, p.Name(), metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return extended(node.Status.Allocatable), nil
	}
	before, err := offers()
	if err != nil || len(before) == 0 {
		return "", err
	}
	list, err := env.client.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + p.Name()})
	if err != nil {
		return "", err
	}
	var free []string
	for i := range list.Items {
		for _, d := range list.Items[i].Spec.Devices {
			if len(d.Taints) == 0 {
				free = append(free, d.Name)
			}
		}
	}
	after, err := offers()
	if err != nil || len(after) == 0 || len(free) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s: device plugin %v, Cleave %v", p.Name(), after, free), nil
}
