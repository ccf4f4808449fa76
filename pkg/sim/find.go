// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Device returns the GPU of an index, or nil. It is not an NVML call: it resolves a handle.
func (n *Node) Device(index int) *Device {
	if index < 0 || index >= len(n.devices) {
		return nil
	}
	return n.devices[index]
}

// Number is the index, without a call.
func (d *access) Number() int { return d.index }

// Replaced reports whether another node has replaced this one since it was opened.
func (n *Node) Replaced() bool {
	if n.files.root == "" {
		return false
	}
	id, err := statFile(filepath.Join(n.files.root, stateDir, "node.json"))
	return err != nil || id != n.files.opened
}

// parseBusID parses the forms of a PCI address that nvml.h allows, in hexadecimal numbers of any length:
// domain:bus:device.function, domain:bus:device and bus:device.function.
func parseBusID(id string) (gpu.PCIAddress, error) {
	place, function, _ := strings.Cut(id, ".")
	parts := strings.Split(place, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if function == "" {
		function = "0"
	}
	var n [4]uint64
	if len(parts) != 3 {
		return gpu.PCIAddress{}, fmt.Errorf("PCI address %q", id)
	}
	for i, digits := range append(parts, function) {
		v, err := strconv.ParseUint(digits, 16, []int{32, 8, 5, 3}[i])
		if err != nil {
			return gpu.PCIAddress{}, fmt.Errorf("PCI address %q: %w", id, err)
		}
		n[i] = v
	}
	return gpu.PCIAddress{Domain: uint32(n[0]), Bus: uint8(n[1]), Device: uint8(n[2]), Function: uint8(n[3])}, nil
}

// DeviceByPCIBusID returns the GPU at an address (nvmlDeviceGetHandleByPciBusId_v2).
func (n *Node) DeviceByPCIBusID(id string) (*Device, error) {
	const call = "nvmlDeviceGetHandleByPciBusId_v2"
	a, parseErr := parseBusID(id)
	for _, d := range n.devices {
		if b, err := d.spec.address(); err == nil && parseErr == nil && a == b {
			return d, n.enter(call, d.index)
		}
	}
	if err := n.enter(call, -1); err != nil {
		return nil, err
	}
	if parseErr != nil {
		return nil, fail(call, CodeInvalidArgument, "%v", parseErr)
	}
	return nil, fail(call, CodeNotFound, "no GPU at %s", id)
}

// DeviceByUUID returns the GPU of a UUID, or, of a UUID "MIG-…", the partition (nvmlDeviceGetHandleByUUID). Like NVML, it
// initializes one GPU after the other until it has found the UUID, and fails if any GPU fell off the bus (nvml.h: "NVML may initialize
// additional GPUs as it searches for the target GPU", "NVML_ERROR_GPU_IS_LOST if any GPU has fallen off the bus").
func (n *Node) DeviceByUUID(uuid string) (*Device, *MIGDevice, error) {
	const call = "nvmlDeviceGetHandleByUUID"
	node, err := n.state.load()
	if err != nil {
		return nil, nil, fail(call, CodeUnknown, "%v", err)
	}
	for _, index := range node.Lost {
		if err := n.enter(call, index); err != nil {
			return nil, nil, err
		}
	}
	for _, d := range n.devices {
		if slices.Contains(node.Absent, d.index) {
			continue
		}
		if err := n.enter(call, d.index); err != nil {
			return nil, nil, err
		}
		if uuid != "" && node.UUIDs[d.index] == uuid || d.spec.UUID == uuid {
			return d, nil, nil
		}
	}
	if err := n.enter(call, -1); err != nil {
		return nil, nil, err
	}
	if !strings.HasPrefix(uuid, "MIG-") {
		return nil, nil, fail(call, CodeNotFound, "no GPU has UUID %q", uuid)
	}
	m, err := n.Partition(uuid)
	return nil, m, err
}

// Partition returns the partition of a UUID "MIG-…". It is not an NVML call.
func (n *Node) Partition(uuid string) (*MIGDevice, error) {
	const call = "nvmlDeviceGetHandleByUUID"
	for _, d := range n.devices {
		st, err := n.gpus[d.index].load()
		if err != nil {
			return nil, fail(call, CodeUnknown, "%v", err)
		}
		for _, m := range d.MIG().migDevices(st) {
			if m.uuid() == uuid {
				return m, nil
			}
		}
	}
	return nil, fail(call, CodeNotFound, "no partition has UUID %q", uuid)
}
