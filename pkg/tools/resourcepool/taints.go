// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Taints reports whether a DeviceTaintRule is about a device. One without a selector is about none.
func Taints(r *resourceapi.DeviceTaintRule, of ID, device string) bool {
	s := r.Spec.DeviceSelector
	matches := func(want *string, have string) bool { return want == nil || *want == have }
	return s != nil && matches(s.Driver, of.Driver) && matches(s.Pool, of.Pool) && matches(s.Device, device)
}

// TaintsOf are the taints that a device is published with, then those of rules.
func TaintsOf(of ID, d *resourceapi.Device, rules []*resourceapi.DeviceTaintRule) []resourceapi.DeviceTaint {
	taints := slices.Clip(d.Taints)
	for _, r := range rules {
		if Taints(r, of, d.Name) {
			taints = append(taints, r.Spec.Taint)
		}
	}
	return taints
}

// Refuses reports whether a taint keeps off a claim with some tolerations.
func Refuses(t resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	return (t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute) &&
		!slices.ContainsFunc(tolerations, func(by resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(by, t) })
}
