// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Features returns what the scheduler of Kubernetes 1.37 enables by default.
func Features() structured.Features {
	return structured.Features{
		AdminAccess:             true,
		ConsumableCapacity:      true,
		DeviceBindingAndStatus:  true,
		DeviceTaints:            true,
		FractionalCapacityRange: true,
		PartitionableDevices:    true,
		PrioritizedList:         true,
	}
}

// Taints reports whether a DeviceTaintRule is about a device. One without a selector is about none.
func Taints(r *resourceapi.DeviceTaintRule, of ID, device string) bool {
	s := r.Spec.DeviceSelector
	matches := func(want *string, have string) bool { return want == nil || *want == have }
	return s != nil && matches(s.Driver, of.Driver) && matches(s.Pool, of.Pool) && matches(s.Device, device)
}
