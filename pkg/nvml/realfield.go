package nvml

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

func (d realDevice) FieldValues(fields []Field) ([]FieldValue, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	raw := make([]nvml.FieldValue, len(fields))
	for i, f := range fields {
		raw[i].FieldId, raw[i].ScopeId = uint32(f.ID), uint32(f.Scope)
	}
	if err := check("nvmlDeviceGetFieldValues", d.dev.GetFieldValues(raw)); err != nil {
		return nil, err
	}
	values := make([]FieldValue, len(fields))
	for i := range raw {
		values[i] = fieldValue(&raw[i])
	}
	return values, nil
}

// fieldValue reads a value by its type.
func fieldValue(raw *nvml.FieldValue) FieldValue {
	if err := check(fmt.Sprintf("field %d", raw.FieldId), nvml.Return(raw.NvmlReturn)); err != nil {
		return FieldValue{Err: err}
	}
	switch nvml.ValueType(raw.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return FieldValue{Value: uint64(binary.NativeEndian.Uint32(raw.Value[:4]))}
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return FieldValue{Value: binary.NativeEndian.Uint64(raw.Value[:])}
	default:
		return FieldValue{Err: fmt.Errorf("field %d is of type %d, which is no whole number: %w", raw.FieldId, raw.ValueType, gpu.ErrNotSupported)}
	}
}
