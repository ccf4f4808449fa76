// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// podClaims are claims of pods that never run. The pods have cgroups, without processes, as those that have ended.
type podClaims struct {
	*bench
	// pool is that of the devices; empty for the node that is measured otherwise.
	pool   string
	claims []*drapb.Claim
	pods   []types.UID
	// of are the cgroups of each of the pods, groups all that were made.
	of     [][]string
	groups []string
}

// make creates a claim for a device, reserved for a pod that is not to be scheduled, and the cgroups of the pod.
func (b *podClaims) make(ctx context.Context, name, device string) error {
	pod, err := b.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "bench.cleave.dev/never"}},
			Containers:      []corev1.Container{{Name: "none", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	claim, err := b.allocate(ctx, name, workload.OneGPU(cmp.Or(b.pool, b.cluster.NodeName()), device, false))
	if err != nil {
		return err
	}
	if err := b.reserve(ctx, claim, pod); err != nil {
		return err
	}
	of, err := b.makeGroups(pod.UID)
	b.claims, b.pods, b.of = append(b.claims, claim), append(b.pods, pod.UID), append(b.of, of)
	return err
}

// reserve makes a claim one that was generated for a pod from a template, as most are, and reserves it.
func (b *podClaims) reserve(ctx context.Context, of *drapb.Claim, pod *corev1.Pod) error {
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Get(ctx, of.Name, metav1.GetOptions{})
	if err == nil {
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
	}
	if err == nil {
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("reserve claim %s: %w", of.Name, err)
	}
	return nil
}

// makeGroups makes the cgroup of a pod, as the kubelet does with the cgroupfs driver, in each hierarchy.
func (b *podClaims) makeGroups(pod types.UID) (of []string, err error) {
	const mount = "/sys/fs/cgroup"
	hierarchies := []string{mount}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil { // version 1
		entries, err := os.ReadDir(mount)
		if err != nil {
			return nil, fmt.Errorf("look for cgroups: %w", err)
		}
		hierarchies = nil
		for _, e := range entries {
			if e.IsDir() {
				hierarchies = append(hierarchies, filepath.Join(mount, e.Name()))
			}
		}
	}
	for _, dir := range hierarchies {
		for _, name := range []string{"cleave-bench-" + strconv.Itoa(os.Getpid()), "kubepods", "burstable", "pod" + string(pod)} {
			dir = filepath.Join(dir, name)
			err := os.Mkdir(dir, 0o755)
			if errors.Is(err, os.ErrExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("make the cgroup of a pod: %w", err)
			}
			b.groups = append(b.groups, dir)
		}
		of = append(of, dir)
	}
	return of, nil
}

func (b *podClaims) removeGroups() error {
	var errs []error
	for i := len(b.groups) - 1; i >= 0; i-- {
		errs = append(errs, os.Remove(b.groups[i]))
	}
	return errors.Join(errs...)
}
