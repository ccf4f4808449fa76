// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Describe returns the data of a device. inventory is nil while the driver is unavailable.
func Describe(d *records.Device, inventory *gpu.Node) v1alpha1.DeviceStatus {
	data := v1alpha1.DeviceStatus{UUID: d.UUID, AdminAccess: d.AdminAccess}
	if pci, err := gpu.ParseDeviceName(d.GPU); err == nil {
		data.PCIBusID = pci.String()
	}
	var board *gpu.GPU
	if inventory != nil {
		board = inventory.Find(d.GPU)
	}
	if board != nil {
		data.ProductName, data.PCIeRoot, data.NUMANode = board.ProductName, board.PCIeRoot(), board.NUMANode
		if board.TotalMemory != nil {
			data.Memory = quantity(*board.TotalMemory)
		}
	}
	if p := d.Partition; p != nil {
		data.UUID, data.ParentUUID = p.UUID, d.UUID
		data.GPUInstance, data.ComputeInstance = &p.GI, p.CI
		data.Memory = nil
		if board != nil {
			if profile := board.MIG.Profile(p.ProfileID); profile != nil {
				data.Profile, data.Memory = profile.Name, quantity(profile.Memory)
			}
		}
	}
	by := gpu.Share("")
	if s := d.Share; s != nil {
		by = s.Kind
		data.Shares = s.Shares
		if !s.Exclusive {
			data.Memory = nil
		}
		if memory := granted(s, func(m *records.MPS) int64 { return m.Memory }, s.Memory); memory > 0 {
			data.Memory = quantity(uint64(memory))
		}
		data.Cores = granted(s, func(m *records.MPS) int64 { return m.ThreadPercentage }, s.Cores)
	}
	data.Type = string(gpu.TypeOf(d.Partition != nil, by))
	return data
}

// granted is a share's actual amount: its parameters may lower the allocated one.
func granted(s *records.Share, limit func(*records.MPS) int64, allocated int64) int64 {
	if s.MPS == nil {
		return allocated
	}
	return cmp.Or(limit(s.MPS), allocated)
}

func quantity(n uint64) *resource.Quantity {
	return resource.NewQuantity(int64(n), resource.BinarySI)
}

// Attributes are a device's data in the form of device metadata (KEP-5304), with amounts of memory in bytes.
func Attributes(d *v1alpha1.DeviceStatus) map[string]resourceapi.DeviceAttribute {
	attributes := map[string]resourceapi.DeviceAttribute{}
	for _, a := range []struct {
		name  string
		value string
	}{
		{"type", d.Type}, {"uuid", d.UUID}, {"parentUUID", d.ParentUUID}, {"productName", d.ProductName}, {"profile", d.Profile},
		{string(deviceattribute.StandardDeviceAttributePCIBusID), d.PCIBusID},
		{string(deviceattribute.StandardDeviceAttributePCIeRoot), d.PCIeRoot},
	} {
		if a.value != "" && len(a.value) <= resourceapi.DeviceAttributeMaxValueLength {
			attributes[a.name] = resourceapi.DeviceAttribute{StringValue: &a.value}
		}
	}
	number := func(name string, n int64) { attributes[name] = resourceapi.DeviceAttribute{IntValue: &n} }
	if d.NUMANode != nil {
		number(string(deviceattribute.StandardDeviceAttributeNUMANode), int64(*d.NUMANode))
	}
	if d.GPUInstance != nil {
		number("gpuInstanceID", int64(*d.GPUInstance))
	}
	if d.ComputeInstance != nil {
		number("computeInstanceID", int64(*d.ComputeInstance))
	}
	if d.Memory != nil {
		number("memoryBytes", d.Memory.Value())
	}
	if d.Cores > 0 {
		number("cores", d.Cores)
	}
	if d.Shares > 0 {
		number("shares", d.Shares)
	}
	if d.AdminAccess {
		attributes["adminAccess"] = resourceapi.DeviceAttribute{BoolValue: &d.AdminAccess}
	}
	return attributes
}
