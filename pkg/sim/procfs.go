// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"
)

// Majors of the device files. 195 is registered for NVIDIA; kernels assign the others at run time, but not the numbers chosen here.
const (
	majorNVIDIA   = 195
	majorUVM      = 507
	majorCaps     = 508
	majorNVSwitch = 509

	minorModeset = 254
	minorCtl     = 255
)

// Minors of /dev/nvidia-caps: two for the whole node, then a block for each GPU, in it a block for each GPU instance,
// in it one for the instance and one for each of its compute instances.
const (
	capConfig      = 1
	capMonitor     = 2
	capFirst       = 3
	capPerInstance = 1 + maxCompute
	capPerGPU      = maxInstances * capPerInstance
)

// capGPUInstance is the minor of a GPU instance, given its GPU's minor.
func capGPUInstance(gpuMinor, instance int) int {
	return capFirst + gpuMinor*capPerGPU + instance*capPerInstance
}

func capComputeInstance(gpuMinor, instance, compute int) int {
	return capGPUInstance(gpuMinor, instance) + 1 + compute
}

// capabilityFile is the content of a file under /proc/driver/nvidia/capabilities.
func capabilityFile(minor int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
}

// capabilityDir is the directory of a GPU's partitions, relative to the root.
func capabilityDir(gpuMinor int) string {
	return fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", gpuMinor)
}

// modulesFile lists the kernel modules: the driver's, while it is loaded, and an unrelated one.
const (
	modulesFile   = "proc/modules"
	otherModules  = "overlay 212992 0 - Live 0x0000000000000000\n"
	loadedModules = "nvidia_uvm 2228224 0 - Live 0x0000000000000000 (OE)\n" +
		"nvidia_drm 135168 0 - Live 0x0000000000000000 (OE)\n" +
		"nvidia_modeset 1724416 1 nvidia_drm, Live 0x0000000000000000 (OE)\n" +
		"nvidia 14381056 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (OE)\n" + otherModules
)

// procfs creates the files of /proc that drivers and tools read, with paths relative to the root.
func (s *spec) procfs() map[string]treeFile {
	files := map[string]treeFile{}
	addFile(files, "proc/driver/nvidia/version", fmt.Sprintf(
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated by nvml-sim)\n", s.DriverVersion))
	addFile(files, "proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
	for i := range s.GPUs {
		g := &s.GPUs[i]
		addFile(files, "proc/driver/nvidia/gpus/"+g.bdf()+"/information", fmt.Sprintf(
			"Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.61.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"+
				"DMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			s.Boards[g.Board].Product, 200+i, g.UUID, g.bdf(), g.Minor, s.DriverVersion))
	}
	addFile(files, "proc/driver/nvidia/capabilities/mig/config", capabilityFile(capConfig))
	addFile(files, "proc/driver/nvidia/capabilities/mig/monitor", capabilityFile(capMonitor))
	addFile(files, "proc/driver/nvidia-caps/mig-minors", s.migMinors())
	addFile(files, modulesFile, loadedModules)
	addFile(files, "proc/devices", fmt.Sprintf(
		"Character devices:\n  1 mem\n  5 /dev/tty\n%d nvidia\n%d nvidia-modeset\n%d nvidiactl\n%d nvidia-uvm\n%d nvidia-caps\n"+
			"%d nvidia-nvswitch\n\nBlock devices:\n  7 loop\n",
		majorNVIDIA, majorNVIDIA, majorNVIDIA, majorUVM, majorCaps, majorNVSwitch))
	addFile(files, "proc/2/comm", "kthreadd\n")
	if len(s.NVSwitches) > 0 {
		addFile(files, managerProc+"/comm", "nv-fabricmanage\n")
	}
	return files
}

// migMinors lists the minors of all possible partitions.
func (s *spec) migMinors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", capConfig, capMonitor)
	minors := 0
	for i := range s.GPUs {
		minors = max(minors, s.GPUs[i].Minor+1)
	}
	for m := range minors {
		for gi := range maxInstances {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", m, gi, capGPUInstance(m, gi))
			for ci := range maxCompute {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", m, gi, ci, capComputeInstance(m, gi, ci))
			}
		}
	}
	return b.String()
}
