// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsim

// Package main is libnvidia-ml.so.1 of a simulated node, built with -buildmode=c-shared and the tag nvmlsim.
//
// The Go functions with the names of nvml.h are exported as they are; each asks pkg/sim. nvml.c has those that Go cannot
// declare, and symbols.c all that are not simulated. The library finds its node by its own place, <root>/usr/lib/x86_64-linux-gnu;
// NVML_SIM_ROOT in the environment names another. NVML_SIM_TRACE names a file to which every call is added.
package main

/*
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#cgo CFLAGS: -Wno-deprecated-declarations -Wno-attributes
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <nvml.h>
#include "sim.h"
*/
import "C"

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func main() {}

// The library lives in the process of another program, so it keeps its heap small: it holds little, and collecting it
// costs microseconds.
func init() {
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(8 << 20)
	C.simReturnSignal()
}

var (
	opening sync.Mutex
	current atomic.Pointer[sim.Node]
)

// guard runs an NVML call and turns its error, or its panic, into a return code.
func guard(call func() error) (code C.nvmlReturn_t) {
	defer func() {
		if recover() != nil {
			code = C.NVML_ERROR_UNKNOWN
		}
	}()
	return returnCode(call())
}

func returnCode(err error) C.nvmlReturn_t {
	if err == nil {
		return C.NVML_SUCCESS
	}
	if e, ok := errors.AsType[*sim.Error](err); ok {
		return C.nvmlReturn_t(e.Code)
	}
	return C.NVML_ERROR_UNKNOWN
}

// code makes an error of a return code that only the boundary knows about.
func code(c int) error { return &sim.Error{Code: c} }

// onNode runs a call that needs no device.
func onNode(call func(*sim.Node) error) C.nvmlReturn_t {
	return guard(func() error {
		n := current.Load()
		if n == nil {
			return code(sim.CodeUninitialized)
		}
		return call(n)
	})
}

//export nvmlInit_v2
func nvmlInit_v2() C.nvmlReturn_t {
	return guard(func() error {
		opening.Lock()
		defer opening.Unlock()
		n := current.Load()
		if n == nil || n.Replaced() {
			root := C.simRoot()
			if root == nil {
				return code(sim.CodeDriverNotLoaded)
			}
			defer C.free(unsafe.Pointer(root))
			opened, err := sim.Open(C.GoString(root), options()...)
			if errors.Is(err, fs.ErrNotExist) && inContainer(C.GoString(root)) {
				opened, _, err = sim.OpenVisible(C.GoString(root), options()...)
			}
			if err != nil {
				return code(sim.CodeDriverNotLoaded)
			}
			n = opened
			current.Store(n)
			debug.FreeOSMemory() // garbage from reading
		}
		return n.Init()
	})
}

//export nvmlInit
func nvmlInit() C.nvmlReturn_t { return nvmlInit_v2() }

//export nvmlInitWithFlags
func nvmlInitWithFlags(flags C.uint) C.nvmlReturn_t { return nvmlInit_v2() }

// options are those from the environment: NVML_SIM_TRACE names a file to which every call is appended.
func options() []sim.Option {
	path := os.Getenv("NVML_SIM_TRACE")
	if path == "" {
		return nil
	}
	trace, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil // the host's own work goes on
	}
	return []sim.Option{sim.WithTrace(trace)}
}

//export nvmlShutdown
func nvmlShutdown() C.nvmlReturn_t {
	return onNode((*sim.Node).Shutdown)
}

// errorStrings are the answers of nvmlErrorString; C keeps the pointers.
var errorStrings sync.Map // code -> *C.char

//export simErrorString
func simErrorString(result C.nvmlReturn_t) *C.char {
	text := sim.CodeText(int(result))
	if s, ok := errorStrings.Load(text); ok {
		return s.(*C.char)
	}
	made := C.CString(text)
	s, loaded := errorStrings.LoadOrStore(text, made)
	if loaded {
		C.free(unsafe.Pointer(made))
	}
	return s.(*C.char)
}

//export nvmlSystemGetDriverVersion
func nvmlSystemGetDriverVersion(to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(node, (*sim.Node).SystemDriverVersion, to, length)
}

//export nvmlSystemGetNVMLVersion
func nvmlSystemGetNVMLVersion(to *C.char, length C.uint) C.nvmlReturn_t {
	return answerString(node, (*sim.Node).SystemNVMLVersion, to, length)
}

// NVML asks libcuda.so.1, which it opens by that name. Where the loader does not find it, as in a container that has the
// driver's files in a directory of their own, the answer is NOT_FOUND (seen with driver 580.159.04 on an H100).
//
//export nvmlSystemGetCudaDriverVersion_v2
func nvmlSystemGetCudaDriverVersion_v2(to *C.int) C.nvmlReturn_t {
	name := C.CString("libcuda.so.1")
	defer C.free(unsafe.Pointer(name))
	cuda := C.dlopen(name, C.RTLD_LAZY)
	if cuda == nil {
		return C.NVML_ERROR_NOT_FOUND
	}
	defer C.dlclose(cuda)
	return answerNumber(node, (*sim.Node).SystemCUDADriverVersion, to)
}

// Environment and DevTools mode are zero: unavailable, off. Nobody asks for them.
//
//export nvmlSystemGetConfComputeState
func nvmlSystemGetConfComputeState(to *C.nvmlConfComputeSystemState_t) C.nvmlReturn_t {
	return answer(node, func(n *sim.Node) (bool, error) {
		return sim.Confidential{Node: n}.ConfidentialComputing()
	}, to, func(on bool) C.nvmlConfComputeSystemState_t {
		return C.nvmlConfComputeSystemState_t{ccFeature: flag(on)}
	})
}

//export nvmlSystemGetConfComputeSettings
func nvmlSystemGetConfComputeSettings(to *C.nvmlSystemConfComputeSettings_t) C.nvmlReturn_t {
	switch {
	case to == nil:
		return C.NVML_ERROR_INVALID_ARGUMENT
	case to.version != C.nvmlSystemConfComputeSettings_v1:
		return C.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return answer(node, func(n *sim.Node) (C.nvmlSystemConfComputeSettings_t, error) {
		on, err := sim.Confidential{Node: n}.ConfidentialComputing()
		if err != nil {
			return *to, err
		}
		protected, err := sim.Confidential{Node: n}.ProtectedPCIe()
		return C.nvmlSystemConfComputeSettings_t{version: to.version, ccFeature: flag(on), multiGpuMode: flag(protected)}, err
	}, to, func(s C.nvmlSystemConfComputeSettings_t) C.nvmlSystemConfComputeSettings_t { return s })
}

//export nvmlSystemGetConfComputeGpusReadyState
func nvmlSystemGetConfComputeGpusReadyState(to *C.uint) C.nvmlReturn_t {
	return answer(node, func(n *sim.Node) (bool, error) { return sim.Confidential{Node: n}.AcceptsWork() }, to, flag)
}

// flag is 1 for true: NVML_CC_SYSTEM_FEATURE_ENABLED, NVML_CC_SYSTEM_MULTIGPU_PROTECTED_PCIE, NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE.
func flag(on bool) C.uint {
	if on {
		return 1
	}
	return 0
}

//export nvmlSystemGetCudaDriverVersion
func nvmlSystemGetCudaDriverVersion(to *C.int) C.nvmlReturn_t {
	return nvmlSystemGetCudaDriverVersion_v2(to)
}

// inContainer distinguishes a container, which has the library but nothing else of the node, from a node that is being created
// right now, whose directory for its state comes first.
func inContainer(root string) bool {
	_, err := os.Stat(filepath.Join(root, "var/lib/nvml-sim"))
	return errors.Is(err, fs.ErrNotExist)
}
