// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// realLinks are the NVLinks of an nvmlDevice_t.
type realLinks struct {
	dev nvml.Device
	has functions
}

func (l realLinks) NVLinkState(link int) (bool, error) {
	s, ret := l.dev.GetNvLinkState(link)
	return s == nvml.FEATURE_ENABLED, check(fmt.Sprintf("nvmlDeviceGetNvLinkState(%d)", link), ret)
}

func (l realLinks) NVLinkVersion(link int) (int, error) {
	return number(l.dev.GetNvLinkVersion(link))(fmt.Sprintf("nvmlDeviceGetNvLinkVersion(%d)", link))
}

func (l realLinks) NVLinkRemoteDeviceType(link int) (int, error) {
	const function = "nvmlDeviceGetNvLinkRemoteDeviceType"
	if err := l.has.require(function); err != nil {
		return 0, err
	}
	return number(l.dev.GetNvLinkRemoteDeviceType(link))(fmt.Sprintf("%s(%d)", function, link))
}

func (l realLinks) NVLinkRemotePCIInfo(link int) (PCIInfo, error) {
	info, ret := l.dev.GetNvLinkRemotePciInfo(link)
	return pciInfo(&info), check(fmt.Sprintf("nvmlDeviceGetNvLinkRemotePciInfo(%d)", link), ret)
}

func (l realLinks) FabricInfo() (FabricInfo, error) {
	const function = "nvmlDeviceGetGpuFabricInfoV"
	if err := l.has.require(function); err != nil {
		return FabricInfo{}, err
	}
	info, ret := l.dev.GetGpuFabricInfoV().V2()
	return FabricInfo{
		ClusterUUID: info.ClusterUuid, CliqueID: int(info.CliqueId), State: int(info.State),
		Status: check("registration with the fabric", nvml.Return(info.Status)), Health: info.HealthMask,
	}, check(function, ret)
}

func (d realDevice) FieldValues(fields []Field) ([]FieldValue, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	raw := convert(fields, func(f Field) nvml.FieldValue { return nvml.FieldValue{FieldId: uint32(f.ID), ScopeId: uint32(f.Scope)} })
	if err := check("nvmlDeviceGetFieldValues", d.dev.GetFieldValues(raw)); err != nil {
		return nil, err
	}
	return convert(raw, fieldValue), nil
}

// fieldValue decodes a value by its type. Negative numbers and fractions are errors.
func fieldValue(raw nvml.FieldValue) FieldValue {
	err := check(fmt.Sprintf("field %d of scope %d", raw.FieldId, raw.ScopeId), nvml.Return(raw.NvmlReturn))
	if err != nil {
		return FieldValue{Err: err}
	}
	v := binary.NativeEndian.Uint64(raw.Value[:])
	switch nvml.ValueType(raw.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return FieldValue{Value: v}
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return FieldValue{Value: uint64(binary.NativeEndian.Uint32(raw.Value[:]))}
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return FieldValue{Value: uint64(binary.NativeEndian.Uint16(raw.Value[:]))}
	case nvml.VALUE_TYPE_SIGNED_INT:
		if n := int32(binary.NativeEndian.Uint32(raw.Value[:])); n >= 0 {
			return FieldValue{Value: uint64(n)}
		}
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		if int64(v) >= 0 {
			return FieldValue{Value: v}
		}
	}
	return FieldValue{Err: fmt.Errorf("field %d of scope %d is not a whole number: %w", raw.FieldId, raw.ScopeId, gpu.ErrNotSupported)}
}
