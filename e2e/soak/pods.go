// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// podsAtATime is how many pods there are at most.
	podsAtATime = 12
	// podTimeout bounds the time until a pod runs, and until it is gone: faults delay it, one after the other.
	podTimeout = 3 * time.Minute
	// lookEvery is how often pods are looked at.
	lookEvery = 250 * time.Millisecond
)

// churn lets the pods of a plan pass.
type churn struct {
	bed    *bed
	plan   Plan
	pods   *podList
	report *tally

	mu    sync.Mutex
	free  map[resource]int
	freed chan struct{} // closed and made anew when there is more
}

func newChurn(b *bed, plan Plan, pods *podList, report *tally) *churn {
	return &churn{bed: b, plan: plan, pods: pods, report: report, free: room(), freed: make(chan struct{})}
}

// run creates pods until more ends, waits until all are gone, and returns. ctx bounds all of it.
func (c *churn) run(ctx, more context.Context) {
	next := make(chan Pod)
	var workers sync.WaitGroup
	for range podsAtATime {
		workers.Go(func() {
			for pod := range next {
				c.pass(ctx, pod)
				c.give(pod.Shape.takes())
			}
		})
	}
	for i := 0; more.Err() == nil; i++ {
		pod := c.plan.Pod(i)
		if !c.take(more, pod.Shape.takes()) {
			break
		}
		select {
		case next <- pod:
		case <-more.Done():
		}
	}
	close(next)
	workers.Wait()
}

// take waits until there is room, and reports whether ctx goes on.
func (c *churn) take(ctx context.Context, what map[resource]int) bool {
	for {
		c.mu.Lock()
		fits := true
		for r, n := range what {
			fits = fits && c.free[r] >= n
		}
		if fits {
			for r, n := range what {
				c.free[r] -= n
			}
		}
		freed := c.freed
		c.mu.Unlock()
		if fits {
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (c *churn) give(what map[resource]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, n := range what {
		c.free[r] += n
	}
	close(c.freed)
	c.freed = make(chan struct{})
}

// pass is the life of a pod, or of a PodGroup with its pods: it is created, runs, keeps its devices for a while, and goes.
func (c *churn) pass(ctx context.Context, p Pod) {
	name := fmt.Sprintf("pod-%05d-%s", p.Index, p.Shape.Name)
	if p.Shape.Group == 0 {
		if c.passPod(ctx, p, p.Shape.manifest(name, "")) {
			c.report.claimsHad(len(p.Shape.Claims))
		}
		return
	}
	if err := createGroup(ctx, c.bed.kube, p.Shape, name); err != nil {
		if ctx.Err() == nil {
			c.report.violation("pod", "%s: %v", name, err)
		}
		return
	}
	var pods sync.WaitGroup
	var ran atomic.Bool
	for i := range p.Shape.Group {
		member := p
		member.Hold *= time.Duration(i + 1) // they go one after the other
		pods.Go(func() {
			if c.passPod(ctx, member, p.Shape.manifest(fmt.Sprintf("%s-%d", name, i), name)) {
				ran.Store(true)
			}
		})
	}
	pods.Wait()
	if ran.Load() {
		c.report.claimsHad(len(p.Shape.Claims))
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	if err := deleteGroup(ctx, c.bed.kube, name); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		c.report.violation("pod", "%s: %v", name, err)
	}
}

// passPod is the life of a pod, which may be one of a PodGroup. It reports whether the pod ran.
func (c *churn) passPod(ctx context.Context, p Pod, manifest *corev1.Pod) (ran bool) {
	created, name := time.Now(), manifest.Name
	c.report.podCreated()
	err := c.bed.run(ctx, c.pods, manifest, podTimeout)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, errEnded):
		c.report.podEnded(c.pods.nameOf(name), p.Shape, created, err.Error())
	case err != nil && manifest.Spec.SchedulingGroup != nil && c.report.isRefused(name):
		// Made again, a pod of a PodGroup has the claims that it was refused for: they are the group's.
	case err != nil:
		c.report.violation("pod", "%s: %v", name, err)
	default:
		ran = true
		if !sleep(ctx, p.Hold) {
			return ran
		}
		if pod := c.pods.get(name); pod == nil || ended(pod) { // it was there while it ran, and nobody but pass deletes it
			c.report.podEnded(c.pods.nameOf(name), p.Shape, created, describe(pod))
		}
	}
	if err := c.bed.endPod(ctx, c.pods, name, p.Force); err != nil && ctx.Err() == nil {
		c.report.violation("pod", "%s: %v", name, err)
	}
	return ran
}

// errEnded is that a pod has ended before it was asked to.
var errEnded = errors.New("it ended")

// ended reports whether a pod has, or containers of it have ended and were started again. The count of restarts does not say so: where
// the kubelet was killed between creating a container and starting it, it counts the one that it starts in its place as a restart of
// one that never ran (k8s.io/kubernetes, pkg/kubelet/kubelet_pods.go, convertToAPIContainerStatuses: ContainerStateCreated).
func ended(pod *corev1.Pod) bool {
	over := func(s corev1.ContainerStatus) bool {
		return ran(s.State.Terminated) || ran(s.LastTerminationState.Terminated)
	}
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, over)
}

// ran reports whether a container ended that had run: one that was being started when the kubelet was killed had not, as containerd
// gives up what nobody waits for.
func ran(t *corev1.ContainerStateTerminated) bool {
	return t != nil && (t.Reason != "StartError" || !strings.Contains(t.Message, "context canceled"))
}

// run creates a pod and waits until it runs. The error is errEnded if it cannot any more. As its controller it makes the pod again where
// that is evicted before, and notes that: the history has to say why.
func (b *bed) run(ctx context.Context, pods *podList, manifest *corev1.Pod, timeout time.Duration) error {
	_, err := b.runAgain(ctx, pods, manifest, timeout)
	return err
}

// runAgain is run, and returns the time that passed before the pod was made for the last time.
func (b *bed) runAgain(ctx context.Context, pods *podList, manifest *corev1.Pod, timeout time.Duration) (lost time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	manifest.OwnerReferences = []metav1.OwnerReference{b.owner}
	began, name := time.Now(), manifest.Name
	for again := 1; ; again++ {
		last := time.Now()
		err := b.runOnce(ctx, pods, manifest)
		if err == nil {
			return last.Sub(began), nil
		}
		if !errors.Is(err, errGone) {
			return 0, fmt.Errorf("%w; Events: %s", err, b.warnings(context.WithoutCancel(ctx), manifest.Name))
		}
		// With another name, as of a ReplicaSet: kube-scheduler 1.37 exits where it missed that a pod was replaced by one of its name, as
		// while the API server is away ("Scheduler cache is corrupted", pkg/scheduler/backend/cache/cache.go).
		manifest.Name = fmt.Sprintf("%s-again-%d", name, again)
		pods.rename(name, manifest.Name)
	}
}

// errGone is that a pod is gone that nobody of the soak has deleted.
var errGone = errors.New("it is gone")

// runOnce creates a pod and waits until it runs.
func (b *bed) runOnce(ctx context.Context, pods *podList, manifest *corev1.Pod) error {
	name := manifest.Name
	err := persist(ctx, "create the pod", func(ctx context.Context) error {
		_, err := b.kube.CoreV1().Pods(namespace).Create(ctx, manifest, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier answer was lost
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	var seen *corev1.Pod
	return workload.Until(ctx, "it to run", func(context.Context) (bool, string, error) {
		pod := pods.get(name)
		if seen != nil && (pod == nil || pod.UID != seen.UID) {
			pods.lose(seen)
			return false, "", errGone
		} else if pod == nil {
			return false, "not there", nil
		}
		seen = pod
		over := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		if over && pod.DeletionTimestamp == nil { // else it is so on its way out, which the soak did not ask for
			return false, "", fmt.Errorf("%w: %s", errEnded, describe(pod))
		}
		return isRunning(pod), describe(pod), nil
	})
}

// isRunning reports whether all containers of a pod run.
func isRunning(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers) &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil })
}

// endPod deletes a pod and waits until it is gone.
func (b *bed) endPod(ctx context.Context, pods *podList, name string, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	opts := metav1.DeleteOptions{}
	if force {
		now := int64(0)
		opts.GracePeriodSeconds = &now
	}
	err := persist(ctx, "delete the pod", func(ctx context.Context) error {
		return ignoreNotFound(b.kube.CoreV1().Pods(namespace).Delete(ctx, pods.nameOf(name), opts))
	})
	if err != nil {
		return err
	}
	asked := pods.round()
	return workload.Until(ctx, "it to go", func(context.Context) (bool, string, error) {
		pod := pods.get(name)
		return pod == nil && pods.round() > asked+1, describe(pod), nil
	})
}

// persist tries until it works, as while the API server is away.
func persist(ctx context.Context, what string, try func(context.Context) error) error {
	return workload.Until(ctx, what, func(ctx context.Context) (bool, string, error) {
		once, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err := try(once)
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return false, "", err
		}
		return err == nil, fmt.Sprint(err), nil
	})
}

func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "not there"
	}
	text := workload.Describe(pod)
	for _, s := range pod.Status.ContainerStatuses {
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil {
				text += fmt.Sprintf("; container %s ended at %s: %s, exit code %d %s", s.Name, t.FinishedAt.UTC().Format(time.TimeOnly),
					t.Reason, t.ExitCode, t.Message)
			}
		}
	}
	if pod.DeletionTimestamp != nil {
		text += "; is being deleted"
	}
	return text + "; " + pod.Status.Reason + " " + pod.Status.Message
}

// warnings about a pod.
func (b *bed) warnings(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := b.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + name})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, e.Reason+": "+e.Message)
	}
	return strings.Join(all, " | ")
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
