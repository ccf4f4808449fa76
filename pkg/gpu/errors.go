package gpu

import "errors"

// What hardware may answer and callers branch on. Both the real library and the simulated one wrap these,
// so that errors.Is works the same on either.
var (
	// ErrNotSupported: the board or the driver does not have this (NVML_ERROR_NOT_SUPPORTED).
	ErrNotSupported = errors.New("not supported")
	// ErrNotFound: no such object (NVML_ERROR_NOT_FOUND).
	ErrNotFound = errors.New("not found")
	// ErrInvalidArgument: an argument out of range (NVML_ERROR_INVALID_ARGUMENT).
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrInUse: a client holds the object (NVML_ERROR_IN_USE).
	ErrInUse = errors.New("in use")
	// ErrInsufficientResources: the placement is occupied (NVML_ERROR_INSUFFICIENT_RESOURCES).
	ErrInsufficientResources = errors.New("insufficient resources")
	// ErrLost: the GPU fell off the bus (NVML_ERROR_GPU_IS_LOST).
	ErrLost = errors.New("GPU is lost")
	// ErrReplaced: another GPU is where one was.
	ErrReplaced = errors.New("GPU was replaced")
	// ErrDriverNotLoaded: the kernel driver is not there (NVML_ERROR_DRIVER_NOT_LOADED).
	ErrDriverNotLoaded = errors.New("driver is not loaded")
	// ErrLibraryNotFound: libnvidia-ml.so.1 is not there (NVML_ERROR_LIBRARY_NOT_FOUND).
	ErrLibraryNotFound = errors.New("library not found")
	// ErrResetRequired: the change needs a GPU reset (NVML_ERROR_RESET_REQUIRED).
	ErrResetRequired = errors.New("GPU reset required")
	// ErrLeftBehind: something was made that should not stay and could not be unmade.
	ErrLeftBehind = errors.New("a GPU instance is left behind")
)
