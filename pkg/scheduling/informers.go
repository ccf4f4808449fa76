// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// watch keeps a cluster up to date, and makes the slices that all of the scheduler looks at share what is equal in them. The
// informers must not have been started. It returns what reports that all there was is known.
func watch(c *cluster, all informers.SharedInformerFactory) ([]cache.InformerSynced, error) {
	published := all.Resource().V1().ResourceSlices().Informer()
	shared := newSharing()
	if err := published.SetTransform(shared.transform); err != nil {
		return nil, fmt.Errorf("share what is equal in ResourceSlices: %w", err)
	}
	var synced []cache.InformerSynced
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		changed  func(before, after any)
	}{
		{published, c.sliceChanged},
		{all.Resource().V1().ResourceClaims().Informer(), c.claimChanged},
		{all.Resource().V1().DeviceTaintRules().Informer(), c.ruleChanged},
	} {
		registered, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { w.changed(nil, object) },
			UpdateFunc: w.changed,
			DeleteFunc: func(object any) {
				if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = last.Obj
				}
				w.changed(object, nil)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		synced = append(synced, registered.HasSynced)
	}
	return synced[:2], nil // rules may not be readable; they are not worth waiting for
}

func (c *cluster) sliceChanged(before, after any) {
	b, _ := before.(*resourceapi.ResourceSlice)
	a, _ := after.(*resourceapi.ResourceSlice)
	c.replaceSlice(b, a)
}

func (c *cluster) claimChanged(before, after any) {
	b, _ := before.(*resourceapi.ResourceClaim)
	a, _ := after.(*resourceapi.ResourceClaim)
	if b != nil && (a == nil || a.UID != b.UID) {
		c.store(b.UID, nil, true)
	}
	if a == nil {
		return
	}
	if a.Status.Allocation == nil {
		c.store(a.UID, nil, false)
	} else {
		c.store(a.UID, a.Status.Allocation.Devices.Results, false)
	}
}

func (c *cluster) ruleChanged(before, after any) {
	if rule, ok := after.(*resourceapi.DeviceTaintRule); ok && rule != nil {
		c.replaceRule(rule.Name, rule)
	} else if rule, ok := before.(*resourceapi.DeviceTaintRule); ok && rule != nil {
		c.replaceRule(rule.Name, nil)
	}
}
