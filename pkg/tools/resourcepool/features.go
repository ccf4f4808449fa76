// SPDX-License-Identifier: Apache-2.0

package resourcepool

import "k8s.io/dynamic-resource-allocation/structured"

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
