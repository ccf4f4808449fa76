// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"path/filepath"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// around reports a step before something happens, and has after report it afterwards.
func around(step func(what string), what string) (after func()) {
	step("before " + what)
	return func() { step("after " + what) }
}

// hookedDisk is the real disk that reports each change of a record before and after it.
type hookedDisk struct {
	store.Disk
	step func(what string)
}

func (d hookedDisk) WriteFile(path string, data []byte) error {
	state := "prepared"
	for _, s := range []records.State{records.Preparing, records.Releasing} {
		if strings.Contains(string(data), `"state":"`+string(s)+`"`) {
			state = string(s)
		}
	}
	what := "the record is written: " + state
	if filepath.Base(filepath.Dir(path)) == "copies" {
		what = "the record is copied"
	}
	defer around(d.step, what)()
	return d.Disk.WriteFile(path, data)
}

func (d hookedDisk) WriteDurable(path string, data []byte) error { return d.WriteFile(path, data) }

func (d hookedDisk) Remove(path string) error {
	defer around(d.step, "the record is removed")()
	return d.Disk.Remove(path)
}

// hookedLibrary is an NVML library that reports each change of the hardware before and after it.
type hookedLibrary struct {
	nvml.Library
	step func(what string)
}

func (l hookedLibrary) DeviceByIndex(index int) (nvml.Device, error) {
	d, err := l.Library.DeviceByIndex(index)
	return hookedDevice{d, l.step}, err
}

func (l hookedLibrary) DeviceByPCI(pci gpu.PCIAddress) (nvml.Device, error) {
	d, err := l.Library.DeviceByPCI(pci)
	return hookedDevice{d, l.step}, err
}

type hookedDevice struct {
	nvml.Device
	step func(what string)
}

func (d hookedDevice) MIG() nvml.MIG { return hookedMIG{d.Device.MIG(), d.step} }

type hookedMIG struct {
	nvml.MIG
	step func(what string)
}

func (m hookedMIG) SetMIGMode(enable bool) (activation, err error) {
	defer around(m.step, "SetMIGMode")()
	return m.MIG.SetMIGMode(enable)
}

func (m hookedMIG) CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (nvml.GPUInstance, error) {
	defer around(m.step, "the GPU instance is created")()
	gi, err := m.MIG.CreateGPUInstanceWithPlacement(profileID, at)
	return hookedGI{gi, m.step}, err
}

func (m hookedMIG) GPUInstances(profileID int) ([]nvml.GPUInstance, error) {
	found, err := m.MIG.GPUInstances(profileID)
	for i := range found {
		found[i] = hookedGI{found[i], m.step}
	}
	return found, err
}

func (m hookedMIG) GPUInstanceByID(id int) (nvml.GPUInstance, error) {
	gi, err := m.MIG.GPUInstanceByID(id)
	return hookedGI{gi, m.step}, err
}

type hookedGI struct {
	nvml.GPUInstance
	step func(what string)
}

func (g hookedGI) CreateComputeInstance(profileID int) (nvml.ComputeInstance, error) {
	defer around(g.step, "the compute instance is created")()
	ci, err := g.GPUInstance.CreateComputeInstance(profileID)
	return hookedCI{ci, g.step}, err
}

func (g hookedGI) ComputeInstances(profileID int) ([]nvml.ComputeInstance, error) {
	found, err := g.GPUInstance.ComputeInstances(profileID)
	for i := range found {
		found[i] = hookedCI{found[i], g.step}
	}
	return found, err
}

func (g hookedGI) ComputeInstanceByID(id int) (nvml.ComputeInstance, error) {
	ci, err := g.GPUInstance.ComputeInstanceByID(id)
	return hookedCI{ci, g.step}, err
}

func (g hookedGI) Destroy() error {
	defer around(g.step, "the GPU instance is destroyed")()
	return g.GPUInstance.Destroy()
}

type hookedCI struct {
	nvml.ComputeInstance
	step func(what string)
}

func (c hookedCI) Destroy() error {
	defer around(c.step, "the compute instance is destroyed")()
	return c.ComputeInstance.Destroy()
}
