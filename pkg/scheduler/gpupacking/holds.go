// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
)

// Result is a device that a claim has, or that is kept for a pod.
type Result = resourceapi.DeviceRequestAllocationResult

// hold keeps the devices of a node for a pod that is nominated for it. kube-scheduler counts the CPU and memory of nominated pods for
// others of the same or a lower priority, and knows nothing of their devices. Until the last victim has ended, those that were freed
// are kept, with those that the pod is to get and nobody has; then, those that the pod is to get.
type hold struct {
	pod  *corev1.Pod
	node string
	// devices are those that the allocator would give the pod once its victims have ended; none while they are not known.
	devices []Result
	known   bool
	// tried is when it was last tried to know them.
	tried time.Time
	// freed are the devices of its victims, by claim.
	freed map[types.UID][]Result
	// since orders the holds of one priority.
	since int
	// unbound: the pod was not bound, for which the scheduler takes its nomination away (handleBindingCycleError of kube-scheduler 1.37).
	unbound bool
}

// holder is for whom devices are looked for: holds of pods of a lower priority, and its own, do not count.
type holder struct {
	uid      types.UID
	priority int32
}

func holderOf(pod *corev1.Pod) holder {
	return holder{pod.UID, schedulinghelpers.PodPriority(pod)}
}

// holds are those of pods, by UID. They have the mutex of the cluster that they are of.
type holds struct {
	mutex *sync.Mutex
	of    map[types.UID]*hold
	// changes counts beginnings and ends.
	changes int
	// binding are pods that have their devices and not yet their node: the scheduler may nominate them, too.
	binding map[types.UID]bool
	// pods and claims are what informers have.
	pods, claims cache.Indexer
	// refused are pods that wait for holds to end, as others are evicted with a claim of theirs, or for it, or GPUPacking has no say.
	refused map[types.UID]refusedPod
	// gone is called with each pod that is deleted, and the mutex.
	gone func(pod *corev1.Pod)
	// wakers are called with the node of each hold that has ended.
	wakers []waker
	// ended are the nodes of holds that ended with a claim, of which wakers are not told yet.
	ended []string
}

// refusedPod is a pod that waits for holds to end.
type refusedPod struct {
	pod *corev1.Pod
	// nodes are those where holds keep devices from a pod of which GPUPacking has no say; nil for one that waits for any hold.
	nodes sets.Set[string]
}

// waker tries pods, but for one, after a hold has ended on a node; taken: its pod got its devices there, so that what was held is not free.
type waker func(node string, except types.UID, taken bool)

// Hold keeps devices of a node for a pod until it is bound, deleted or nominated for another node: those that it is to get, and those
// of the claims of the pods that are evicted for it.
func (s *Shared) Hold(pod *corev1.Pod, node string, devices []Result, victims []*resourceapi.ResourceClaim) {
	c := s.current()
	if c == nil {
		return
	}
	s.refused.remove(pod.UID)
	c.holds.tell(c.holds.begin(pod, node, devices, victims), "", false)
}

// begin implements Hold, and returns the node where the pod had a hold before, if that was another one.
func (h *holds) begin(pod *corev1.Pod, node string, devices []Result, victims []*resourceapi.ResourceClaim) (left string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.pends(pod) {
		return "" // its last event was before this call
	}
	freed := map[types.UID][]Result{}
	if before := h.of[pod.UID]; before != nil && before.node == node {
		maps.Copy(freed, before.freed) // which has none where the nomination was found at the API server
	} else if before != nil {
		left = before.node
	}
	for _, claim := range victims {
		freed[claim.UID] = results(claim)
	}
	h.add(pod, node, devices, true, freed)
	return left
}

// pends reports whether a pod waits for a node, and has the claims that it names, as far as the informers know.
func (h *holds) pends(pod *corev1.Pod) bool {
	known := h.pod(pod.Namespace, pod.Name, pod.UID)
	return known != nil && known.Spec.NodeName == "" && known.DeletionTimestamp == nil && h.hasClaims(known)
}

// pod is a pod as the informer knows it, nil if it is gone.
func (h *holds) pod(namespace, name string, uid types.UID) *corev1.Pod {
	object, ok, err := h.pods.GetByKey(namespace + "/" + name)
	if pod, isPod := object.(*corev1.Pod); err == nil && ok && isPod && pod.UID == uid {
		return pod
	}
	return nil
}

// heldNode is the node where devices are held for a pod, or that it is nominated for; empty for none.
func (s *Shared) heldNode(pod *corev1.Pod) string {
	if c := s.current(); c != nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if h := c.holds.of[pod.UID]; h != nil {
			return h.node
		}
	}
	return pod.Status.NominatedNodeName
}

// Drop ends what Hold began.
func (s *Shared) Drop(pod types.UID) { s.drop(pod, "", false) }

// drop is Drop, of which one pod is not told; see waker.
func (s *Shared) drop(pod, except types.UID, taken bool) {
	if c := s.current(); c != nil {
		c.mutex.Lock()
		node := c.holds.end(pod)
		c.mutex.Unlock()
		c.holds.tell(node, except, taken)
	}
}

// tell says that a node may have room for others, as a hold has ended there. It must not be called with the mutex: it leads to the
// scheduler's queue, which calls with its own lock.
func (h *holds) tell(node string, except types.UID, taken bool) {
	if node == "" {
		return
	}
	for _, wake := range h.wakers {
		wake(node, except, taken)
	}
}

func (h *holds) add(pod *corev1.Pod, node string, devices []Result, known bool, freed map[types.UID][]Result) {
	h.end(pod.UID)
	h.changes++
	h.of[pod.UID] = &hold{pod: pod, node: node, devices: devices, known: known, freed: freed, since: h.changes}
}

// end ends the hold of a pod, and returns its node if there was one.
func (h *holds) end(pod types.UID) (node string) {
	if known := h.of[pod]; known != nil {
		node = known.node
		h.changes++
		delete(h.of, pod)
	}
	return node
}

// Nominated is a pod that is nominated for a node. What devices are to be kept for it is not known.
type Nominated struct {
	Pod  *corev1.Pod
	Node string
}

// retryUnknown is between two attempts to know what a pod is to get.
const retryUnknown = 5 * time.Second

// Unknown are pods whose nomination was found at the API server, as after a restart of the scheduler, until Hold says what is held.
func (s *Shared) Unknown(now time.Time) []Nominated {
	c := s.current()
	if c == nil {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found []Nominated
	for _, uid := range slices.Sorted(maps.Keys(c.holds.of)) {
		if h := c.holds.of[uid]; !h.known && now.Sub(h.tried) >= retryUnknown {
			h.tried = now
			found = append(found, Nominated{h.pod, h.node})
		}
	}
	return found
}

// podChanged follows nominations, and returns the node of a hold that has ended. A pod that this scheduler has nominated is without that at
// the API server for a moment, and events of its last nomination may come late: only those of the hold's own node end it.
func (h *holds) podChanged(before, after *corev1.Pod) (node string) {
	if after == nil || after.Spec.NodeName != "" || after.DeletionTimestamp != nil {
		for _, pod := range []*corev1.Pod{before, after} {
			if pod != nil {
				delete(h.binding, pod.UID)
				delete(h.refused, pod.UID)
				node = cmp.Or(node, h.end(pod.UID))
			}
		}
		return node
	}
	was, is := "", after.Status.NominatedNodeName
	if before != nil {
		was = before.Status.NominatedNodeName
	}
	known := h.of[after.UID]
	switch {
	case was == is, known != nil && known.known && known.node != was, h.binding[after.UID]:
		return ""
	case is == "" && known != nil && known.unbound:
		known.unbound = false
	case is == "":
		return h.end(after.UID)
	case known == nil || known.node != is:
		node = h.end(after.UID)
		h.add(after, is, nil, false, nil)
	}
	return node
}

// watch follows nominations.
func (h *holds) watch(pods cache.SharedIndexInformer) (cache.DoneChecker, error) {
	pod := func(object any) *corev1.Pod {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		p, _ := object.(*corev1.Pod)
		return p
	}
	changed := func(before, after *corev1.Pod) {
		h.mutex.Lock()
		node := h.podChanged(before, after)
		if after == nil && before != nil {
			h.gone(before)
		}
		h.mutex.Unlock()
		h.tell(node, "", false)
	}
	h.pods = pods.GetIndexer()
	registered, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(nil, pod(o)) },
		UpdateFunc: func(a, b any) { changed(pod(a), pod(b)) },
		DeleteFunc: func(o any) { changed(pod(o), nil) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return registered.HasSyncedChecker(), nil
}

// on are the holds of a node that count for a holder, those of the highest priority first.
func (h *holds) on(node string, who holder) []*hold {
	var found []*hold
	for uid, one := range h.of {
		if one.node == node && uid != who.uid && schedulinghelpers.PodPriority(one.pod) >= who.priority {
			found = append(found, one)
		}
	}
	slices.SortFunc(found, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(schedulinghelpers.PodPriority(b.pod), schedulinghelpers.PodPriority(a.pod)), cmp.Compare(a.since, b.since))
	})
	return found
}

// keyed is on, with a key that is equal for holders for which the same holds count; empty where none does.
func (h *holds) keyed(node string, who holder) (found []*hold, key string) {
	found = h.on(node, who)
	if len(found) == 0 {
		return nil, ""
	}
	own := types.UID("")
	if h.of[who.uid] != nil {
		own = who.uid
	}
	return found, fmt.Sprint(" beside holds ", h.changes, " ", who.priority, " ", own)
}

// bind ends the hold of a pod that has its devices now, and returns it; nil for none.
func (h *holds) bind(pod types.UID) *hold {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	held := h.of[pod]
	h.binding[pod] = true
	h.end(pod)
	return held
}

// unbind undoes bind, which ended a hold, or nil. It reports whether that begins again: not where the pod is gone, or has one. The
// scheduler takes the nomination away, but in attempts of groups (unreserveAndForget).
func (h *holds) unbind(pod types.UID, held *hold, ofGroup bool) (again bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	delete(h.binding, pod)
	if again = held != nil && h.of[pod] == nil && h.pends(held.pod); again {
		h.changes++
		h.of[pod] = held
	}
	if now := h.of[pod]; now != nil {
		now.unbound = !ofGroup
	}
	return again
}

// addWaker adds a function that is called with the node of each hold that has ended.
func (h *holds) addWaker(wake waker) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.wakers = append(h.wakers, wake)
}
