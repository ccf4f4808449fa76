// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// NVSwitches are NVIDIA's functions of this class, other bridges, and their driver (open-gpu-kernel-modules 595.45.04, os-interface.c,
// os_is_nvswitch_present, and linux_nvswitch.c).
const (
	switchClass  = "0x0680"
	switchDriver = "nvidia-nvswitch"
)

// hopper is the compute capability from which on GPUs register with the fabric one by one.
const hopper = 9

// unregistered is the fabric state of a GPU that does not register with the fabric. Before Hopper that is a matter of the node: with
// NVSwitches, CUDA returns cudaErrorSystemNotReady on every GPU that is not in MIG mode unless Fabric Manager runs
// (open-gpu-kernel-modules 595.45.04, nv_gpu_ops.c, _gpuGetFabricStatus, client_resource.c, SystemGetFabricStatus, and
// fm_session_api.c; Fabric Manager's configuration, ABORT_CUDA_JOBS_ON_FM_EXIT). NVML does not report it, the process table does.
func (c *calls) unregistered(ctx context.Context, g *gpu.GPU, manager *fabricManager) (gpu.FabricState, error) {
	if g.ComputeCapability == nil || g.ComputeCapability.Major >= hopper || g.NVLinks == nil ||
		!hasNVSwitches(c.inventory.sysfs) || !manager.isMissing(ctx) {
		return gpu.FabricUnsupported, nil
	}
	return ask(ctx, c, g.PCI, "nvmlDeviceGetMigMode", func(dev Device) (gpu.FabricState, error) {
		if enabled, _, err := dev.MIG().MIGMode(); enabled || err != nil && !lacking(err) {
			return gpu.FabricUnsupported, nil
		}
		return gpu.FabricUnmanaged, nil
	})
}

// hasNVSwitches reports whether the driver of this machine has NVSwitches: those passed through to a virtual machine are managed there.
func hasNVSwitches(sysfs fs.ReadLinkFS) bool {
	entries, _ := fs.ReadDir(sysfs, pciDevices)
	for _, e := range entries {
		if name := e.Name(); boundDriver(sysfs, name) == switchDriver && readPCIFile(sysfs, name, "vendor") == nvidiaVendor &&
			strings.HasPrefix(readPCIFile(sysfs, name, "class"), switchClass) {
			return true
		}
	}
	return false
}

// fabricManager finds the process of Fabric Manager.
type fabricManager struct {
	// procfs is the node's /proc, or nil.
	procfs fs.FS
	// last is the last known process ID.
	last atomic.Pointer[string]
}

// isMissing reports whether Fabric Manager certainly does not run: all processes of the machine can be seen, and none may be it.
// All are seen where the kernel's own process 2 is: it exists only in the first PID namespace, not in that of a container or of a node in
// one, and a procfs with hidepid shows it to nobody who may not see all others.
func (m *fabricManager) isMissing(ctx context.Context) bool {
	if m.procfs == nil {
		return false
	}
	if name, err := processName(m.procfs, "2"); err != nil || name != "kthreadd" {
		return false
	}
	if last := m.last.Load(); last != nil {
		if name, err := processName(m.procfs, *last); err != nil || isFabricManager(name) {
			return false
		}
	}
	entries, err := fs.ReadDir(m.procfs, ".")
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid := e.Name()
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		name, err := processName(m.procfs, pid)
		if err != nil || ctx.Err() != nil {
			return false
		}
		if isFabricManager(name) {
			m.last.Store(&pid)
			return false
		}
	}
	return true
}

// isFabricManager reports whether a process of that name is or may be Fabric Manager, nv-fabricmanager: some distributions wrap programs,
// or start them through the dynamic loader.
func isFabricManager(name string) bool {
	return strings.Contains(name, "fabricman") || strings.HasPrefix(name, "ld-")
}

// processName is the kernel's name of a process, of at most 15 bytes (proc(5), /proc/PID/comm); empty if it has ended. Its command line is
// not read, as that waits for a process that hangs in the driver.
func processName(procfs fs.FS, pid string) (string, error) {
	data, err := fs.ReadFile(procfs, path.Join(pid, "comm"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}
