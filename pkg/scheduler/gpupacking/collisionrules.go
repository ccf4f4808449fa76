// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// A scheduler keeps the allocated devices as a set: when one of two claims with a device goes, it takes the device for free, although the
// other has it, and allocates it again (pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go, removeDevices, kubernetes
// 1.37.2). So until no claim has it any longer, a DeviceTaintRule keeps new ones off.

// managedBy is the label of the rules.
const managedBy, manager = "app.kubernetes.io/managed-by", "cleave-scheduler"

func ruleFor(r *Result) *resourceapi.DeviceTaintRule {
	h := fnv.New64a()
	for _, part := range []string{r.Driver, r.Pool, r.Device} {
		_, _ = io.WriteString(h, part+"/")
	}
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("cleave-allocated-twice-%016x", h.Sum64()), Labels: map[string]string{managedBy: manager},
		},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &r.Driver, Pool: &r.Pool, Device: &r.Device},
			Taint:          resourceapi.DeviceTaint{Key: v1alpha1.AllocatedTwiceTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
}

// mark creates the rules of devices. Without them, nobody must be evicted: the pod that is made again would get the same device.
func (w *collisionWatch) mark(ctx context.Context, devices []Result) error {
	for i := range devices {
		rule := ruleFor(&devices[i])
		if hasRule(w.cluster, rule.Name) {
			continue
		}
		_, err := w.client.ResourceV1().DeviceTaintRules().Create(ctx, rule, metav1.CreateOptions{})
		switch {
		case err == nil:
			klog.FromContext(ctx).V(2).Info("A device was allocated twice; nobody else gets it", "rule", rule.Name,
				"device", klog.KRef(devices[i].Pool, devices[i].Device), "driver", devices[i].Driver)
		case !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("create DeviceTaintRule %s: %w", rule.Name, err)
		}
	}
	return nil
}

// unmark deletes the rules of devices that no claim has. Others are tried with the next change of the node.
func (w *collisionWatch) unmark(ctx context.Context, node string) {
	for _, rule := range spentRules(w.cluster) {
		same := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &rule.UID}}
		err := w.client.ResourceV1().DeviceTaintRules().Delete(ctx, rule.Name, same)
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Delete a DeviceTaintRule", "rule", rule.Name)
			w.look(node)
		}
	}
}

func hasRule(c *cluster, name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.rules.applied[name] != nil
}

// spentRules are those of devices that no claim has.
func spentRules(c *cluster) (spent []*resourceapi.DeviceTaintRule) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.rules.applied)) {
		rule := c.rules.applied[name]
		if s := rule.Spec.DeviceSelector; rule.Labels[managedBy] == manager && rule.Spec.Taint.Key == v1alpha1.AllocatedTwiceTaint && s != nil &&
			s.Driver != nil && s.Pool != nil && s.Device != nil && !isAllocated(c, deviceKey{*s.Driver, *s.Pool, *s.Device}) {
			spent = append(spent, rule)
		}
	}
	return spent
}

// isAllocated reports whether a claim has a device.
func isAllocated(c *cluster, d deviceKey) bool {
	for uid := range c.users[poolKey{d.driver, d.pool}] {
		if slices.ContainsFunc(c.allocated[uid].current(), func(r Result) bool { return keyOf(&r) == d }) {
			return true
		}
	}
	return false
}
