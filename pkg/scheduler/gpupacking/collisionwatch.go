// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// settleTime is how long a node's changes are gathered before it is looked at.
const settleTime = time.Second

// collisionWatch evicts pods that cannot start since their devices were allocated twice, so that their controllers make others. Each
// replica of the scheduler does it, as what it decides follows from what the API server has: of two that evict one pod, one fails.
type collisionWatch struct {
	cluster  *cluster
	client   kubernetes.Interface
	pods     corelisters.PodLister
	recorder events.EventRecorder

	mutex sync.Mutex
	// due are the nodes to look at, and when.
	due   map[string]time.Time
	added chan struct{}
	// told are the pods that are not evicted and have an Event.
	told remembered[struct{}]
	// seen is since when claims are seen as those that have lost, by node. Only run uses it.
	seen map[string]map[types.UID]time.Time
}

func newCollisionWatch(c *cluster, handle framework.Handle) *collisionWatch {
	return &collisionWatch{
		cluster: c, client: handle.ClientSet(), pods: handle.SharedInformerFactory().Core().V1().Pods().Lister(),
		recorder: handle.EventRecorder(), due: map[string]time.Time{}, added: make(chan struct{}, 1),
		seen: map[string]map[types.UID]time.Time{},
	}
}

// look notes that something has changed on a node.
func (w *collisionWatch) look(node string) { w.lookAt(node, time.Now().Add(settleTime)) }

func (w *collisionWatch) lookAt(node string, at time.Time) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if known, ok := w.due[node]; ok && !at.Before(known) {
		return
	}
	w.due[node] = at
	select {
	case w.added <- struct{}{}:
	default:
	}
}

// run ends with its context.
func (w *collisionWatch) run(ctx context.Context) {
	if !cache.WaitFor(ctx, "", w.cluster.synced...) {
		return
	}
	for {
		nodes, wait := w.next(time.Now())
		for _, node := range nodes {
			w.resolve(ctx, node, time.Now())
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-w.added:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// next are the nodes whose time has come, and how long it is until that of the next; an hour where there is none.
func (w *collisionWatch) next(now time.Time) (nodes []string, wait time.Duration) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	wait = time.Hour
	for _, node := range slices.Sorted(maps.Keys(w.due)) {
		if left := w.due[node].Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		delete(w.due, node)
		nodes = append(nodes, node)
	}
	return nodes, wait
}

// resolve evicts the pods of a node that have lost, and have been seen so for some time.
func (w *collisionWatch) resolve(ctx context.Context, node string, now time.Time) {
	found := collisionsOn(w.cluster, node, w.find, now)
	if found.exceeded {
		w.lookAt(node, now.Add(collisionTimeout)) // what ends a collision, or lets a pod be evicted, may have no event
	}
	logger, seen := klog.FromContext(ctx), map[types.UID]time.Time{}
	marked := w.mark(ctx, found.doubled)
	if marked != nil && ctx.Err() == nil {
		logger.Error(marked, "Keep other claims off devices that were allocated twice", "node", node)
	}
	for i := range found.evict {
		c := &found.evict[i]
		since, known := w.seen[node][c.claim.UID]
		if !known {
			since = now
		}
		seen[c.claim.UID] = since
		if due := since.Add(collisionTimeout); due.After(now) {
			w.lookAt(node, due)
			continue
		}
		if marked != nil {
			continue
		}
		if err := w.evict(ctx, node, c); err != nil && ctx.Err() == nil {
			logger.Error(err, "Resolve a collision of two claims", "node", node, "claim", klog.KObj(c.claim), "other", klog.KObj(c.with))
		}
	}
	if delete(w.seen, node); len(seen) > 0 {
		w.seen[node] = seen
	}
	w.unmark(ctx, node)
}

func (w *collisionWatch) find(namespace, name string, uid types.UID) *corev1.Pod {
	pod, err := w.pods.Pods(namespace).Get(name)
	if err != nil || pod.UID != uid {
		return nil
	}
	return pod
}

// evict evicts the pods of a claim, if the API server still has both claims as they were.
func (w *collisionWatch) evict(ctx context.Context, node string, c *collision) error {
	for _, known := range []*resourceapi.ResourceClaim{c.claim, c.with} {
		now, err := w.client.ResourceV1().ResourceClaims(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("read claim %s: %w", klog.KObj(known), err)
		case now.ResourceVersion != known.ResourceVersion:
			return nil // its event leads here again
		}
	}
	text := fmt.Sprintf("%s on node %s cannot be prepared: claim %s has them, too, or other devices of the same GPUs",
		DeviceNames(c.devices), node, klog.KObj(c.with))
	for _, pod := range c.pods {
		if !replaced(pod, c.claim) {
			w.tell(pod, c.claim, text)
			continue
		}
		if err := w.evictPod(ctx, node, pod, text); err != nil {
			return err
		}
	}
	return nil
}

// tell says once of a pod what to do, where its eviction would not do it: nobody would make it again, or its claim would keep the devices
// for the next one.
func (w *collisionWatch) tell(pod *corev1.Pod, claim *resourceapi.ResourceClaim, text string) {
	if w.told.put(pod.UID, struct{}{}) {
		return
	}
	if owner := metav1.GetControllerOfNoCopy(claim); owner == nil || owner.UID != pod.UID {
		w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "AllocatedTwice", "Scheduling",
			"Cannot start: %s. Delete all pods that use claim %s, and create them again once it is deallocated.", text, klog.KObj(claim))
		return
	}
	w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "AllocatedTwice", "Scheduling",
		"Cannot start: %s. Delete the pod and create it again: it has no controller that would.", text)
}

// evictPod evicts a pod as kube-scheduler's preemption does: by a condition that Jobs know, and then by deletion
// (pkg/scheduler/framework/preemption/executor.go, kubernetes 1.37.2). The Eviction API would ask for PodDisruptionBudgets, which may
// protect pods that have never started, too. The condition is for the pod as it was seen: where it has changed since, nothing is done.
func (w *collisionWatch) evictPod(ctx context.Context, node string, pod *corev1.Pod, text string) error {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "AllocatedTwice", Message: text,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode a condition: %w", err)
	}
	client := w.client.CoreV1().Pods(pod.Namespace)
	switch _, err := client.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		w.look(node) // once the informer has the pod as it is now
		return nil
	case err != nil:
		return fmt.Errorf("write the condition of pod %s: %w", klog.KObj(pod), err)
	}
	err = client.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evict pod %s: %w", klog.KObj(pod), err)
	}
	collisionEvictions.Inc()
	klog.FromContext(ctx).V(2).Info("Evicted a pod whose devices were allocated twice", "pod", klog.KObj(pod), "reason", text)
	w.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "AllocatedTwice", "Evicting",
		"Evicted, so that its controller makes another: %s.", text)
	return nil
}

// maxNamed bounds the names in an Event.
const maxNamed = 10

// DeviceNames are those of devices, for people.
func DeviceNames(all []Result) string {
	var names []string
	for i := range all {
		names = append(names, all[i].Device)
	}
	slices.Sort(names)
	if len(names) > maxNamed {
		return fmt.Sprintf("devices %s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return "devices " + strings.Join(names, ", ")
}
