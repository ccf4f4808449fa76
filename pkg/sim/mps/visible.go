// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// device is a GPU or a partition that a server offers to programs.
type device struct {
	uuid, name, pci string
	index           int // of the GPU
	gi, ci          int // -1: the whole GPU
	memory          uint64
	maxClients      int

	limit uint64 // of each program; 0: none
	used  uint64
}

// visibleDevices are those that CUDA_VISIBLE_DEVICES names, in its order; all if it is nil. As with CUDA, the first
// that does not exist ends the list.
func visibleDevices(n *sim.Node, visible *string) ([]*device, error) {
	count, err := n.DeviceCount()
	if err != nil {
		return nil, err
	}
	var devices []*device
	add := func(name string) bool {
		found, err := findDevice(n, count, name)
		if err == nil {
			devices = append(devices, found)
		}
		return err == nil
	}
	if visible == nil {
		for i := range count {
			add(strconv.Itoa(i))
		}
	} else {
		for name := range strings.SplitSeq(*visible, ",") {
			if !add(strings.TrimSpace(name)) {
				break
			}
		}
	}
	if len(devices) == 0 {
		return nil, errors.New("no CUDA-capable device is detected")
	}
	return devices, nil
}

// findDevice finds a device by index or UUID.
func findDevice(n *sim.Node, count int, name string) (*device, error) {
	if index, err := strconv.Atoi(name); err == nil {
		d, err := n.DeviceByIndex(index)
		if err != nil {
			return nil, err
		}
		return wholeDevice(n, d)
	}
	if strings.HasPrefix(name, "GPU-") { // a part that is clear is enough
		for i := range count {
			d := n.Device(i)
			if uuid, err := d.UUID(); err == nil && strings.HasPrefix(uuid, name) {
				return wholeDevice(n, d)
			}
		}
		return nil, fmt.Errorf("no GPU has UUID %q", name)
	}
	m, err := n.Partition(name)
	if err != nil {
		return nil, err
	}
	return migDevice(n, m)
}

func wholeDevice(n *sim.Node, d *sim.Device) (*device, error) {
	if mig, _, err := d.MIG().MIGMode(); err == nil && mig {
		return nil, fmt.Errorf("%s is in MIG mode", d)
	}
	uuid, err := d.UUID()
	if err != nil {
		return nil, err
	}
	m, err := d.Memory().MemoryV2()
	if err != nil {
		return nil, err
	}
	pci, err := d.PCIBusID()
	if err != nil {
		return nil, err
	}
	return &device{
		uuid: uuid, name: d.Board().Product, pci: pci, index: d.Number(), gi: -1, ci: -1,
		memory: m.Total - m.Reserved, maxClients: maxClients(d.Board(), n.Driver().Major()),
	}, nil
}

func migDevice(n *sim.Node, m *sim.MIGDevice) (*device, error) {
	parent, err := m.Parent()
	if err != nil {
		return nil, err
	}
	uuid, err := m.UUID()
	if err != nil {
		return nil, err
	}
	name, err := m.Name()
	if err != nil {
		return nil, err
	}
	memory, err := m.MemoryV2()
	if err != nil {
		return nil, err
	}
	attributes, err := m.Attributes()
	if err != nil {
		return nil, err
	}
	pci, err := parent.PCIBusID()
	if err != nil {
		return nil, err
	}
	whole := 1
	for _, p := range parent.Board().MIG.Profiles {
		whole = max(whole, p.ComputeSlices)
	}
	c := m.Compute()
	return &device{
		uuid: uuid, name: name, pci: pci, index: parent.Number(), gi: c.Parent().ID(), ci: c.ID(), memory: memory.Total,
		maxClients: max(1, maxClients(parent.Board(), n.Driver().Major())*attributes.Slices/whole),
	}, nil
}

// maxClients is the maximum number of programs on a GPU.
func maxClients(b *sim.Board, driver int) int {
	switch {
	case b.ComputeCapability[0] < 7:
		return 16
	case driver >= 590:
		return 60
	default:
		return 48
	}
}

// visible are the devices that a program makes visible to itself.
func visible(devices []*device, r *Request) []*device {
	if r.Visible == nil {
		return devices
	}
	var mine []*device
	for name := range strings.SplitSeq(*r.Visible, ",") {
		d := lookup(devices, strings.TrimSpace(name))
		if d == nil {
			break
		}
		mine = append(mine, d)
	}
	return mine
}

// selectDevice finds a program's device by its ordinal among those visible to it.
func selectDevice(devices []*device, r *Request) (*device, *Error) {
	mine := visible(devices, r)
	switch {
	case len(mine) == 0:
		return nil, cudaError(ErrorNoDevice, "no CUDA-capable device is detected")
	case r.Device < 0 || r.Device >= len(mine):
		return nil, cudaError(ErrorInvalidDevice, "no device %d: the program sees %d", r.Device, len(mine))
	}
	return mine[r.Device], nil
}

// lookup finds a device by ordinal or UUID; nil if there is none.
func lookup(devices []*device, name string) *device {
	if ordinal, err := strconv.Atoi(name); err == nil {
		if ordinal < 0 || ordinal >= len(devices) {
			return nil
		}
		return devices[ordinal]
	}
	for _, d := range devices {
		if name != "" && strings.HasPrefix(d.uuid, name) {
			return d
		}
	}
	return nil
}

// ownLimit is a program's own limit on a device; 0 for none. The last one counts. A program that names a device which it does not
// see has no limit at all, regardless of the server's: measured with driver 580 on an H200 (docs/hardware.md), and by NVIDIA with
// 615.
func ownLimit(devices []*device, d *device, r *Request) (own uint64, unlimited bool, err error) {
	limits, err := parseLimits(r.Limits)
	if err != nil {
		return 0, false, err
	}
	for _, l := range limits {
		unlimited = unlimited || lookup(visible(devices, r), l.Device) == nil
		if ordinal, err := strconv.Atoi(l.Device); err == nil && ordinal == r.Device || err != nil && lookup(devices, l.Device) == d {
			own = l.Bytes
		}
	}
	return own, unlimited, nil
}
