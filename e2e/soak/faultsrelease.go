// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// fillDisk fills the file system of the plugin's records, and switches the policy meanwhile, so that the control loop has something to
// write, too.
func (f *faults) fillDisk(ctx context.Context, fault Fault) (time.Time, error) {
	filler, err := node.Fill(f.bed.stateDir())
	if err == nil {
		err = f.bed.label(ctx, policyLabel, "other")
	}
	if err == nil {
		err = f.last(ctx, fault)
	}
	err = errors.Join(err, os.Remove(filler), f.bed.label(context.WithoutCancel(ctx), policyLabel, ""))
	return time.Now(), err
}

// releaseFaults are changes of the release and of what it makes the node offer.
type releaseFaults struct{ *faults }

// switchPolicy makes the node offer two GPUs whole alone, and then what it did.
func (f releaseFaults) switchPolicy(ctx context.Context, _ Fault) (time.Time, error) {
	if err := f.bed.label(ctx, policyLabel, "other"); err != nil {
		return time.Time{}, err
	}
	wait, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	want := slices.DeleteFunc(slices.Clone(f.want), func(d string) bool {
		return strings.HasPrefix(d, f.gpus[0]+"-") || strings.HasPrefix(d, f.gpus[1]+"-")
	})
	err := f.waitDevices(wait, want)
	from := time.Now()
	return from, errors.Join(err, f.bed.label(context.WithoutCancel(ctx), policyLabel, ""))
}

// switchPolicyAtPrepare has a pod scheduled while the kubelet does not answer, and lets it once the policy has withdrawn what nobody
// has allocated: what the pod's claim was allocated is offered no longer when it is prepared, and is published all the while
// (history.RulePublished).
func (f releaseFaults) switchPolicyAtPrepare(ctx context.Context, fault Fault) (from time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	kubelet := f.bed.cluster.Component(cluster.Kubelet)
	if err := kubelet.Signal(syscall.SIGSTOP); err != nil {
		return from, err
	}
	name := fmt.Sprintf("scheduled-%05d", fault.Index)
	running := make(chan error, 1)
	go func() {
		running <- f.bed.run(ctx, f.pods, Shape{Name: "scheduled", Claims: []Ask{AskSmall}}.manifest(name, ""), healTimeout)
	}()
	err = f.last(ctx, fault)
	if err == nil {
		err = f.bed.label(ctx, policyLabel, "other")
	}
	if err == nil {
		err = f.waitWithdrawn(ctx)
	}
	sleep(ctx, releaseLimit+time.Second)
	err = errors.Join(err, kubelet.Signal(syscall.SIGCONT), <-running)
	from = time.Now()
	return from, errors.Join(err, f.bed.label(context.WithoutCancel(ctx), policyLabel, ""), f.bed.endPod(ctx, f.pods, name, false))
}

// waitWithdrawn waits until the node offers less than it is to.
func (f releaseFaults) waitWithdrawn(ctx context.Context) error {
	return workload.Until(ctx, "devices to be withdrawn", func(ctx context.Context) (bool, string, error) {
		got, err := f.bed.devices(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		return len(got) < len(f.want), fmt.Sprintf("there are %d of %d", len(got), len(f.want)), nil
	})
}

// corruptRecords cuts off the records of every other claim, and kills the plugin. It reads their copies.
func (f *faults) corruptRecords(ctx context.Context, _ Fault) (time.Time, error) {
	all, err := filepath.Glob(filepath.Join(f.bed.stateDir(), "claims", "*.json"))
	if err != nil {
		return time.Time{}, err
	}
	for i, path := range all {
		if i%2 > 0 {
			continue
		}
		if err := os.Truncate(path, 1); err != nil && !errors.Is(err, fs.ErrNotExist) { // the claim has just ended
			return time.Time{}, fmt.Errorf("corrupt a record: %w", err)
		}
	}
	from := time.Now()
	return from, f.kill(ctx, pluginProgram)
}

// verbosities of the plugin's log tell revisions of the release apart.
const (
	verbosityBefore = "4"
	verbosityAfter  = "5"
)

func (f releaseFaults) upgrade(ctx context.Context, _ Fault) (time.Time, error) {
	from := time.Now()
	change := "plugin.logVerbosity=" + verbosityAfter
	if _, err := f.bed.Helm(ctx, f.bed.values(), "upgrade", "cleave", release.Chart(f.bed.source), "--set", change); err != nil {
		return from, err
	}
	f.upgraded = true
	return from, f.waitPlugin(ctx, verbosityAfter)
}

// rollBack returns to the revision before, where there is none after an upgrade.
func (f releaseFaults) rollBack(ctx context.Context, fault Fault) (time.Time, error) {
	if !f.upgraded { // only some kinds of faults are injected
		if from, err := f.upgrade(ctx, fault); err != nil {
			return from, err
		}
	}
	f.upgraded = false
	from := time.Now()
	if _, err := f.bed.Helm(ctx, "", "rollback", "cleave"); err != nil {
		return from, err
	}
	return from, f.waitPlugin(ctx, verbosityBefore)
}

// waitPlugin waits until the one plugin is of the revision with a verbosity, and ready.
func (f releaseFaults) waitPlugin(ctx context.Context, verbosity string) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	return workload.Until(ctx, "one plugin with --v="+verbosity, func(ctx context.Context) (bool, string, error) {
		pods, err := f.bed.releasePods(ctx, "plugin")
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprintf("%d plugins, %v", len(pods), err), nil
		}
		p := &pods[0]
		return slices.Contains(p.Spec.Containers[0].Args, "--v="+verbosity) && ready(p), workload.Describe(p), nil
	})
}

func (b *bed) releasePods(ctx context.Context, component string) ([]corev1.Pod, error) {
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component}
	list, err := b.kube.CoreV1().Pods(release.Namespace).List(ctx, selector)
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", component, err)
	}
	return list.Items, nil
}

func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready
}

// jumpClock makes the plugin's wall clock jump, and jump back.
func (f *faults) jumpClock(ctx context.Context, fault Fault) (time.Time, error) {
	plugins, err := f.bed.running(pluginProgram)
	if err != nil {
		return time.Time{}, err
	}
	for _, p := range plugins {
		if err := shiftClock(p.PID, fault.Jump); err != nil {
			return time.Time{}, err
		}
	}
	err = f.last(ctx, fault)
	for _, p := range plugins {
		if e := shiftClock(p.PID, 0); e != nil && !gone(p.PID) {
			err = errors.Join(err, e)
		}
	}
	return time.Now(), err
}
