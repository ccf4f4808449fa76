// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// PriorityClasses of the pods that evict others, and of those that are evicted.
const (
	urgentClass   = "urgent"
	backfillClass = "backfill"
)

// urgentEach is how many urgent pods there are of a kind, backfillEach how many pods they may evict on each node.
const (
	urgentEach   = 50
	backfillEach = 7
)

// crowded is a control plane whose nodes are full.
type crowded struct{ *bench }

// urgentKinds are those of urgent pods.
var urgentKinds = []string{"1g.10gb", "whole"}

// measure measures how fast pods that find no room in a full cluster are nominated for a node, and what that costs others. Half of the
// nodes have seven whole GPUs of pods that may be evicted, half seven partitions of one GPU; the other GPUs have claims without pods, which
// nobody may take. A tenth of the nodes has nothing but ordinary pods, by a taint that only those tolerate.
func (b crowded) measure(ctx context.Context, r *report) error {
	for name, value := range map[string]int32{urgentClass: 1000, backfillClass: -1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if err := (workload.Client{Kube: b.client}).CreatePriority(ctx, namespace, class); err != nil {
			return err
		}
	}
	if err := b.addNodes(ctx, b.nodes); err != nil {
		return err
	}
	reserve := b.nodes / 10
	err := inParallel(ctx, b.nodes, func(ctx context.Context, i int) error {
		if i < reserve {
			return b.taintOrdinary(ctx, nodeName(i))
		}
		return b.fillNode(ctx, i)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d nodes are full, with %d pods that may be evicted\n", b.nodes-reserve, (b.nodes-reserve)*backfillEach)
	return b.with(ctx, cleaveScheduler, func(s *scheduler) error { return b.evict(ctx, r, s) })
}

// evict measures with a scheduler that has just started.
func (b crowded) evict(ctx context.Context, r *report, s *scheduler) error {
	ordinary := kinds[0]
	before, err := b.ordinary(ctx, s, ordinary)
	if err != nil {
		return err
	}
	var took []time.Duration
	var all []string
	for _, name := range urgentKinds { // one after the other: each waits for nobody
		k, err := findKind(name)
		if err != nil {
			return err
		}
		for range urgentEach {
			names := b.names("urgent-"+k.prefix(), 1)
			began, err := b.createAs(ctx, s.name, urgentClass, k.class, names)
			if err != nil {
				return err
			}
			at, err := b.nominated(ctx, names)
			if err != nil {
				return err
			}
			took, all = append(took, at.Sub(began)), append(all, names...)
		}
	}
	slices.Sort(took)
	r.set(fmt.Sprintf(nominatedSeconds, len(all)), s.name, took[len(took)*99/100].Seconds())
	victims, twice, err := b.victims(ctx)
	if err != nil {
		return err
	}
	r.set(fmt.Sprintf(victimsOf, len(all)), s.name, float64(victims))
	r.set(fmt.Sprintf(victimsTwice, len(all)), s.name, float64(twice))
	after, err := b.ordinary(ctx, s, ordinary)
	if err != nil {
		return err
	}
	r.set(fmt.Sprintf(ordinaryRate, b.pods, len(all)), s.name, after/before)
	fmt.Fprintf(os.Stderr, "%s: %d urgent pods nominated, median %s, p99 %s, with %d victims; ordinary pods %.1f in a second before, "+
		"%.1f while they wait\n", s.name, len(all), took[len(took)/2], took[len(took)*99/100], victims, before, after)
	return nil
}

// ordinary is how many pods are placed in a second on the nodes that are kept for them.
func (b crowded) ordinary(ctx context.Context, s *scheduler, k kind) (rate float64, err error) {
	names := b.names("ordinary", b.pods)
	began, err := b.createAs(ctx, s.name, "", k.class, names)
	if err != nil {
		return 0, err
	}
	last, err := b.bound(ctx, names)
	if err != nil {
		return 0, err
	}
	return float64(len(names)) / last.Sub(began).Seconds(), b.remove(ctx, names)
}

// createAs is create for pods of one device with a PriorityClass; those without one may be on the nodes that are kept for them.
func (b crowded) createAs(ctx context.Context, scheduler, priority, class string, names []string) (time.Time, error) {
	return createPods(ctx, b.bench, scheduler, class, 1, names, func(pod *corev1.Pod) {
		pod.Spec.PriorityClassName = priority
		if priority == "" {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: ordinaryTaint, Operator: corev1.TolerationOpExists}}
		}
	})
}

// ordinaryTaint keeps all but ordinary pods off nodes.
const ordinaryTaint = "bench/ordinary"

func (b crowded) taintOrdinary(ctx context.Context, name string) error {
	node, err := b.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	node.Spec.Taints = []corev1.Taint{{Key: ordinaryTaint, Effect: corev1.TaintEffectNoSchedule}}
	if _, err := b.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("taint node %s: %w", name, err)
	}
	return nil
}

// fillNode leaves no room on a node.
func (b crowded) fillNode(ctx context.Context, i int) error {
	node, gpus := nodeName(i), b.published.whole()
	taken := gpus[:backfillEach]
	rest := gpus[backfillEach:]
	if i%2 == 1 {
		taken = slices.DeleteFunc(b.published.smallest(), func(device string) bool { return packing.GPUOf(device) != packing.GPUOf(gpus[0]) })
		rest = gpus[1:]
	}
	for n, device := range taken {
		if err := b.addBackfill(ctx, fmt.Sprintf("backfill-%04d-%d", i, n), node, device); err != nil {
			return err
		}
	}
	client := workload.Client{Kube: b.client}
	for n, device := range rest {
		if _, err := client.Allocate(ctx, namespace, fmt.Sprintf("kept-%04d-%d", i, n), workload.OneGPU(node, device, false)); err != nil {
			return err
		}
	}
	return nil
}

// addBackfill creates a pod on a node with a claim for a device, as the scheduler leaves them.
func (b crowded) addBackfill(ctx context.Context, name, node, device string) error {
	client := workload.Client{Kube: b.client}
	if _, err := client.Allocate(ctx, namespace, name, workload.OneGPU(node, device, false)); err != nil {
		return err
	}
	pod := claimPod(cleaveScheduler, name)
	pod.Spec.NodeName, pod.Spec.PriorityClassName = node, backfillClass
	pod.Spec.TerminationGracePeriodSeconds = new(int64(3600)) // no kubelet ends it
	pod, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read claim %s: %w", name, err)
	}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reserve claim %s: %w", name, err)
	}
	return nil
}

// nominated waits until all pods have a nominated node, or are bound, and returns when the last one was.
func (b crowded) nominated(ctx context.Context, names []string) (last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	err = b.watch.until(ctx, func(pods map[string]placed) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			p := pods[name]
			if p.at.After(last) {
				last = p.at
			}
			return p.nominated == "" && p.node == ""
		})
	})
	if err != nil {
		return last, fmt.Errorf("wait for %v to be nominated: %w", names, err)
	}
	return last, nil
}

// victims counts the pods that were evicted, and of urgent pods those whose devices another one is to get, too: there are fewer devices
// then than nominations. No kubelet ends victims, so nothing is allocated anew.
func (b crowded) victims(ctx context.Context) (victims, twice int, err error) {
	pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("list the pods: %w", err)
	}
	nominations := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			victims++
		}
		if p.Status.NominatedNodeName != "" {
			nominations++
		}
	}
	return victims, max(0, nominations-victims), nil
}
