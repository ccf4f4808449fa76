// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsimdynamic

package main

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdlib.h>
import "C"

import (
	"errors"
	"unsafe"
)

// loadManagementLibrary does as NVIDIA's nvidia-smi does, which is linked dynamically and loads the management library by
// its name: it does not run where the loader finds no C library, or not that one.
func loadManagementLibrary(program string) error {
	if program != "nvidia-smi" {
		return nil
	}
	name := C.CString("libnvidia-ml.so.1")
	defer C.free(unsafe.Pointer(name))
	if C.dlopen(name, C.RTLD_LAZY|C.RTLD_LOCAL) == nil {
		return errors.New("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. " +
			"Please make sure that the NVIDIA Display Driver is properly installed and present in your system (simulated)")
	}
	return nil
}
