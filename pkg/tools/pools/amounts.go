// SPDX-License-Identifier: Apache-2.0

package pools

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// amountsOf are what a request consumes of a device's capacities, in the order of the model, and whether the device can give
// them at all. It follows the allocator (k8s.io/dynamic-resource-allocation/structured, CmpRequestOverCapacity).
func amountsOf(wanted *resourceapi.CapacityRequirements, object *resourceapi.Device, d *packing.Device) ([]int64, bool) {
	var requests map[resourceapi.QualifiedName]resource.Quantity
	if wanted != nil {
		requests = wanted.Requests
	}
	for n := range requests {
		if _, ok := object.Capacity[n]; !ok {
			return nil, false
		}
	}
	for n, capacity := range object.Capacity {
		if amount, ok := amountOf(requests, n, capacity); !ok || amount > thousandths(capacity.Value) {
			return nil, false
		}
	}
	var amounts []int64
	for i := range d.Capacities {
		n := resourceapi.QualifiedName(d.Capacities[i].Name)
		amount, _ := amountOf(requests, n, object.Capacity[n])
		amounts = append(amounts, amount)
	}
	return amounts, true
}

// amountOf is how much of a capacity a request consumes, in thousandths; not ok where the policy of the capacity forbids it.
func amountOf(requests map[resourceapi.QualifiedName]resource.Quantity, n resourceapi.QualifiedName,
	capacity resourceapi.DeviceCapacity) (amount int64, ok bool) {
	requested, explicit := requests[n]
	if !explicit {
		return thousandths(defaultOf(capacity)), true
	}
	amount = thousandths(requested)
	policy := capacity.RequestPolicy
	switch {
	case policy == nil:
		return amount, amount >= 0
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return inRange(amount, policy.ValidRange)
	case len(policy.ValidValues) > 0:
		for _, v := range policy.ValidValues {
			if amount <= thousandths(v) {
				return thousandths(v), true
			}
		}
		return 0, false
	}
	return amount, amount >= 0
}

// inRange rounds an amount up to a step from the minimum.
func inRange(amount int64, r *resourceapi.CapacityRequestPolicyRange) (int64, bool) {
	least := thousandths(*r.Min)
	amount = max(amount, least)
	if r.Step != nil {
		if step := thousandths(*r.Step); step > 0 {
			amount = least + (amount-least+step-1)/step*step
		}
	}
	return amount, r.Max == nil || amount <= thousandths(*r.Max)
}

// defaultOf is how much a request consumes that names no amount.
func defaultOf(c resourceapi.DeviceCapacity) resource.Quantity {
	if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
		return *c.RequestPolicy.Default
	}
	return c.Value
}
