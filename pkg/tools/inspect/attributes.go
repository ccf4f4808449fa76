// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"math"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// published is a device of a slice. Its attributes are untrusted: any driver may have written them.
type published struct {
	*resourceapi.Device
	driver, pool string
}

// attribute returns an attribute by name, with or without the driver's domain, which are equivalent in the API.
func (d *published) attribute(name string) resourceapi.DeviceAttribute {
	return resourcepool.Attribute(d.driver, d.Device, name)
}

// text is the value of an attribute of any kind; empty if it is missing.
func (d *published) text(name string) string { return AttributeText(d.attribute(name)) }

// AttributeText is the value of an attribute of any kind, the first of a list; empty if it has none.
func AttributeText(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	case len(a.StringValues) > 0:
		return a.StringValues[0]
	case len(a.IntValues) > 0:
		return strconv.FormatInt(a.IntValues[0], 10)
	default:
		return ""
	}
}

// number is the value of an attribute, the first of a list; nil if it is missing.
func (d *published) number(name string) *int {
	a := d.attribute(name)
	n := a.IntValue
	if n == nil && len(a.IntValues) > 0 {
		n = &a.IntValues[0]
	}
	if n == nil || *n < 0 || *n > math.MaxInt32 {
		return nil
	}
	number := int(*n)
	return &number
}

// maxUnits bounds placement units: no board has more than a counter set can have counters.
const maxUnits = resourceapi.ResourceSliceMaxCountersPerCounterSet

// placement is that of a partition; nil for other devices. Where it starts is in the name if in no attribute.
func (d *published) placement() *gpu.Placement {
	start, size := d.number("placementStart"), d.number("placementSize")
	if _, named, ok := gpu.ParsePartitionName(d.Name); start == nil && ok {
		start = &named
	}
	if start == nil || size == nil || *size < 1 || *start > maxUnits || *start+*size > maxUnits {
		return nil
	}
	return &gpu.Placement{Start: *start, Size: *size}
}

// profileID of a partition; 0 if it is unknown.
func (d *published) profileID() int {
	if id := d.number("giProfileID"); id != nil {
		return *id
	}
	id, _, _ := gpu.ParsePartitionName(d.Name)
	return id
}

// address is the PCI address of a device's GPU; empty if it is unknown.
func (d *published) address() string {
	if address := d.text("resource.kubernetes.io/pciBusID"); address != "" {
		return address
	}
	if pci, err := gpu.ParseDeviceName(d.Name); err == nil {
		return pci.String()
	}
	return ""
}

// amountsOf reads capacities by name.
func amountsOf(driver string, quantity func(name resourceapi.QualifiedName) *resource.Quantity) Amounts {
	of := func(name string) int64 {
		q := quantity(resourceapi.QualifiedName(name))
		if q == nil {
			q = quantity(resourceapi.QualifiedName(driver + "/" + name))
		}
		if q == nil || q.Sign() < 0 {
			return 0
		}
		return q.Value()
	}
	return Amounts{Shares: of(gpu.CapacityShares), MemoryBytes: of(gpu.CapacityMemory), CoresPercent: of(gpu.CapacityCores)}
}

// total is the capacity of a device.
func (d *published) total() Amounts {
	return amountsOf(d.driver, func(name resourceapi.QualifiedName) *resource.Quantity {
		if c, ok := d.Capacity[name]; ok {
			return &c.Value
		}
		return nil
	})
}

// least is the minimum that a claim takes from a shared device.
func (d *published) least() Amounts {
	return amountsOf(d.driver, func(name resourceapi.QualifiedName) *resource.Quantity {
		p := d.Capacity[name].RequestPolicy
		switch {
		case p == nil:
			return nil
		case p.ValidRange != nil && p.ValidRange.Min != nil:
			return p.ValidRange.Min
		default:
			return p.Default
		}
	})
}

// usual is the amount that a claim without amounts takes from a shared device.
func (d *published) usual() Amounts {
	return amountsOf(d.driver, func(name resourceapi.QualifiedName) *resource.Quantity {
		if p := d.Capacity[name].RequestPolicy; p != nil {
			return p.Default
		}
		return nil
	})
}

// parent identifies the GPU of a device: by its counter set, address or UUID, else by the device's own name.
func (d *published) parent() string {
	if len(d.ConsumesCounters) == 1 && d.ConsumesCounters[0].CounterSet != "" {
		return d.ConsumesCounters[0].CounterSet
	}
	if address := d.address(); address != "" {
		return address
	}
	for _, name := range []string{"parentUUID", "uuid"} {
		if v := d.text(name); v != "" {
			return v
		}
	}
	return d.Name
}
