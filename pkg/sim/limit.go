// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// limitsSince is the first driver whose boards limit memory by cgroup.
const limitsSince = 615

// NoMemoryLimit is the hard limit for no limit (NVML_DEVICE_MEMORY_LIMIT_MAX).
const NoMemoryLimit = math.MaxUint64

// memoryLimit limits the memory of a cgroup's processes on a GPU, in bytes.
type memoryLimit struct {
	Cgroup string `json:"cgroup"`
	// Inode of the cgroup: one recreated at the same path has no limits.
	Inode uint64 `json:"inode"`
	Soft  uint64 `json:"soft"`
	Hard  uint64 `json:"hard"`
}

// checkLimits checks the order, on which the search relies.
func checkLimits(limits []memoryLimit) error {
	for i := 1; i < len(limits); i++ {
		if limits[i-1].Cgroup >= limits[i].Cgroup {
			return fmt.Errorf("memory limits of %q are out of order", limits[i].Cgroup)
		}
	}
	return nil
}

// findLimit finds the place of a cgroup's limits.
func (st *gpuState) findLimit(cgroup string) (int, bool) {
	return slices.BinarySearchFunc(st.Limits, cgroup, func(l memoryLimit, c string) int { return cmp.Compare(l.Cgroup, c) })
}

// current reports whether the cgroup with the limits still exists.
func (l memoryLimit) current() bool {
	info, err := os.Stat(l.Cgroup)
	return err == nil && inodeOf(info) == l.Inode
}

func inodeOf(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}

// openCgroup opens a cgroup and returns its inode.
func openCgroup(path string) (uint64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return inodeOf(info), nil
}

// driverMajor is the first number of the driver's version; 0 if it has none.
func (s *spec) driverMajor() int {
	first, _, _ := strings.Cut(s.DriverVersion, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return major
}

// Major is the first number of the driver's version, such as 580.
func (d Driver) Major() int { return d.spec.driverMajor() }

// limitable fails if memory cannot be limited by cgroup, or the cgroup cannot be opened.
func (d DeviceMemory) limitable(call string, st *gpuState, cgroup string) (inode uint64, err error) {
	switch {
	case d.node.spec.driverMajor() < limitsSince:
		return 0, fail(call, CodeNotSupported, "driver %s limits no memory by cgroup, %d and later do", d.node.spec.DriverVersion, limitsSince)
	case st.MIG:
		return 0, fail(call, CodeNotSupported, "GPU %d is in MIG mode", d.index)
	case cgroup == "":
		return 0, fail(call, CodeInvalidArgument, "no cgroup")
	}
	inode, err = openCgroup(cgroup)
	if err != nil {
		return 0, fail(call, CodeOperatingSystem, "open cgroup: %v", err)
	}
	return inode, nil
}

// hasDmem reports whether a cgroup has the files of the kernel's controller; also true if the kernel lacks the controller.
func hasDmem(cgroup string) bool {
	_, err := os.Stat(filepath.Join(cgroup, "dmem.max"))
	if err == nil {
		return true
	}
	for dir := cgroup; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "dmem.capacity")); err == nil {
			return false
		}
	}
	return true
}

// SetMemoryLimits limits the memory of the processes in a cgroup, in bytes (nvmlDeviceSetMemoryLimits_v1). Soft 0 and hard
// NoMemoryLimit remove the limit.
func (d DeviceMemory) SetMemoryLimits(cgroup string, soft, hard uint64) error {
	const call = "nvmlDeviceSetMemoryLimits_v1"
	return d.update(call, func(st *gpuState) error {
		inode, err := d.limitable(call, st, cgroup)
		if err != nil {
			return err
		}
		if !hasDmem(cgroup) { // "Setting on a cgroup with no dmem files returns 'not found'" (NVIDIA MPS documentation)
			return fail(call, CodeNotFound, "cgroup %s has no dmem files", cgroup)
		}
		total := d.board.MemoryMiB << 20
		if soft > hard || soft > total || hard > total && hard != NoMemoryLimit {
			return fail(call, CodeInvalidArgument, "soft limit %d, hard limit %d of %d bytes", soft, hard, total)
		}
		st.Limits = slices.DeleteFunc(st.Limits, func(l memoryLimit) bool { return l.Cgroup == cgroup || !l.current() })
		if soft == 0 && hard == NoMemoryLimit {
			return nil
		}
		i, _ := st.findLimit(cgroup)
		st.Limits = slices.Insert(st.Limits, i, memoryLimit{cgroup, inode, soft, hard})
		return nil
	})
}

// MemoryLimits are the limits of a cgroup and its usage, in bytes (nvmlDeviceGetMemoryLimits_v1); ErrNotFound if it has none. Usage
// is not tracked by cgroup: used is 0.
func (d DeviceMemory) MemoryLimits(cgroup string) (soft, hard, used uint64, err error) {
	const call = "nvmlDeviceGetMemoryLimits_v1"
	st, err := d.load(call)
	if err != nil {
		return 0, 0, 0, err
	}
	inode, err := d.limitable(call, st, cgroup)
	if err != nil {
		return 0, 0, 0, err
	}
	if !hasDmem(cgroup) {
		return 0, 0, 0, fail(call, CodeNotSupported, "cgroup %s has no dmem files, such as the root", cgroup)
	}
	i, ok := st.findLimit(cgroup)
	if !ok || st.Limits[i].Inode != inode {
		return 0, 0, 0, fail(call, CodeNotFound, "no limits for %s on GPU %d", cgroup, d.index)
	}
	return st.Limits[i].Soft, st.Limits[i].Hard, 0, nil
}
