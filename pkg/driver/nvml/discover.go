// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/info"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// errJetson refuses the GPU of a Jetson. It has no PCI address and no device node of its own, and containers get its driver by
// lists of files (nvidia-container-toolkit, mode csv), not by what NVML reports.
var errJetson = fmt.Errorf("the integrated GPU of a Jetson is not supported: use NVIDIA's device plugin on this node: %w",
	gpu.ErrNotSupported)

// found is a GPU and its handle.
type found struct {
	dev Device
	gpu gpu.GPU
}

// discover reads all GPUs. It fails only if the driver as a whole does not answer. A GPU that cannot be read becomes a
// Problem; the others are served.
func (c *calls) discover(ctx context.Context) (*discovery, error) {
	d := &discovery{handles: map[gpu.PCIAddress]handle{}}
	count := 0
	if err := c.library(ctx, "nvmlDeviceGetCount_v2", func() error { return readNode(c.lib, &d.node, &count) }); err != nil {
		return nil, err
	}
	for i := range count {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read GPU %d of %d: %w", i, count, err)
		}
		dog := c.dogs.of(i)
		f, err := bounded(ctx, dog, fmt.Sprintf("reading GPU %d", i), changeTimeout, true, func() (found, error) {
			return c.read(i, func() (Device, error) { return c.lib.DeviceByIndex(i) })
		})
		if _, twice := d.handles[f.gpu.PCI]; err == nil && twice {
			err = fmt.Errorf("GPU %d reports the PCI address %s of an earlier one", i, f.gpu.PCI)
		}
		if err != nil {
			d.node.Problems = append(d.node.Problems, gpu.Problem{Index: i, Err: err})
			continue
		}
		klog.FromContext(ctx).V(4).Info("Found GPU", "index", i, "pci", f.gpu.PCI, "uuid", f.gpu.UUID, "product", f.gpu.ProductName)
		d.handles[f.gpu.PCI] = handle{Device: f.dev, dog: dog, epoch: int(c.epoch.Load())}
		d.node.GPUs = append(d.node.GPUs, f.gpu)
	}
	gpu.SortGPUs(d.node.GPUs)
	return d, nil
}

// read opens a GPU and reads it.
func (c *calls) read(index int, open func() (Device, error)) (found, error) {
	dev, g, err := readGPU(open, index, c.inventory.sysfs)
	g.MIG.NeedsReset = g.MIG.NeedsReset || c.inventory.requiresReset(&g)
	return found{dev, g}, err
}

// readNode reads node-wide data. After a hang the caller must not use node and count.
func readNode(lib Library, node *gpu.Node, count *int) (err error) {
	if node.DriverVersion, err = lib.SystemDriverVersion(); err != nil {
		return fmt.Errorf("read the driver's version: %w", err)
	}
	switch cuda, err := lib.SystemCUDADriverVersion(); {
	case errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrLibraryNotFound) || errors.Is(err, gpu.ErrNotSupported):
		// The driver has no libcuda, or one that this process cannot load. GPUs can be handed on without knowing its version.
	case err != nil:
		return fmt.Errorf("read the driver's CUDA version: %w", err)
	default:
		node.CUDAVersion = gpu.Version{Major: cuda / 1000, Minor: cuda % 1000 / 10}
	}
	switch node.ConfidentialComputing, err = lib.ConfidentialComputing(); {
	case lacking(err):
		node.ConfidentialComputing = false
	case err != nil:
		return fmt.Errorf("read whether the GPUs are in confidential computing mode: %w", err)
	}
	if *count, err = lib.DeviceCount(); err != nil {
		return fmt.Errorf("count GPUs: %w", err)
	}
	return nil
}

// readGPU reads one GPU. Identifying attributes are required; the rest is optional.
func readGPU(open func() (Device, error), index int, sysfs fs.ReadLinkFS) (Device, gpu.GPU, error) {
	g := gpu.GPU{Index: index}
	dev, err := open()
	if err != nil {
		return nil, g, fmt.Errorf("get a handle to GPU %d: %w", index, err)
	}
	if g.ProductName, err = dev.Name(); err != nil {
		return nil, g, fmt.Errorf("read the product name of GPU %d: %w", index, err)
	}
	if info.IsIntegratedGPUName(g.ProductName) {
		return nil, g, fmt.Errorf("skip GPU %d (%s): %w", index, g.ProductName, errJetson)
	}
	pci, err := dev.PCIInfo()
	if err != nil {
		return nil, g, fmt.Errorf("read the PCI address of GPU %d: %w", index, err)
	}
	if g.PCI, err = gpu.ParsePCIAddress(pci.BusID); err != nil {
		return nil, g, fmt.Errorf("read the PCI address of GPU %d: %w", index, err)
	}
	g.PCIDeviceID, g.PCISubsystemID = pci.DeviceID, pci.SubsystemID
	if g.UUID, err = dev.UUID(); err != nil {
		return nil, g, fmt.Errorf("read the UUID of GPU %d at %s: %w", index, g.PCI, err)
	}
	if g.UUID == "" {
		return nil, g, fmt.Errorf("read the UUID of GPU %d at %s: it is empty", index, g.PCI)
	}
	if g.Minor, err = dev.MinorNumber(); err != nil {
		return nil, g, fmt.Errorf("read the minor number of GPU %d at %s: %w", index, g.PCI, err)
	}
	if err := hostsVGPUs(dev); err != nil {
		return nil, g, fmt.Errorf("skip GPU %d at %s: %w", index, g.PCI, err)
	}
	var firm errs
	total := readProperties(dev, &g, &firm)
	if total > 0 {
		g.TotalMemory = &total
	}
	readVirtualization(dev, &g, &firm)
	readLinks(dev, &g, &firm)
	readFabric(dev.Links(), &g, &firm)
	readMIG(dev, &g, total, &firm)
	if firm.first != nil {
		return nil, g, fmt.Errorf("read GPU %d at %s: %w", index, g.PCI, firm.first)
	}
	readSysfs(&g, sysfs)
	return dev, g, nil
}

// errs classifies the errors of optional reads. Attributes that a board does not support are omitted. Any other error,
// such as a lost GPU or a transient driver failure, must not pass for a missing attribute: the GPU would be published
// with different counters while it is allocated.
type errs struct {
	first error
}

// ok reports whether the value read can be used.
func (e *errs) ok(err error) bool {
	if err != nil && !lacking(err) && e.first == nil {
		e.first = err
	}
	return err == nil
}

// hint is ok for values that affect only ordering. Of their errors, only a lost GPU or an unloaded driver counts.
func (e *errs) hint(err error) bool {
	if errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrDriverNotLoaded) {
		return e.ok(err)
	}
	return err == nil
}

// readProperties reads optional attributes and returns the board's total memory in bytes, 0 if unknown.
func readProperties(dev Device, g *gpu.GPU, e *errs) (totalMemory uint64) {
	if brand, err := dev.Brand(); e.ok(err) {
		g.Brand = brands[brand]
	}
	if arch, err := dev.Architecture(); e.ok(err) {
		g.Architecture = architectures[arch]
	}
	if major, minor, err := dev.CUDAComputeCapability(); e.ok(err) {
		g.ComputeCapability = &gpu.Version{Major: major, Minor: minor}
	}
	if total, reserved, err := dev.MemoryTotalReserved(); e.ok(err) && total > reserved {
		usable := total - reserved
		totalMemory, g.Memory = total, &usable
	} else if total, err := dev.MemoryTotal(); e.ok(err) && total > 0 {
		totalMemory, g.Memory = total, &total
	}
	if ecc, _, err := dev.ECCMode(); e.ok(err) {
		g.ECC = &ecc
	}
	if mode, err := dev.AddressingMode(); e.ok(err) {
		g.AddressingMode = addressingModes[mode]
	}
	return totalMemory
}

// readVirtualization reads how the GPU reached a virtual machine, if it is in one.
func readVirtualization(dev Device, g *gpu.GPU, e *errs) {
	switch mode, err := dev.VirtualizationMode(); {
	case !e.hint(err):
	case mode == int(nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH):
		g.Virtualization = gpu.PassThrough
	case mode == int(nvml.GPU_VIRTUALIZATION_MODE_VGPU):
		g.Virtualization = gpu.VGPU
	}
}

// readMIG reads the MIG mode and geometry. A board that reports no placements is not offered for partitioning.
func readMIG(dev Device, g *gpu.GPU, totalMemory uint64, e *errs) {
	mig := dev.MIG()
	current, pending, err := mig.MIGMode()
	if !e.ok(err) {
		return
	}
	g.MIG = gpu.MIG{Capable: true, Enabled: current, Pending: pending}
	// NVML does not report this. The compute capability of Ampere is 8.x, that of Hopper 9.0.
	g.MIG.NeedsReset = g.ComputeCapability == nil || g.ComputeCapability.Major < 9
	// The same applies to a GPU passed through to a guest: "VM reboot is required" (nvml.h, nvmlDeviceSetMigMode) is about "reset
	// functionality", but whether a reset is needed is a property of the chip (open-gpu-kernel-modules 595.45.04, g_gpu_nvoc.c,
	// PDB_PROP_GPU_RESETLESS_MIG_SUPPORTED). See inventory.noteResetRequired for guests that differ.
	if g.Virtualization == gpu.VGPU {
		g.MIG.NeedsReset, g.MIG.Fixed = false, true
	}
	for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, err := mig.GPUInstanceProfileInfo(enum)
		if !e.ok(err) {
			continue
		}
		if p.Placements, err = mig.GPUInstancePossiblePlacements(p.ID); !e.ok(err) || len(p.Placements) == 0 {
			continue
		}
		slices.SortFunc(p.Placements, func(a, b gpu.Placement) int { return a.Start - b.Start })
		p.Name = profileName(p, totalMemory)
		if !strings.Contains(p.Name, "+") {
			// Drivers report too few for the A30 (NVIDIA/mig-parted works around it). Plain profiles, and those without media
			// engines, have nothing that could run out, so their disjoint placements are the limit. Media engines can, and so can
			// compute engines that do graphics, which NVML does not count.
			p.MaxInstances = max(p.MaxInstances, disjoint(p.Placements))
		}
		for _, place := range p.Placements {
			// The board's size is the end of its last placement: fixed 8 slices would be wrong for the A30 (4 units) and
			// the RTX PRO 6000 (12 units).
			g.MIG.Slices = max(g.MIG.Slices, place.Start+place.Size)
		}
		g.MIG.Profiles = append(g.MIG.Profiles, p)
	}
	gpu.SortProfiles(g.MIG.Profiles)
}

// disjoint counts the placements, in order of their start, that fit on an empty board at once.
func disjoint(placements []gpu.Placement) (count int) {
	end := 0
	for _, at := range placements {
		if at.Start >= end {
			count, end = count+1, at.Start+at.Size
		}
	}
	return count
}

// hostsVGPUs returns an error for a GPU that a hypervisor divides into vGPUs: no container can use it.
func hostsVGPUs(dev Device) error {
	mode, err := dev.VirtualizationMode()
	if err == nil && (mode == int(nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU) || mode == int(nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA)) {
		return fmt.Errorf("it is divided into vGPUs for virtual machines (virtualization mode %d): %w", mode, gpu.ErrNotSupported)
	}
	return nil
}
