// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
)

// Errors of hardware that callers distinguish. Both the real library and the simulated one wrap them.
var (
	// ErrNotSupported: the board or the driver does not have this (NVML_ERROR_NOT_SUPPORTED).
	ErrNotSupported = errors.New("not supported")
	// ErrInMIGMode: not supported in MIG mode, but outside of it.
	ErrInMIGMode = fmt.Errorf("%w in MIG mode", ErrNotSupported)
	// ErrNotFound: no such object (NVML_ERROR_NOT_FOUND).
	ErrNotFound = errors.New("not found")
	// ErrInvalidArgument: an argument out of range (NVML_ERROR_INVALID_ARGUMENT).
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrInUse: a client uses the object (NVML_ERROR_IN_USE).
	ErrInUse = errors.New("in use")
	// ErrHeldByPods is the ErrInUse of a GPU that nothing but pods without a claim have open, and that no process computes on.
	ErrHeldByPods = fmt.Errorf("%w", ErrInUse)
	// ErrPartitioned: leaving MIG mode would destroy existing GPU instances.
	ErrPartitioned = errors.New("GPU has partitions")
	// ErrInsufficientResources: the placement is occupied (NVML_ERROR_INSUFFICIENT_RESOURCES).
	ErrInsufficientResources = errors.New("insufficient resources")
	// ErrLost: the GPU fell off the bus (NVML_ERROR_GPU_IS_LOST).
	ErrLost = errors.New("GPU is lost")
	// ErrAbsent: the GPU's PCI function is gone from the node, and with it the GPU's partitions. A GPU that is present but does not
	// answer is not absent.
	ErrAbsent = errors.New("GPU is no longer on the PCI bus")
	// ErrUnreadable: the GPU is, or may be, present, but does not answer. Its partitions may still exist.
	ErrUnreadable = errors.New("GPU cannot be read")
	// ErrHangs: a call of the driver's library about the GPU has not returned. It cannot be cancelled, and may still have
	// its effect.
	ErrHangs = errors.New("the driver does not answer")
	// ErrReplaced: another GPU has taken its place.
	ErrReplaced = errors.New("GPU was replaced")
	// ErrFabricPending: the GPU is not registered with its NVLink fabric yet.
	ErrFabricPending = errors.New("the NVLink fabric is not ready")
	// ErrMinorChanged: the GPU's device node differs from the published one.
	ErrMinorChanged = errors.New("the minor number has changed")
	// ErrReleased: Cleave has closed the GPU so that it can be reset.
	ErrReleased = errors.New("the GPU is closed for a reset")
	// ErrModeChanged: the MIG mode of the GPU differs from the published one.
	ErrModeChanged = errors.New("the MIG mode has changed")
	// ErrDriverNotLoaded: the kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED).
	ErrDriverNotLoaded = errors.New("driver is not loaded")
	// ErrLibraryNotFound: libnvidia-ml.so.1 is missing (NVML_ERROR_LIBRARY_NOT_FOUND).
	ErrLibraryNotFound = errors.New("library not found")
	// ErrResetRequired: the change needs a GPU reset (NVML_ERROR_RESET_REQUIRED).
	ErrResetRequired = errors.New("GPU reset required")
	// ErrLeftBehind: a temporary object could not be destroyed.
	ErrLeftBehind = errors.New("a GPU instance is left behind")
)
