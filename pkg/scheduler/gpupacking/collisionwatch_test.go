// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// TestCollisionWatch_Evict: pods are evicted as they were seen, and only while both claims are.
func TestCollisionWatch_Evict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "late", errors.New("changed"))
	for _, c := range []struct {
		name  string
		setUp func(b collisionBed)
		want  []string // writes
		event string
		again bool // the node is looked at again soon
	}{
		{name: "as seen", want: []string{"patch pods/status", "delete pods"}, event: "Warning AllocatedTwice Evicted"},
		{name: "without a controller", setUp: func(b collisionBed) { b.pods["late"].OwnerReferences = nil }, event: "Warning AllocatedTwice Cannot start"},
		{name: "a claim of its own name", setUp: func(b collisionBed) {
			object, _, _ := b.claimStore().GetByKey("default/b")
			object.(*resourceapi.ResourceClaim).OwnerReferences = nil
		}, event: "Warning AllocatedTwice Cannot start: devices gpu-0000-df-00-0 on node n1 cannot be prepared: claim default/a has them, too, or other " +
			"devices of the same GPUs. Delete all pods that use claim default/b"},
		{name: "the first is gone", setUp: func(b collisionBed) {
			_ = b.api.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "default", "a")
		}},
		{name: "the late one is prepared", setUp: func(b collisionBed) {
			changed := b.claimOf("b")
			changed.ResourceVersion = "2"
			_ = b.api.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), changed, "default")
		}},
		{name: "the pod has changed", want: []string{"patch pods/status"}, setUp: func(b collisionBed) {
			b.api.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, conflict })
		}},
		{name: "the pod is gone", want: []string{"patch pods/status"}, setUp: func(b collisionBed) {
			_ = b.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "late")
		}},
		// The pod that is made again would get the same device.
		{name: "without the taint", again: true, setUp: func(b collisionBed) {
			b.api.PrependReactor("create", "devicetaintrules", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("forbidden")
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCollisionBed(t, "hgx-h100")
			b.now = time.Now()
			for _, claim := range []*resourceapi.ResourceClaim{b.claim("a", "first", true, b.device("gpu", 0)), b.claim("b", "late", false, b.device("gpu", 0))} {
				must(t, b.api.Tracker().Add(claim))
			}
			for _, pod := range b.pods {
				must(t, errors.Join(b.api.Tracker().Add(pod), b.informers.Core().V1().Pods().Informer().GetIndexer().Add(pod)))
			}
			if c.setUp != nil {
				c.setUp(b)
			}
			b.api.ClearActions()
			w := b.watch()
			w.resolve(t.Context(), "n1", b.now)
			if n := len(b.api.Actions()); n != 1 { // the rule
				t.Fatalf("%d requests at the first look", n)
			}
			w.resolve(t.Context(), "n1", b.now.Add(collisionTimeout))
			if len(c.want) == 0 {
				w.resolve(t.Context(), "n1", b.now.Add(2*collisionTimeout))
			}
			var writes []string
			for _, a := range b.api.Actions() {
				if a.GetVerb() == "patch" || a.GetVerb() == "delete" {
					writes = append(writes, strings.TrimSuffix(a.GetVerb()+" "+a.GetResource().Resource+"/"+a.GetSubresource(), "/"))
				}
			}
			if diff := cmp.Diff(c.want, writes); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			var event string
			if len(b.recorder.Events) > 0 {
				event = <-b.recorder.Events
			}
			if !strings.HasPrefix(event, c.event) || c.event == "" && event != "" || len(b.recorder.Events) > 0 {
				t.Errorf("Event %q and %d more, want %q", event, len(b.recorder.Events), c.event)
			}
			if _, wait := w.next(time.Now()); c.again && wait > collisionTimeout {
				t.Errorf("the node is looked at in %s", wait)
			}
		})
	}
}

// claimOf is a copy of a claim of the API server.
func (b collisionBed) claimOf(name string) *resourceapi.ResourceClaim {
	b.t.Helper()
	object, err := b.api.Tracker().Get(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "default", name)
	must(b.t, err)
	return object.(*resourceapi.ResourceClaim).DeepCopy()
}

// TestCollisionWatch_Rules: a device that two claims have is tainted, shared ones and partitions in the way of others are not, and the
// taint ends with the last claim.
func TestCollisionWatch_Rules(t *testing.T) {
	b := newCollisionBed(t, "hgx-h100")
	b.now = time.Now()
	b.claim("a", "first", true, b.device("gpu", 0))
	b.claim("b", "late", false, b.device("gpu", 0))
	b.claim("c", "third", true, b.device("gpu", 1))
	b.claim("d", "fourth", false, b.device("1g.10gb", 1))
	b.claim("e", "fifth", true, b.device("mps", 2))
	b.claim("f", "sixth", false, b.device("mps", 2))
	w := b.watch()
	w.resolve(t.Context(), "n1", time.Now())
	rules := func() []resourceapi.DeviceTaintRule {
		list, err := b.api.ResourceV1().DeviceTaintRules().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		return list.Items
	}
	all := rules()
	if len(all) != 1 || *all[0].Spec.DeviceSelector.Device != b.device("gpu", 0) || all[0].Spec.Taint.Effect != resourceapi.DeviceTaintEffectNoSchedule {
		t.Fatalf("rules %+v, want one of the GPU that was allocated twice", all)
	}
	foreign := all[0].DeepCopy()
	foreign.Name, foreign.Labels = "foreign", nil
	b.addRule(&all[0])
	b.addRule(foreign)
	free := func(name string) {
		stored, _, _ := b.claimStore().GetByKey("default/" + name)
		must(t, b.claimStore().Delete(stored))
		b.plugin.cluster.follow(stored.(*resourceapi.ResourceClaim))
		w.resolve(t.Context(), "n1", time.Now())
	}
	free("b")
	if len(rules()) != 1 {
		t.Error("the taint has ended although a claim has the device")
	}
	free("a")
	if all := rules(); len(all) != 0 {
		t.Errorf("rules %v are left", all)
	}
}
