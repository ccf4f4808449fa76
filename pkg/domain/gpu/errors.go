// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
)

// What hardware may answer and callers branch on. Both the real library and the simulated one wrap these,
// so that errors.Is works the same on either.
var (
	// ErrNotSupported: the board or the driver does not have this (NVML_ERROR_NOT_SUPPORTED).
	ErrNotSupported = errors.New("not supported")
	// ErrInMIGMode: a GPU in MIG mode does not have this, and one that is out of it does.
	ErrInMIGMode = fmt.Errorf("%w in MIG mode", ErrNotSupported)
	// ErrNotFound: no such object (NVML_ERROR_NOT_FOUND).
	ErrNotFound = errors.New("not found")
	// ErrInvalidArgument: an argument out of range (NVML_ERROR_INVALID_ARGUMENT).
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrInUse: a client uses the object (NVML_ERROR_IN_USE).
	ErrInUse = errors.New("in use")
	// ErrPartitioned: leaving MIG mode would destroy GPU instances that exist.
	ErrPartitioned = errors.New("GPU has partitions")
	// ErrInsufficientResources: the placement is occupied (NVML_ERROR_INSUFFICIENT_RESOURCES).
	ErrInsufficientResources = errors.New("insufficient resources")
	// ErrLost: the GPU fell off the bus (NVML_ERROR_GPU_IS_LOST).
	ErrLost = errors.New("GPU is lost")
	// ErrAbsent: the GPU's PCI function is gone from the node, and what was in the GPU with it. A GPU that is there and
	// does not answer is not absent.
	ErrAbsent = errors.New("GPU is no longer on the PCI bus")
	// ErrUnreadable: the GPU is there, or may be, and does not answer. What was in it may still be.
	ErrUnreadable = errors.New("GPU cannot be read")
	// ErrHangs: a call of the driver's library about the GPU has not returned. It cannot be cancelled, and may still have
	// its effect.
	ErrHangs = errors.New("the driver does not answer")
	// ErrReplaced: another GPU is where one was.
	ErrReplaced = errors.New("GPU was replaced")
	// ErrFabricPending: the GPU is not registered with its NVLink fabric yet.
	ErrFabricPending = errors.New("the NVLink fabric is not ready")
	// ErrMinorChanged: the GPU's device node is another one than was published.
	ErrMinorChanged = errors.New("the minor number has changed")
	// ErrReleased: Cleave has closed the GPU so that it can be reset.
	ErrReleased = errors.New("the GPU is released for a change of its MIG mode")
	// ErrModeChanged: the MIG mode of the GPU is another one than was published.
	ErrModeChanged = errors.New("the MIG mode has changed")
	// ErrDriverNotLoaded: the kernel driver is not there (NVML_ERROR_DRIVER_NOT_LOADED).
	ErrDriverNotLoaded = errors.New("driver is not loaded")
	// ErrLibraryNotFound: libnvidia-ml.so.1 is not there (NVML_ERROR_LIBRARY_NOT_FOUND).
	ErrLibraryNotFound = errors.New("library not found")
	// ErrResetRequired: the change needs a GPU reset (NVML_ERROR_RESET_REQUIRED).
	ErrResetRequired = errors.New("GPU reset required")
	// ErrLeftBehind: something was made that should not stay and could not be destroyed.
	ErrLeftBehind = errors.New("a GPU instance is left behind")
)
