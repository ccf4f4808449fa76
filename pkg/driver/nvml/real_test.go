// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestCheck_Sentinels(t *testing.T) {
	tests := map[nvml.Return]error{
		nvml.SUCCESS:                      nil,
		nvml.ERROR_NOT_SUPPORTED:          gpu.ErrNotSupported,
		nvml.ERROR_FUNCTION_NOT_FOUND:     gpu.ErrNotSupported,
		nvml.ERROR_NOT_FOUND:              gpu.ErrNotFound,
		nvml.ERROR_INVALID_ARGUMENT:       gpu.ErrInvalidArgument,
		nvml.ERROR_IN_USE:                 gpu.ErrInUse,
		nvml.ERROR_INSUFFICIENT_RESOURCES: gpu.ErrInsufficientResources,
		nvml.ERROR_GPU_IS_LOST:            gpu.ErrLost,
		nvml.ERROR_DRIVER_NOT_LOADED:      gpu.ErrDriverNotLoaded,
		nvml.ERROR_UNINITIALIZED:          gpu.ErrDriverNotLoaded,
		nvml.ERROR_LIBRARY_NOT_FOUND:      gpu.ErrLibraryNotFound,
		nvml.ERROR_RESET_REQUIRED:         gpu.ErrResetRequired,
	}
	for ret, want := range tests {
		err := check("nvmlDoThis", ret)
		if !errors.Is(err, want) {
			t.Errorf("return code %d: got %v, want %v", ret, err, want)
		}
		if want != nil && !strings.HasPrefix(err.Error(), "nvmlDoThis: ") {
			t.Errorf("return code %d: error %q does not name the call", ret, err)
		}
	}
}

func TestCheck_EveryCode(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.ERROR_TIMEOUT, nvml.ERROR_UNKNOWN, 12345, -1} {
		err := check("nvmlDoThis", ret)
		if err == nil {
			t.Errorf("return code %d: got no error", ret)
			continue
		}
		for _, sentinel := range sentinels {
			if errors.Is(err, sentinel) {
				t.Errorf("return code %d: %v counts as %v", ret, err, sentinel)
			}
		}
	}
}

// go-nvlib aborts on profiles it does not know; a board newer than this release must not end the plugin.
func TestProfileName_Unknown(t *testing.T) {
	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT + 8 {
		for compute := range 10 {
			_ = profileName(gpu.Profile{Enum: enum, ComputeSlices: compute, Memory: 10 << 30}, 80<<30)
		}
	}
	for name, p := range map[string]gpu.Profile{
		"odd size":   {Enum: nvml.GPU_INSTANCE_PROFILE_1_SLICE, ComputeSlices: 5, Memory: 10 << 30},
		"no compute": {Enum: nvml.GPU_INSTANCE_PROFILE_1_SLICE, Memory: 10 << 30},
	} {
		if got := profileName(p, 80<<30); got != "" {
			t.Errorf("%s: got %q, want no name", name, got)
		}
	}
	if got := profileName(gpu.Profile{ComputeSlices: 1, Memory: 10 << 30}, 0); got != "" {
		t.Errorf("unknown memory: got %q, want no name", got)
	}
}

// Calling a function that the driver's library does not have ends the process.
func TestRealDevice_MissingFunctions(t *testing.T) {
	d := realDevice{has: func(string) bool { return false }} // a call would find no device
	for name, call := range map[string]func() error{
		"memory v2":       func() error { _, _, err := d.MemoryTotalReserved(); return err },
		"addressing mode": func() error { _, err := d.AddressingMode(); return err },
		"remote type":     func() error { _, err := d.Links().NVLinkRemoteDeviceType(0); return err },
		"fabric":          func() error { _, err := d.Links().FabricInfo(); return err },
	} {
		if err := call(); !errors.Is(err, gpu.ErrNotSupported) {
			t.Errorf("%s: got %v, want %v", name, err, gpu.ErrNotSupported)
		}
	}
}

func TestFieldValue_Types(t *testing.T) {
	minusTwo := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	tests := map[string]struct {
		kind  nvml.ValueType
		value [8]byte
		want  uint64
		none  bool
	}{
		"unsigned int":      {nvml.VALUE_TYPE_UNSIGNED_INT, [8]byte{1, 2, 0, 0, 9, 9, 9, 9}, 0x201, false},
		"unsigned long":     {nvml.VALUE_TYPE_UNSIGNED_LONG, [8]byte{1, 0, 0, 0, 1}, 1<<32 + 1, false},
		"unsigned longlong": {nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, minusTwo, 1<<64 - 2, false},
		"unsigned short":    {nvml.VALUE_TYPE_UNSIGNED_SHORT, [8]byte{1, 1, 9}, 0x101, false},
		"int":               {nvml.VALUE_TYPE_SIGNED_INT, [8]byte{7, 0, 0, 0, 9}, 7, false},
		"negative int":      {nvml.VALUE_TYPE_SIGNED_INT, minusTwo, 0, true},
		"longlong":          {nvml.VALUE_TYPE_SIGNED_LONG_LONG, [8]byte{0, 0, 0, 0, 1}, 1 << 32, false},
		"negative longlong": {nvml.VALUE_TYPE_SIGNED_LONG_LONG, minusTwo, 0, true},
		"double":            {nvml.VALUE_TYPE_DOUBLE, [8]byte{1}, 0, true},
		"a new type":        {99, [8]byte{1}, 0, true},
	}
	for name, tt := range tests {
		got := fieldValue(nvml.FieldValue{ValueType: uint32(tt.kind), Value: tt.value})
		if got.Value != tt.want || (got.Err != nil) != tt.none || tt.none && !errors.Is(got.Err, gpu.ErrNotSupported) {
			t.Errorf("%s: got %d, %v, want %d, none: %t", name, got.Value, got.Err, tt.want, tt.none)
		}
	}
	lost := fieldValue(nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_GPU_IS_LOST), Value: [8]byte{1}})
	if !errors.Is(lost.Err, gpu.ErrLost) || lost.Value != 0 {
		t.Errorf("of a lost GPU: got %d, %v", lost.Value, lost.Err)
	}
}
