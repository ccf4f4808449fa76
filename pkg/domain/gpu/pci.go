// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"fmt"
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

// ParsePCIAddress reads "0000:18:00.0", with the four-digit domain of sysfs or the eight-digit one of NVML.
func ParsePCIAddress(s string) (PCIAddress, error) {
	fail := func() (PCIAddress, error) {
		return PCIAddress{}, fmt.Errorf("parse PCI address %q: want domain:bus:device.function in hexadecimal, such as 0000:18:00.0", s)
	}
	domain, rest, ok1 := strings.Cut(s, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	device, function, ok3 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || !ok3 || len(domain) < 4 || len(domain) > 8 || len(bus) != 2 || len(device) != 2 || len(function) != 1 {
		return fail()
	}
	var parts [4]uint64
	for i, digits := range []string{domain, bus, device, function} {
		v, err := strconv.ParseUint(digits, 16, 32)
		if err != nil {
			return fail()
		}
		parts[i] = v
	}
	if parts[2] > 0x1f || parts[3] > 7 {
		return fail()
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
	b := []byte("gpu") // without fmt: every claim asks for it many times
	for _, part := range []struct {
		value  uint32
		digits int
	}{{a.Domain, 4}, {uint32(a.Bus), 2}, {uint32(a.Device), 2}, {uint32(a.Function), 1}} {
		digits := strconv.FormatUint(uint64(part.value), 16)
		b = append(b, '-')
		b = append(b, "0000"[:max(0, part.digits-len(digits))]...)
		b = append(b, digits...)
	}
	return string(b)
}

// ParseDeviceName reads the PCI address of the GPU that a device is made of from the device's name, see
// PCIAddress.DeviceName and Shape.Name.
func ParseDeviceName(name string) (PCIAddress, error) {
	parts := strings.SplitN(name, "-", 6)
	if len(parts) < 5 || parts[0] != "gpu" {
		return PCIAddress{}, fmt.Errorf("parse device name %q: want gpu-domain-bus-device-function, such as gpu-0000-18-00-0", name)
	}
	a, err := ParsePCIAddress(parts[1] + ":" + parts[2] + ":" + parts[3] + "." + parts[4])
	if err != nil {
		return PCIAddress{}, fmt.Errorf("parse device name %q: %w", name, err)
	}
	return a, nil
}
