// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// moreProcesses is how many a node has in addition in the loaded case.
const moreProcesses = 5000

// processBench measures claims of pods, whose processes Unprepare looks for: with as many processes on the node as there are, and
// with many more. The pods never run; they have cgroups, without processes, as those that have ended.
type processBench struct {
	*bench
	claims []*drapb.Claim
	pods   []types.UID
	// groups are the cgroups that were made.
	groups []string
}

func (b *processBench) measure(ctx context.Context, r *report) (err error) {
	defer func() { err = errors.Join(err, b.removeGroups()) }()
	if err := b.makeClaims(ctx); err != nil {
		return err
	}
	few, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	r.add(result{Name: "claim of a pod: unprepare p50", Value: millis(few.unprepare.percentile(50)),
		Limit: 1.5 * millis(few.floor.percentile(50)), Unit: "ms", Rule: "1.5 x floor alongside it"})
	fewTogether, err := b.together(ctx, b.claims, b.rounds/2)
	if err != nil {
		return err
	}
	end, err := startSleepers(ctx)
	if err != nil {
		return err
	}
	defer end()
	many, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	drift := float64(many.floor.percentile(50)) / float64(few.floor.percentile(50))
	name := fmt.Sprintf("claim of a pod, %d more processes: ", moreProcesses)
	r.add(result{Name: name + "unprepare p50", Value: millis(many.unprepare.percentile(50)),
		Limit: 1.3 * drift * millis(few.unprepare.percentile(50)), Unit: "ms", Rule: "1.3 x without them, by the floor"})
	together, err := b.together(ctx, b.claims, b.rounds/2)
	if err != nil {
		return err
	}
	r.add(result{Name: "claim of a pod: 8 at once: unprepare p99", Value: millis(fewTogether.unprepare.percentile(99)), Unit: "ms"})
	drift = float64(together.alone.percentile(50)) / float64(fewTogether.alone.percentile(50))
	r.add(result{Name: name + "8 at once: unprepare p99", Value: millis(together.unprepare.percentile(99)),
		Limit: 2 * drift * millis(fewTogether.unprepare.percentile(99)), Unit: "ms", Rule: "2 x without them, by the floor"})
	return b.measureTable(ctx, r)
}

// measureTable measures one look at the whole process table, by which a pod is looked for whose cgroup does not say.
func (b *processBench) measureTable(ctx context.Context, r *report) error {
	var table samples
	for range 20 {
		if err := timed(&table, func() error { _, err := processes.Host().OfPods(ctx, b.pods[:1]); return err }); err != nil {
			return fmt.Errorf("read the process table: %w", err)
		}
	}
	r.add(result{Name: fmt.Sprintf("%d more processes: one look at all", moreProcesses), Value: millis(table.percentile(50)), Unit: "ms"})
	return nil
}

// makeClaims creates a claim for each GPU, reserved for a pod that is not to be scheduled, and the cgroups of those pods.
func (b *processBench) makeClaims(ctx context.Context) error {
	for i, device := range b.devices {
		pod, err := b.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("never-%d", i)},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "bench.cleave.dev/never"}},
				Containers:      []corev1.Container{{Name: "none", Image: "none"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create a pod: %w", err)
		}
		claim, err := b.makeClaim(ctx, fmt.Sprintf("of-pod-%d", i), device, false)
		if err != nil {
			return err
		}
		if err := b.reserve(ctx, claim, pod); err != nil {
			return err
		}
		if err := b.makeGroups(pod.UID); err != nil {
			return err
		}
		b.claims, b.pods = append(b.claims, claim), append(b.pods, pod.UID)
	}
	return nil
}

// reserve makes a claim one that was generated for a pod from a template, as most are, and reserves it.
func (b *processBench) reserve(ctx context.Context, of *drapb.Claim, pod *corev1.Pod) error {
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
func (b *processBench) makeGroups(pod types.UID) error {
	const mount = "/sys/fs/cgroup"
	hierarchies := []string{mount}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil { // version 1
		entries, err := os.ReadDir(mount)
		if err != nil {
			return fmt.Errorf("look for cgroups: %w", err)
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
				return fmt.Errorf("make the cgroup of a pod: %w", err)
			}
			b.groups = append(b.groups, dir)
		}
	}
	return nil
}

func (b *processBench) removeGroups() error {
	var errs []error
	for i := len(b.groups) - 1; i >= 0; i-- {
		errs = append(errs, os.Remove(b.groups[i]))
	}
	return errors.Join(errs...)
}

// startSleepers starts many processes, and returns once all are there.
func startSleepers(ctx context.Context) (end func(), err error) {
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 3600 & i=$((i+1)); done; echo; wait", moreProcesses)
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start processes: %w", err)
	}
	end = func() {
		_ = cmd.Cancel()
		_ = cmd.Wait()
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		end()
		return nil, fmt.Errorf("wait for processes to start: %w", err)
	}
	return end, nil
}
