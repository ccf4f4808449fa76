package gpu

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// PCIAddress is the address of a function on a PCI bus. It names a GPU for as long as the GPU stays in its slot.
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

var pciPattern = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$`)

// ParsePCIAddress reads "0000:18:00.0", with the four-digit domain of sysfs or the eight-digit one of NVML.
func ParsePCIAddress(s string) (PCIAddress, error) {
	m := pciPattern.FindStringSubmatch(s)
	if m == nil {
		return PCIAddress{}, fmt.Errorf("parse PCI address %q: want domain:bus:device.function in hexadecimal, such as 0000:18:00.0", s)
	}
	var parts [4]uint64
	for i := range parts {
		v, err := strconv.ParseUint(m[i+1], 16, 32)
		if err != nil {
			return PCIAddress{}, fmt.Errorf("parse PCI address %q: %w", s, err)
		}
		parts[i] = v
	}
	if parts[2] > 31 {
		return PCIAddress{}, fmt.Errorf("parse PCI address %q: device number above 1f", s)
	}
	return PCIAddress{Domain: uint32(parts[0]), Bus: uint8(parts[1]), Device: uint8(parts[2]), Function: uint8(parts[3])}, nil
}

// String is the form of sysfs and of resource.kubernetes.io/pciBusID: "0000:18:00.0".
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses by domain, bus, device, function.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// DeviceName is the name of the whole-GPU device, "gpu-0000-18-00-0": a DNS label, as the resource API demands,
// and the prefix of the names of all other shapes of the GPU.
func (a PCIAddress) DeviceName() string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(a.String())
}
