// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Return codes of NVML (nvmlReturn_t).
const (
	CodeSuccess               = 0
	CodeUninitialized         = 1
	CodeInvalidArgument       = 2
	CodeNotSupported          = 3
	CodeNoPermission          = 4
	CodeNotFound              = 6
	CodeInsufficientSize      = 7
	CodeDriverNotLoaded       = 9
	CodeTimeout               = 10
	CodeLibraryNotFound       = 12
	CodeGPUIsLost             = 15
	CodeResetRequired         = 16
	CodeOperatingSystem       = 17
	CodeInUse                 = 19
	CodeMemory                = 20
	CodeNoData                = 21
	CodeInsufficientResources = 23
	CodeVersionMismatch       = 25
	CodeNotReady              = 27
	CodeInvalidState          = 29
	CodeUnknown               = 999
)

// returnCode is one value of nvmlReturn_t.
type returnCode struct {
	code     int
	name     string // without NVML_ERROR_
	text     string // from nvmlErrorString
	sentinel error
}

// returnCodes lists every value of nvmlReturn_t, in ascending order.
var returnCodes = []returnCode{
	{CodeSuccess, "SUCCESS", "The operation was successful", nil},
	{CodeUninitialized, "UNINITIALIZED", "NVML was not first initialized with nvmlInit()", gpu.ErrDriverNotLoaded},
	{CodeInvalidArgument, "INVALID_ARGUMENT", "Invalid Argument", gpu.ErrInvalidArgument},
	{CodeNotSupported, "NOT_SUPPORTED", "Not Supported", gpu.ErrNotSupported},
	{CodeNoPermission, "NO_PERMISSION", "Insufficient Permissions", nil},
	{5, "ALREADY_INITIALIZED", "Already Initialized", nil},
	{CodeNotFound, "NOT_FOUND", "Not Found", gpu.ErrNotFound},
	{CodeInsufficientSize, "INSUFFICIENT_SIZE", "Insufficient Size", nil},
	{8, "INSUFFICIENT_POWER", "Insufficient External Power", nil},
	{CodeDriverNotLoaded, "DRIVER_NOT_LOADED", "Driver Not Loaded", gpu.ErrDriverNotLoaded},
	{CodeTimeout, "TIMEOUT", "Timeout", nil},
	{11, "IRQ_ISSUE", "Interrupt Request Issue", nil},
	{CodeLibraryNotFound, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found", gpu.ErrLibraryNotFound},
	{13, "FUNCTION_NOT_FOUND", "Function Not Found", nil},
	{14, "CORRUPTED_INFOROM", "Corrupted infoROM", nil},
	{CodeGPUIsLost, "GPU_IS_LOST", "GPU is lost", gpu.ErrLost},
	{CodeResetRequired, "RESET_REQUIRED", "GPU requires reset", gpu.ErrResetRequired},
	{CodeOperatingSystem, "OPERATING_SYSTEM", "GPU access blocked by the operating system", nil},
	{18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch", nil},
	{CodeInUse, "IN_USE", "In use by another client", gpu.ErrInUse},
	{CodeMemory, "MEMORY", "Insufficient Memory", nil},
	{CodeNoData, "NO_DATA", "No data", nil},
	{22, "VGPU_ECC_NOT_SUPPORTED", "vGPU is not supported with ECC", nil},
	{CodeInsufficientResources, "INSUFFICIENT_RESOURCES", "Insufficient Resources", gpu.ErrInsufficientResources},
	{24, "FREQ_NOT_SUPPORTED", "Frequency not supported", nil},
	{CodeVersionMismatch, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch", nil},
	{26, "DEPRECATED", "Deprecated", nil},
	{CodeNotReady, "NOT_READY", "Not ready", nil},
	{28, "GPU_NOT_FOUND", "GPU not found", nil},
	{CodeInvalidState, "INVALID_STATE", "Invalid state", nil},
	{30, "RESET_TYPE_NOT_SUPPORTED", "Reset type not supported", nil},
	{CodeUnknown, "UNKNOWN", "Unknown Error", nil},
}

// lookupCode returns the entry of a code, or nil.
func lookupCode(code int) *returnCode {
	i, ok := slices.BinarySearchFunc(returnCodes, code, func(r returnCode, c int) int { return r.code - c })
	if !ok {
		return nil
	}
	return &returnCodes[i]
}

// CodeName is the name of a return code, such as "NVML_ERROR_IN_USE".
func CodeName(code int) string {
	r := lookupCode(code)
	switch {
	case r == nil:
		return "NVML_ERROR_" + strconv.Itoa(code)
	case code == CodeSuccess:
		return "NVML_SUCCESS"
	default:
		return "NVML_ERROR_" + r.name
	}
}

// CodeText is the text of nvmlErrorString for a return code.
func CodeText(code int) string {
	if r := lookupCode(code); r != nil {
		return r.text
	}
	return "Unknown Error"
}

// CodeNames lists the names that ParseCode accepts, without the prefix NVML_ERROR_, in ascending order of code.
func CodeNames() []string {
	var names []string
	for _, r := range returnCodes[1:] {
		names = append(names, r.name)
	}
	return names
}

// ParseCode reads an NVML error: "IN_USE", "NVML_ERROR_IN_USE" in any case, or "19".
func ParseCode(s string) (int, error) {
	name := strings.TrimPrefix(strings.ToUpper(s), "NVML_ERROR_")
	for _, r := range returnCodes[1:] {
		if name == r.name || s == strconv.Itoa(r.code) {
			return r.code, nil
		}
	}
	return 0, fmt.Errorf("unknown NVML error %q: want one of %s", s, strings.Join(CodeNames(), ", "))
}

// Error is the error of an NVML call.
type Error struct {
	// Call is the NVML function, such as "nvmlDeviceSetMigMode".
	Call string
	// Code is the value of nvmlReturn_t.
	Code int
	// Detail explains the error for people. May be empty.
	Detail string
}

// Error gives "nvmlDeviceSetMigMode: In use by another client (NVML_ERROR_IN_USE): process 71 (dcgm) uses GPU 3".
func (e *Error) Error() string {
	s := CodeText(e.Code) + " (" + CodeName(e.Code) + ")"
	if e.Call != "" {
		s = e.Call + ": " + s
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is makes errors.Is find the sentinels of pkg/domain/gpu.
func (e *Error) Is(target error) bool {
	r := lookupCode(e.Code)
	return r != nil && r.sentinel != nil && r.sentinel == target
}

func fail(call string, code int, format string, args ...any) *Error {
	return &Error{Call: call, Code: code, Detail: fmt.Sprintf(format, args...)}
}
