// SPDX-License-Identifier: Apache-2.0

// Package main is a libcuda.so.1 for a simulated node, of which it has as much as cuda-probe uses. It is a client of the
// simulated MPS server as CUDA is of NVIDIA's, keeps to the limits that the server grants, and knows one kernel.
//
// Built with -ldflags "-X main.lax=memory" or cores, it does not keep to that limit: the lane has to notice.
package main

/*
#include <stddef.h>
#include <stdlib.h>
typedef unsigned long long devptr;
typedef struct { int type; unsigned int count; } affinity;
*/
import "C"

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

const (
	total           = 80 << 30
	ofContext       = 300 << 20 // what a context takes of a limit
	multiprocessors = 132
	// rounds of the kernel take so many milliseconds on all multiprocessors.
	rounds, milliseconds = 200_000, 10
)

const (
	outOfMemory      = 2
	invalidValue     = 1
	connectionFailed = 805
)

var lax string

var (
	mu sync.Mutex
	// client keeps the program connected.
	client  *mps.Client
	threads = 100.0
	limit   uint64 // 0 for none
	next    = C.devptr(1 << 32)
	taken   = map[C.devptr]uint64{}
	// launched is the last launch of the kernel.
	launched struct {
		out    C.devptr
		rounds uint32
	}
)

func main() {}

//export cuInit
func cuInit(C.uint) C.int {
	if _, err := os.Stat(filepath.Join(mps.PipeDirectory(), "control")); errors.Is(err, os.ErrNotExist) {
		return 0 // without MPS
	}
	request := &mps.Request{PID: os.Getpid(), Command: "fakecuda", Threads: os.Getenv(mps.EnvThreads), Limits: os.Getenv(mps.EnvMemory)}
	if visible, ok := os.LookupEnv(mps.EnvVisible); ok {
		request.Visible = &visible
	}
	c, err := mps.Connect(context.Background(), mps.PipeDirectory(), request)
	if err != nil {
		return connectionFailed
	}
	client = c
	if lax != "cores" {
		threads = c.Admission.Threads
	}
	if lax != "memory" {
		limit = c.Admission.MemoryLimit
	}
	return 0
}

//export cuDriverGetVersion
func cuDriverGetVersion(v *C.int) C.int { *v = 13000; return 0 }

//export cuDeviceGetCount
func cuDeviceGetCount(n *C.int) C.int { *n = 1; return 0 }

//export cuDeviceGet
func cuDeviceGet(d *C.int, _ C.int) C.int { *d = 0; return 0 }

//export cuDeviceGetAttribute
func cuDeviceGetAttribute(v *C.int, attribute, device C.int) C.int { *v = C.int(granted()); return 0 }

// granted is how many multiprocessors the program has; they come in pairs.
func granted() int { return int(multiprocessors*threads/100+1.99) / 2 * 2 }

//export cuCtxGetExecAffinity
func cuCtxGetExecAffinity(a *C.affinity, _ C.int) C.int { a.count = C.uint(granted()); return 0 }

//export cuDeviceTotalMem_v2
func cuDeviceTotalMem_v2(v *C.size_t, _ C.int) C.int { *v = total; return 0 }

//export cuDevicePrimaryCtxRetain
func cuDevicePrimaryCtxRetain(*unsafe.Pointer, C.int) C.int { return 0 }

//export cuCtxSetCurrent
func cuCtxSetCurrent(unsafe.Pointer) C.int { return 0 }

//export cuCtxSynchronize
func cuCtxSynchronize() C.int { return 0 }

//export cuMemGetInfo_v2
func cuMemGetInfo_v2(free, all *C.size_t) C.int {
	*all = total
	*free = C.size_t(most() - held())
	return 0
}

// most is what the program may take, its context included.
func most() uint64 {
	if limit == 0 {
		return total
	}
	return limit
}

func held() uint64 {
	sum := uint64(ofContext)
	for _, n := range taken {
		sum += n
	}
	return sum
}

//export cuMemAlloc_v2
func cuMemAlloc_v2(p *C.devptr, n C.size_t) C.int {
	mu.Lock()
	defer mu.Unlock()
	if held()+uint64(n) > most() {
		return outOfMemory
	}
	*p = next
	taken[next] = uint64(n)
	next += C.devptr(n)
	return 0
}

//export cuMemFree_v2
func cuMemFree_v2(p C.devptr) C.int {
	mu.Lock()
	defer mu.Unlock()
	if _, ok := taken[p]; !ok {
		return invalidValue
	}
	delete(taken, p)
	return 0
}

//export cuMemsetD8_v2
func cuMemsetD8_v2(p C.devptr, _ C.uchar, n C.size_t) C.int {
	if taken[p] < uint64(n) {
		return invalidValue
	}
	return 0
}

//export cuModuleLoadData
func cuModuleLoadData(module *unsafe.Pointer, image unsafe.Pointer) C.int { return 0 }

//export cuModuleGetFunction
func cuModuleGetFunction(f *unsafe.Pointer, module unsafe.Pointer, name *C.char) C.int { return 0 }

//export cuLaunchKernel
func cuLaunchKernel(f unsafe.Pointer, gx, gy, gz, bx, by, bz, shared C.uint, stream unsafe.Pointer, arguments *unsafe.Pointer,
	extra unsafe.Pointer) C.int {
	all := unsafe.Slice(arguments, 2)
	launched.out, launched.rounds = *(*C.devptr)(all[0]), *(*uint32)(all[1])
	return 0
}

//export cuMemcpyDtoH_v2
func cuMemcpyDtoH_v2(to unsafe.Pointer, from C.devptr, n C.size_t) C.int {
	if from != launched.out || taken[from] < uint64(n) {
		return invalidValue
	}
	results := unsafe.Slice((*uint32)(to), n/4)
	for i := range results {
		x := uint32(i)
		for range launched.rounds {
			x = x*1664525 + uint32(i)
			x ^= x >> 7
		}
		results[i] = x
	}
	return 0
}

//export cuEventCreate
func cuEventCreate(*unsafe.Pointer, C.uint) C.int { return 0 }

//export cuEventRecord
func cuEventRecord(event, stream unsafe.Pointer) C.int { return 0 }

//export cuEventElapsedTime
func cuEventElapsedTime(ms *C.float, start, stop unsafe.Pointer) C.int {
	*ms = C.float(milliseconds * float64(launched.rounds) / rounds * multiprocessors / float64(granted()))
	return 0
}

// names are never freed: callers keep them.
var names = map[C.int]*C.char{
	0: C.CString("CUDA_SUCCESS"), invalidValue: C.CString("CUDA_ERROR_INVALID_VALUE"),
	outOfMemory: C.CString("CUDA_ERROR_OUT_OF_MEMORY"), connectionFailed: C.CString("CUDA_ERROR_MPS_CONNECTION_FAILED"),
}

//export cuGetErrorName
func cuGetErrorName(code C.int, name **C.char) C.int {
	s, ok := names[code]
	if !ok {
		return invalidValue
	}
	*name = s
	return 0
}
