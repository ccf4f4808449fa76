// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The PriorityClasses. Pods of a plan have the default one, the highest: nobody is to evict them, as each is to run in time.
const (
	interactive = "interactive"
	batch       = "batch"
	backfill    = "backfill"
	steady      = "steady"
)

// queues are the classes of the other pods.
func queues() []string { return []string{interactive, batch, backfill} }

func createClasses(ctx context.Context, kube kubernetes.Interface) error {
	for i, name := range []string{steady, interactive, batch, backfill} {
		class := &schedulingapi.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: int32(2000 - 1000*i), GlobalDefault: name == steady,
		}
		if _, err := kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create PriorityClass %s: %w", name, err)
		}
	}
	return nil
}

// ownerName is that of the object that controls all pods: the soak makes pods again that are evicted, and has no object of its own.
const ownerName = "soak"

// createOwner creates the controller of all pods.
func createOwner(ctx context.Context, kube kubernetes.Interface) (metav1.OwnerReference, error) {
	owner, err := kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ownerName}},
		metav1.CreateOptions{})
	if err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("create the owner of all pods: %w", err)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: new(true)}, nil
}

func (s Shape) queued(name, scheduler, class string) *corev1.Pod {
	pod := s.manifest(name, "")
	pod.Spec.SchedulerName, pod.Spec.PriorityClassName = scheduler, class
	return pod
}

// anyOf draws one of some words.
func anyOf(r *rand.Rand, words ...string) string { return words[r.IntN(len(words))] }
