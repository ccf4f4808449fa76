// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// The directory of PCI functions in sysfs. NVIDIA GPUs are those with this vendor and the base class of display
// controllers (0x0300 VGA, 0x0302 3D; PCI Code and ID Assignment Specification, base class 03h).
const (
	pciDevices   = "bus/pci/devices"
	nvidiaVendor = "0x10de"
	displayClass = "0x03"
)

// maxPCIFile bounds, in bytes, a file of a PCI function: a page of sysfs.
const maxPCIFile = 4096

// pciGPU is a PCI function of an NVIDIA GPU.
type pciGPU struct {
	pci gpu.PCIAddress
	// driver is the kernel driver that it is bound to, such as "vfio-pci"; empty if sysfs does not report it.
	driver string
}

// pciGPUs lists the NVIDIA GPUs in sysfs, in its order. It caches in known which names are GPUs: the class of a function
// does not change, and a node may have hundreds of functions.
func pciGPUs(sysfs fs.ReadLinkFS, known map[string]bool) ([]pciGPU, error) {
	entries, err := fs.ReadDir(sysfs, pciDevices)
	if err != nil {
		return nil, err
	}
	var found []pciGPU
	for _, e := range entries {
		name := e.Name()
		is, seen := known[name]
		if !seen {
			is = isNVIDIAGPU(sysfs, name)
			if known != nil {
				known[name] = is
			}
		}
		if !is {
			continue
		}
		if pci, err := gpu.ParsePCIAddress(name); err == nil {
			found = append(found, pciGPU{pci, boundDriver(sysfs, name)})
		}
	}
	return found, nil
}

// isNVIDIAGPU reports whether a PCI function is an NVIDIA GPU.
func isNVIDIAGPU(sysfs fs.FS, name string) bool {
	return readPCIFile(sysfs, name, "vendor") == nvidiaVendor && strings.HasPrefix(readPCIFile(sysfs, name, "class"), displayClass)
}

// boundDriver is the kernel driver that a PCI function is bound to, or empty.
func boundDriver(sysfs fs.ReadLinkFS, name string) string {
	target, err := sysfs.ReadLink(path.Join(pciDevices, name, "driver"))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// readPCIFile reads a file of a PCI function; empty if it cannot be read.
func readPCIFile(sysfs fs.FS, name, file string) string {
	f, err := sysfs.Open(path.Join(pciDevices, name, file))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPCIFile))
	if err != nil || len(data) == maxPCIFile {
		return ""
	}
	return strings.TrimSpace(string(data))
}
