// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Where sysfs lists PCI functions, and what makes one an NVIDIA GPU: the vendor, and the base class of display
// controllers (0x0300 VGA, 0x0302 3D; PCI Code and ID Assignment Specification, base class 03h).
const (
	pciDevices   = "bus/pci/devices"
	nvidiaVendor = "0x10de"
	displayClass = "0x03"
)

// maxPCIFile bounds what is read of a file of a PCI function: each holds a number on one line.
const maxPCIFile = 64

// Presence is what sysfs says of a GPU. NVML cannot tell a GPU that was taken out from one that cannot be read.
type Presence int

const (
	// PresenceUnknown: sysfs never listed the GPU and lists no other NVIDIA GPU, as in virtual machines that hide PCI, so
	// nothing follows from one that is missing there.
	PresenceUnknown Presence = iota
	// Present: the PCI function is there. A GPU that does not answer is unreadable, not gone.
	Present
	// Absent: the PCI function is gone, and what was in the GPU with it.
	Absent
)

// Presence looks for the PCI function of a GPU.
func (s *Session) Presence(pci gpu.PCIAddress) Presence {
	if _, err := fs.Stat(s.sysfs, deviceLink(pci)); err == nil {
		return Present
	}
	functions, err := pciGPUs(s.sysfs, nil)
	if err == nil && (len(functions) > 0 || s.wasListed(pci)) {
		return Absent
	}
	return PresenceUnknown
}

// Absent reports whether it is certain that no GPU is at an address any more.
func (s *Session) Absent(pci gpu.PCIAddress) bool { return s.Presence(pci) == Absent }

// wasListed reports whether sysfs had the PCI function of a GPU at an earlier read.
func (s *Session) wasListed(pci gpu.PCIAddress) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.listed[pci]
}

// pciGPU is a PCI function of an NVIDIA GPU.
type pciGPU struct {
	pci gpu.PCIAddress
	// driver is the kernel driver that it is bound to, such as "vfio-pci"; empty where sysfs does not say.
	driver string
}

// pciGPUs lists the NVIDIA GPUs that sysfs has, in its order. What known says of a name is not read again: classes of
// functions do not change, and there may be hundreds.
func pciGPUs(sysfs fs.FS, known map[string]bool) ([]pciGPU, error) {
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

// isNVIDIAGPU reads what a PCI function is.
func isNVIDIAGPU(sysfs fs.FS, name string) bool {
	return readPCIFile(sysfs, name, "vendor") == nvidiaVendor && strings.HasPrefix(readPCIFile(sysfs, name, "class"), displayClass)
}

// boundDriver is the kernel driver that a PCI function is bound to, or nothing.
func boundDriver(sysfs fs.FS, name string) string {
	links, ok := sysfs.(fs.ReadLinkFS)
	if !ok {
		return ""
	}
	target, err := links.ReadLink(path.Join(pciDevices, name, "driver"))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// readPCIFile reads a file of a PCI function; nothing where it cannot be read.
func readPCIFile(sysfs fs.FS, name, file string) string {
	f, err := sysfs.Open(path.Join(pciDevices, name, file))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPCIFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
