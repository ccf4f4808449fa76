// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// collisionTimeout is for how long a pod is seen in a collision before it is evicted. Claims are prepared within seconds where nothing is
// in the way.
const collisionTimeout = 15 * time.Second

// collision is a claim that cannot be prepared, as others have been prepared that have its devices, or others in their place. The API
// server compares no claims: two schedulers that allocate at once may give a device to both.
type collision struct {
	claim, with *resourceapi.ResourceClaim
	devices     []Result
	// pods are those of the claim, none of which has started.
	pods []*corev1.Pod
}

// podFinder finds a pod that the scheduler knows, nil where it is gone.
type podFinder func(namespace, name string, uid types.UID) *corev1.Pod

// occupant is a claim with devices of a view.
type occupant struct {
	claim *resourceapi.ResourceClaim
	pods  []*corev1.Pod
	// complete: all consumers are known. leaves: all of them end, or are gone, and with them the claim.
	complete, leaves bool
	// prepared are the uses of devices that the claim's status reports as ready, waiting the others.
	prepared, waiting []packing.Use
	devices           []Result // that wait
}

// collisions are those on a node.
type collisions struct {
	// evict are those of which the pods are to be evicted, in that order.
	evict []collision
	// doubled are the devices that several claims have and that are not shared.
	doubled []Result
	// exceeded: more is allocated than there is.
	exceeded bool
}

// collisionsOn looks at a node.
func collisionsOn(c *cluster, node string, find podFinder, now time.Time) (found collisions) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, v := range c.views[node] {
		c.refresh(v)
		if v.node == nil || !packing.Exceeded(v.state) {
			continue
		}
		all := occupantsOf(c, v, find, now)
		found.doubled = append(found.doubled, doubled(all)...)
		found.evict, found.exceeded = append(found.evict, v.collisions(all)...), true
	}
	return found
}

// doubled are the devices that several claims have and that are not shared, once each.
func doubled(all []*occupant) (found []Result) {
	count := map[deviceKey]int{}
	for _, o := range all {
		for i := range o.claim.Status.Allocation.Devices.Results {
			r := &o.claim.Status.Allocation.Devices.Results[i]
			if r.AdminAccess != nil && *r.AdminAccess || r.ShareID != nil {
				continue
			}
			key := keyOf(r)
			if count[key]++; count[key] == 2 {
				found = append(found, *r)
			}
		}
	}
	return found
}

// deviceKey identifies a device.
type deviceKey struct{ driver, pool, device string }

func keyOf(r *Result) deviceKey { return deviceKey{r.Driver, r.Pool, r.Device} }

// occupantsOf are the claims with devices of a view, in the order of their names. What this scheduler only assumes is left out: nobody
// has prepared it.
func occupantsOf(c *cluster, v *view, find podFinder, now time.Time) []*occupant {
	var all []*occupant
	for uid := range v.users(c) {
		s := c.allocated[uid]
		if s == nil || s.stored == nil {
			continue
		}
		o := &occupant{claim: s.claim}
		for i := range s.stored {
			uses := v.node.Uses(s.stored[i : i+1])
			if len(uses) > 0 && isReady(s.claim, &s.stored[i]) {
				o.prepared = append(o.prepared, uses...)
			} else if len(uses) > 0 {
				o.waiting, o.devices = append(o.waiting, uses...), append(o.devices, s.stored[i])
			}
		}
		consumers, known := pools.Consumers(s.claim)
		o.complete, o.leaves = known, known
		for _, r := range consumers {
			pod := find(s.claim.Namespace, r.Name, r.UID)
			if pod == nil {
				o.complete = false
				continue
			}
			o.pods, o.leaves = append(o.pods, pod), o.leaves && pools.Leaves(pod, now)
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *occupant) int {
		return cmp.Or(cmp.Compare(a.claim.Namespace, b.claim.Namespace), cmp.Compare(a.claim.Name, b.claim.Name))
	})
	return all
}

// users are the claims with devices of the view's pools.
func (v *view) users(c *cluster) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, s := range v.slices {
		maps.Copy(all, c.users[poolKey{s.Spec.Driver, s.Spec.Pool.Name}])
	}
	return all
}

// isReady reports whether a claim's status says that a device is prepared (KEP-4817: the driver writes it).
func isReady(claim *resourceapi.ResourceClaim, r *Result) bool {
	return slices.ContainsFunc(claim.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
		sameShare := r.ShareID == nil && d.ShareID == nil || r.ShareID != nil && d.ShareID != nil && string(*r.ShareID) == *d.ShareID
		return d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device && sameShare &&
			meta.IsStatusConditionTrue(d.Conditions, "Ready")
	})
}

// collisions of a view. One pod after the other is taken, as its eviction may end the collision of another.
func (v *view) collisions(all []*occupant) (found []collision) {
	all = slices.DeleteFunc(all, func(o *occupant) bool { return o.leaves })
	for {
		losers := slices.DeleteFunc(slices.Clone(all), func(o *occupant) bool { return !o.evictable() || v.inTheWay(o, all) == nil })
		if len(losers) == 0 {
			return found
		}
		o := slices.MinFunc(losers, compareOccupants)
		found = append(found, collision{claim: o.claim, with: v.inTheWay(o, all).claim, devices: o.devices, pods: o.pods})
		all = slices.DeleteFunc(all, func(other *occupant) bool { return other == o || endsWith(other, o.pods) })
	}
}

// inTheWay is the first claim without which the devices of another could be prepared, or one of several that are in the way together;
// nil where nothing is.
func (v *view) inTheWay(o *occupant, all []*occupant) *occupant {
	together := v.node.NewState()
	if len(o.waiting) == 0 || packing.Collide(together, o.waiting) {
		return nil // nothing else is to blame
	}
	for _, other := range all {
		if other == o || len(other.prepared) == 0 {
			continue
		}
		together.Allocate(other.prepared...)
		if packing.Collide(together, o.waiting) {
			return other
		}
	}
	return nil
}

// endsWith reports whether a claim ends with pods.
func endsWith(o *occupant, pods []*corev1.Pod) bool {
	return len(o.pods) > 0 && !slices.ContainsFunc(o.pods, func(p *corev1.Pod) bool { return !slices.Contains(pods, p) })
}

// evictable reports whether a claim ends with pods of which none has started.
func (o *occupant) evictable() bool {
	return o.complete && len(o.pods) > 0 && !slices.ContainsFunc(o.pods, func(p *corev1.Pod) bool {
		return scheduledAt(p).IsZero() || started(p) || p.DeletionTimestamp != nil
	})
}

// scheduledAt is since when a pod has a node; zero where it has none.
func scheduledAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && pod.Spec.NodeName != "" {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// started reports whether a container of a pod has run.
func started(pod *corev1.Pod) bool {
	ran := func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.RestartCount > 0
	}
	return pod.Status.Phase != corev1.PodPending || slices.ContainsFunc(pod.Status.InitContainerStatuses, ran) ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, ran)
}

// replaced reports whether another pod and another claim come in place of a pod that is evicted and its claim.
func replaced(pod *corev1.Pod, claim *resourceapi.ResourceClaim) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	return metav1.GetControllerOfNoCopy(pod) != nil && owner != nil && owner.UID == pod.UID
}

// compareOccupants orders claims by the loss: those that are made again first, then those of low priority, then the last that got their
// node.
func compareOccupants(a, b *occupant) int {
	lasting := func(o *occupant) int {
		return len(slices.DeleteFunc(slices.Clone(o.pods), func(p *corev1.Pod) bool { return replaced(p, o.claim) }))
	}
	priority := func(o *occupant) (most int32) {
		most = schedulinghelpers.PodPriority(o.pods[0])
		for _, p := range o.pods {
			most = max(most, schedulinghelpers.PodPriority(p))
		}
		return most
	}
	return cmp.Or(cmp.Compare(lasting(a), lasting(b)), cmp.Compare(priority(a), priority(b)),
		scheduledAt(b.pods[0]).Compare(scheduledAt(a.pods[0])), cmp.Compare(a.claim.UID, b.claim.UID))
}
