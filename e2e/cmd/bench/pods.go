// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// Pods of a tier are started podRounds times; one may take podTimeout.
const (
	podRounds  = 5
	podTimeout = time.Minute
)

// tiers of which pods are started, by the DeviceClass that they ask for; the first is without a claim.
var tiers = []struct{ name, class string }{
	{"without a claim", ""},
	{"whole GPU", "gpu.cleave.dev"},
	{"partition", "mig-1g.10gb.cleave.dev"},
	{"time slice", "timeslice.cleave.dev"},
	{"MPS share", "mps.cleave.dev"},
}

// measurePods measures the time from a pod's creation to its running container, on a GPU that the pod before it had as a
// whole: after that pod is gone, and right after it was deleted by force, when its container still ends.
func (b *bench) measurePods(ctx context.Context, r *report) error {
	client := workload.Client{Cluster: b.cluster, Kube: b.client}
	if err := client.CreateFile(ctx, "", filepath.Join(b.source, "deployments", "manifests", "deviceclasses.yaml")); err != nil {
		return err
	}
	for _, tier := range tiers {
		if tier.class == "" {
			continue
		}
		if err := b.makeTemplate(ctx, tier.class); err != nil {
			return err
		}
	}
	for _, forced := range []bool{false, true} {
		after := "deletion"
		if forced {
			after = "forced deletion"
		}
		for _, tier := range tiers {
			var took samples
			for i := range podRounds {
				d, err := b.startAfter(ctx, fmt.Sprintf("%d", i), tier.class, forced)
				if err != nil {
					return fmt.Errorf("start a pod (%s) after %s of the one before: %w", tier.name, after, err)
				}
				took = append(took, d)
			}
			r.add(result{Name: fmt.Sprintf("pod, %s, after %s: created to running p50", tier.name, after),
				Value: millis(took.percentile(50)), Unit: "ms"})
		}
	}
	return nil
}

// makeTemplate creates a template named after a class for a device of the node's first GPU.
func (b *bench) makeTemplate(ctx context.Context, class string) error {
	const attributes = `device.attributes["gpu.cleave.dev"]`
	expression := fmt.Sprintf(`%q in [%s.?uuid.orValue(""), %s.?parentUUID.orValue("")]`, b.firstUUID, attributes, attributes)
	template := workload.Template(class, workload.ClaimSpec(class, 1, expression))
	if _, err := b.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a claim template for class %s: %w", class, err)
	}
	return nil
}

// startAfter runs a pod that has the GPU as a whole, deletes it, and times another one.
func (b *bench) startAfter(ctx context.Context, suffix, class string, forced bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	holder := tiers[1].class
	if _, err := b.startPod(ctx, "holder-"+suffix, holder); err != nil {
		return 0, err
	}
	if err := b.deletePod(ctx, "holder-"+suffix, forced); err != nil {
		return 0, err
	}
	took, err := b.startPod(ctx, "next-"+suffix, class)
	if err != nil {
		return 0, err
	}
	return took, b.deletePod(ctx, "next-"+suffix, false)
}

// startPod creates a pod and returns how long it takes until its container runs.
func (b *bench) startPod(ctx context.Context, name, class string) (time.Duration, error) {
	pod := workload.Pod(name, class)
	pod.Spec.HostNetwork, pod.Spec.RestartPolicy = true, corev1.RestartPolicyAlways
	watch, err := b.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, fmt.Errorf("watch pod %s: %w", name, err)
	}
	defer watch.Stop()
	start := time.Now()
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("create pod %s: %w", name, err)
	}
	state := "nothing"
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for pod %s to run: %w; last seen: %s", name, ctx.Err(), state)
		case event, ok := <-watch.ResultChan():
			seen, isPod := event.Object.(*corev1.Pod)
			if !ok || !isPod {
				return 0, errors.Join(fmt.Errorf("watch pod %s: it ended with %v", name, event.Object), ctx.Err())
			}
			state = workload.Describe(seen)
			if s := seen.Status.ContainerStatuses; len(s) == 1 && s[0].State.Running != nil {
				return time.Since(start), nil
			}
		}
	}
}

// deletePod deletes a pod, and waits until it and its claim are gone unless it is by force.
func (b *bench) deletePod(ctx context.Context, name string, forced bool) error {
	opts := metav1.DeleteOptions{}
	if forced {
		now := int64(0)
		opts.GracePeriodSeconds = &now
	}
	if err := b.client.CoreV1().Pods(namespace).Delete(ctx, name, opts); err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	if forced {
		return nil
	}
	return workload.Until(ctx, "pod "+name+" and its claim to be gone", func(ctx context.Context) (bool, string, error) {
		_, err := b.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return false, "the pod is there", err
		}
		claims, err := b.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", fmt.Errorf("list claims: %w", err)
		}
		return len(claims.Items) == 0, fmt.Sprintf("%d claims", len(claims.Items)), nil
	})
}
