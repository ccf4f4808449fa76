// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// kind of pods.
type kind struct {
	// name in the report, class of the one device that a pod requests.
	name, class string
}

// whole is the class of whole GPUs.
const whole = "gpu.cleave.dev"

// kinds that can be measured.
var kinds = []kind{
	{"1g.10gb", "mig-1g.10gb.cleave.dev"}, {"3g.40gb", "mig-3g.40gb.cleave.dev"}, {"whole", whole}, {"share", "timeslice.cleave.dev"},
}

// requests are those of each pod for what the default scheduler goes by. Without any, all nodes are equal to it.
var requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")}

// prefix of the names of pods.
func (k kind) prefix() string { return strings.ReplaceAll(k.name, ".", "-") }

func findKind(name string) (kind, error) {
	var names []string
	for _, k := range kinds {
		if k.name == name {
			return k, nil
		}
		names = append(names, k.name)
	}
	return kind{}, fmt.Errorf("unknown kind %q: there are %s", name, strings.Join(names, ", "))
}

// placeTimeout bounds the wait for pods of one kind.
const placeTimeout = 20 * time.Minute

// names returns fresh names of pods, which are those of their claims, too.
func (b *bench) names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		b.serial++
		all[i] = fmt.Sprintf("%s-%05d", prefix, b.serial)
	}
	return all
}

// create makes pods for a scheduler, each with a claim: first all claims, then all pods. It returns when the first pod was
// created.
func (b *bench) create(ctx context.Context, scheduler, class string, count int64, names []string) (time.Time, error) {
	return createPods(ctx, b, scheduler, class, count, names, func(*corev1.Pod) {})
}

// createPods is create for pods that a function changes.
func createPods(ctx context.Context, b *bench, scheduler, class string, count int64, names []string,
	change func(*corev1.Pod)) (time.Time, error) {
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	err := inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: names[i]}, Spec: workload.ClaimSpec(class, count)}
		if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create claim %s: %w", names[i], err)
		}
		return nil
	})
	began := time.Now()
	if err != nil {
		return began, err
	}
	return began, inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		pod := claimPod(scheduler, names[i])
		change(pod)
		if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", names[i], err)
		}
		return nil
	})
}

func claimPod(scheduler, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
				Claims: []corev1.ResourceClaim{{Name: "gpu"}}, Requests: requests,
			}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		},
	}
}

// bound waits until all pods are on nodes and returns when the last one was.
func (b *bench) bound(ctx context.Context, names []string) (last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	left := slices.Clone(names)
	err = b.watch.until(ctx, func(pods map[string]placed) bool {
		left = slices.DeleteFunc(left, func(name string) bool {
			p := pods[name]
			if p.node != "" && p.at.After(last) {
				last = p.at
			}
			return p.node != ""
		})
		return len(left) == 0
	})
	if err != nil {
		return last, fmt.Errorf("wait for %d of %d pods to be bound: %w", len(left), len(names), err)
	}
	return last, nil
}

// remove deletes pods and their claims. No controller does what it does elsewhere: it takes the finalizers of claims.
func (b *bench) remove(ctx context.Context, names []string) error {
	now := int64(0)
	err := inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		err := b.client.CoreV1().Pods(namespace).Delete(ctx, names[i], metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", names[i], err)
		}
		return b.removeClaim(ctx, names[i])
	})
	if err != nil {
		return err
	}
	return b.watch.until(ctx, func(pods map[string]placed) bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, ok := pods[name]; return ok })
	})
}

func (b *bench) removeClaim(ctx context.Context, name string) error {
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := claims.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("remove the finalizers of claim %s: %w", name, err)
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete claim %s: %w", name, err)
	}
	return nil
}

// landing is what pods landed on.
type landing struct {
	gpus, nodes int
	// opened are the GPUs of which nothing was allocated before.
	opened int
}

// landed counts the GPUs and nodes of the devices that claims were allocated.
func (b *bench) landed(ctx context.Context, names []string) (landing, error) {
	gpus, nodes := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		claim, err := b.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return landing{}, fmt.Errorf("read claim %s: %w", name, err)
		}
		if claim.Status.Allocation == nil {
			return landing{}, fmt.Errorf("claim %s of a bound pod is not allocated", name)
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			gpus[r.Pool+"/"+packing.GPUOf(r.Device)], nodes[r.Pool] = true, true
		}
	}
	l := landing{gpus: len(gpus), nodes: len(nodes)}
	for gpu := range gpus {
		if !b.touched[gpu] {
			l.opened++
		}
	}
	return l, nil
}

// allocatedOnce checks that no GPU of the nodes that the claims of pods are on is allocated twice, by whomever.
func (b *bench) allocatedOnce(ctx context.Context, names []string) error {
	all, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the claims: %w", err)
	}
	of := map[string]bool{}
	for _, name := range names {
		of[name] = true
	}
	concerned, byNode := map[string]bool{}, map[string][]resourceapi.DeviceRequestAllocationResult{}
	for i := range all.Items {
		if all.Items[i].Status.Allocation == nil {
			continue
		}
		for _, r := range all.Items[i].Status.Allocation.Devices.Results {
			byNode[r.Pool] = append(byNode[r.Pool], r)
			concerned[r.Pool] = concerned[r.Pool] || of[all.Items[i].Name]
		}
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		if !concerned[node] {
			continue
		}
		if over := packing.OverAllocated(packing.ForNode(b.published, node), byNode[node]); len(over) > 0 {
			return fmt.Errorf("more is allocated of node %s than it has: %s", node, strings.Join(over, ", "))
		}
	}
	return nil
}
