// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"math"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// reachable is the most of a capacity that a request can get where so much is left: the allocator rounds requests up, so that what
// is left need not be what can be asked for (k8s.io/dynamic-resource-allocation/structured, roundUpRange and
// roundUpValidValues). It is false where nothing can be got.
func reachable(c *resourceapi.DeviceCapacity, left resource.Quantity) (resource.Quantity, bool) {
	switch p := c.RequestPolicy; {
	case left.Sign() <= 0:
		return resource.Quantity{}, false
	case p == nil:
		return left, true
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return inRange(p.ValidRange, left)
	case p.ValidValues != nil:
		var most resource.Quantity
		for _, v := range p.ValidValues {
			if v.Cmp(left) <= 0 && v.Cmp(most) > 0 {
				most = v
			}
		}
		return most, !most.IsZero()
	default:
		return left, true
	}
}

// inRange is the largest amount of a range that does not exceed what is left.
func inRange(r *resourceapi.CapacityRequestPolicyRange, left resource.Quantity) (resource.Quantity, bool) {
	if r.Max != nil && r.Max.Cmp(left) < 0 {
		left = *r.Max
	}
	if r.Min.Cmp(left) > 0 {
		return resource.Quantity{}, false
	}
	if r.Step == nil || r.Step.Sign() <= 0 {
		return left, true
	}
	// In thousandths where amounts are no whole numbers (feature DRAFractionalCapacityRange).
	if step := r.Step.MilliValue(); (step%1000 != 0 || r.Min.MilliValue()%1000 != 0) && left.Value() < math.MaxInt64/1000 {
		over := (left.MilliValue() - r.Min.MilliValue()) % step
		return *resource.NewMilliQuantity(left.MilliValue()-over, left.Format), true
	}
	over := (left.Value() - r.Min.Value()) % r.Step.Value()
	return *resource.NewQuantity(left.Value()-over, left.Format), true
}
