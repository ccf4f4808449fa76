// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// collisionBed has node n1 with the GPUs of a model.
type collisionBed struct {
	*bed
	pods map[string]*corev1.Pod
	// api is what the watch writes to. Informers do not see it.
	api *fake.Clientset
}

func (b collisionBed) watch() *collisionWatch {
	w := newCollisionWatch(b.plugin.cluster, b)
	w.client = b.api
	return w
}

func newCollisionBed(t *testing.T, model string) collisionBed {
	b := collisionBed{newBed(t, ""), map[string]*corev1.Pod{}, fake.NewClientset()}
	b.addNodes(model, "n1")
	b.plugin.cluster.refresh(b.plugin.cluster.views["n1"][0])
	return b
}

// device is the first of a shape on a GPU.
func (b collisionBed) device(shape string, gpu int) string {
	b.t.Helper()
	for _, d := range b.plugin.cluster.views["n1"][0].node.Model.Devices {
		if d.Shape == shape && d.GPU == gpu {
			return d.Name
		}
	}
	b.t.Fatalf("there is no device %s on GPU %d", shape, gpu)
	return ""
}

// claim is one of a pod that has had its node for 20 seconds, with devices, prepared or not.
func (b collisionBed) claim(name, pod string, prepared bool, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("claim-" + name), ResourceVersion: "1"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		r := Result{Request: "gpu", Driver: driver, Pool: "n1", Device: d}
		if strings.HasSuffix(d, "mps") {
			r.ShareID, r.ConsumedCapacity = new(types.UID(name)), map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse("6")}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
		if prepared {
			ready := resourceapi.AllocatedDeviceStatus{Driver: driver, Pool: "n1", Device: d, Conditions: []metav1.Condition{{Type: "Ready", Status: "True"}}}
			if r.ShareID != nil {
				ready.ShareID = new(string(*r.ShareID))
			}
			c.Status.Devices = append(c.Status.Devices, ready)
		}
	}
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: new(true)}}
	b.reserve(c, pod)
	return c
}

// two has a device of pod first, which is prepared, and one of pod late, which is not.
func (b collisionBed) two(first, late string) {
	b.claim("a", "first", true, first)
	b.claim("b", "late", false, late)
}

// crosswise has a GPU prepared for each of two pods, which is the other's, too.
func (b collisionBed) crosswise(one, other string) {
	b.claim("a1", one, true, b.device("gpu", 0))
	b.claim("a2", one, false, b.device("gpu", 1))
	b.claim("b1", other, true, b.device("gpu", 1))
	b.claim("b2", other, false, b.device("gpu", 0))
}

// consume changes the shares of a claim.
func (b collisionBed) consume(claim, shares string) {
	object, _, _ := b.claimStore().GetByKey("default/" + claim)
	c := object.(*resourceapi.ResourceClaim).DeepCopy()
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		r.ShareID, r.ConsumedCapacity = new(types.UID(fmt.Sprint(claim, i))), map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse(shares)}
		if len(c.Status.Devices) > 0 {
			c.Status.Devices[i].ShareID = new(string(*r.ShareID))
		}
	}
	b.storeClaim(c)
	b.plugin.cluster.follow(c)
}

// reserve adds a claim to a pod's, which it makes.
func (b collisionBed) reserve(c *resourceapi.ResourceClaim, pod string) {
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
	if b.pods[pod] == nil {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "default", UID: types.UID(pod), ResourceVersion: "1",
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "owner", Controller: new(true)}}}}
		p.Spec.NodeName = "n1"
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Time{Time: b.now.Add(-20 * time.Second)}}}}
		b.pods[pod] = p
	}
	b.storeClaim(c)
	b.plugin.cluster.follow(c)
}

func (b collisionBed) find(_, name string, uid types.UID) *corev1.Pod {
	if p := b.pods[name]; p != nil && p.UID == uid {
		return p
	}
	return nil
}

func (b collisionBed) collided() (pods []string) {
	for _, c := range collisionsOn(b.plugin.cluster, "n1", b.find, b.now).evict {
		for _, p := range c.pods {
			pods = append(pods, p.Name)
		}
	}
	return pods
}

func TestCollisions(t *testing.T) {
	running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	for _, c := range []struct {
		name  string
		setUp func(b collisionBed)
		want  []string
	}{
		{name: "one GPU twice", want: []string{"late"}, setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("gpu", 0))
			b.claim("c", "other", false, b.device("gpu", 1))
		}},
		{name: "nobody has it yet", setUp: func(b collisionBed) {
			b.claim("a", "first", false, b.device("gpu", 0))
			b.claim("b", "late", false, b.device("gpu", 0))
		}},
		{name: "a GPU under a partition", want: []string{"late"}, setUp: func(b collisionBed) {
			b.two(b.device("1g.10gb", 0), b.device("gpu", 0))
		}},
		{name: "a partition of a GPU", want: []string{"late"}, setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("1g.10gb", 0))
		}},
		{name: "partitions side by side", setUp: func(b collisionBed) {
			b.two(b.device("1g.10gb", 0), b.device("gpu", 0)+"-mig-9-0")
		}},
		{name: "more shares than there are", want: []string{"late"}, setUp: func(b collisionBed) {
			b.two(b.device("mps", 0), b.device("mps", 0))
		}},
		{name: "one that has started", setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("gpu", 0))
			running(b.pods["late"])
		}},
		{name: "one whose container runs", setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("gpu", 0))
			b.pods["late"].Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}},
		{name: "the first ends by itself", setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("gpu", 0))
			b.pods["first"].DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}},
		{name: "the late one ends by itself", setUp: func(b collisionBed) {
			b.two(b.device("gpu", 0), b.device("gpu", 0))
			b.pods["late"].DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}},
		{name: "crosswise, the lower priority", want: []string{"low"}, setUp: func(b collisionBed) {
			b.crosswise("high", "low")
			b.pods["high"].Spec.Priority = new(int32(10))
		}},
		{name: "crosswise, the later", want: []string{"first"}, setUp: func(b collisionBed) {
			b.crosswise("first", "second")
			b.pods["second"].Status.Conditions[0].LastTransitionTime = metav1.Time{Time: b.now.Add(-time.Minute)}
		}},
		{name: "crosswise, the one with a controller", want: []string{"second"}, setUp: func(b collisionBed) {
			b.crosswise("first", "second")
			b.pods["first"].OwnerReferences = nil
			b.pods["second"].Spec.Priority = new(int32(10))
		}},
		{name: "a claim of two pods", want: []string{"late", "later"}, setUp: func(b collisionBed) {
			b.claim("a", "first", true, b.device("gpu", 0))
			b.reserve(b.claim("b", "late", false, b.device("gpu", 0)), "later")
		}},
		{name: "a claim of two pods of which one runs", setUp: func(b collisionBed) {
			b.claim("a", "first", true, b.device("gpu", 0))
			b.reserve(b.claim("b", "late", false, b.device("gpu", 0)), "later")
			running(b.pods["later"])
		}},
		{name: "a claim of pods of which one is not known", setUp: func(b collisionBed) {
			b.claim("a", "first", true, b.device("gpu", 0))
			b.reserve(b.claim("b", "late", false, b.device("gpu", 0)), "later")
			delete(b.pods, "later")
		}},
		{name: "two shares that are too much together", want: []string{"late"}, setUp: func(b collisionBed) {
			b.claim("a", "first", true, b.device("mps", 0))
			b.claim("b", "late", false, b.device("mps", 0), b.device("mps", 0))
			b.consume("a", "6")
			b.consume("b", "4")
		}},
		{name: "a device that nobody publishes", setUp: func(b collisionBed) {
			b.two("gpu-gone", "gpu-gone")
		}},
		{name: "too much elsewhere in the pool", setUp: func(b collisionBed) {
			b.claim("a", "first", true, b.device("gpu", 0))
			b.claim("b", "second", true, b.device("1g.10gb", 0)) // both say that they are prepared
			running(b.pods["first"])
			running(b.pods["second"])
			b.claim("c", "late", false, b.device("gpu", 1))
			b.claim("d", "later", false, b.device("1g.10gb", 0))
			running(b.pods["later"])
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCollisionBed(t, "hgx-h100")
			b.now = time.Now()
			c.setUp(b)
			if diff := cmp.Diff(c.want, b.collided()); diff != "" {
				t.Errorf("pods to evict (-want +got):\n%s", diff)
			}
		})
	}
}
