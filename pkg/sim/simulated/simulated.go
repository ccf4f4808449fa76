// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// ErrUnknownModel is wrapped by Open for a model that does not exist.
var ErrUnknownModel = errors.New("unknown node model")

// NodeModels lists the models that Open knows, sorted.
func NodeModels() []string { return sim.NodeModels() }

// Open starts a session on a fresh node of a model.
func Open(ctx context.Context, model string) (*nvml.Session, error) {
	if !slices.Contains(sim.NodeModels(), model) {
		return nil, fmt.Errorf("%w %q: choose one of %s", ErrUnknownModel, model, strings.Join(sim.NodeModels(), ", "))
	}
	node, err := sim.New(model)
	if err != nil {
		return nil, fmt.Errorf("make a node of model %s: %w", model, err)
	}
	return OpenNode(ctx, node)
}

// OpenNode starts a session on a given node.
func OpenNode(ctx context.Context, node *sim.Node) (*nvml.Session, error) {
	return nvml.OpenLibrary(ctx, Library(node), node.Sysfs())
}

// Library is a given node as an NVML library.
func Library(node *sim.Node) nvml.Library { return library{node} }

// library is a simulated node as an nvml.Library.
type library struct {
	*sim.Node
}

func (l library) ConfidentialComputing() (bool, error) {
	on, err := sim.Confidential{Node: l.Node}.ConfidentialComputing()
	if err != nil || on {
		return on, err
	}
	return sim.Confidential{Node: l.Node}.ProtectedPCIe()
}

func (l library) AcceptsWork() (bool, error) { return sim.Confidential{Node: l.Node}.AcceptsWork() }

func (l library) DeviceByIndex(index int) (nvml.Device, error) {
	d, err := l.Node.DeviceByIndex(index)
	if err != nil {
		return nil, err
	}
	return device{d, d.Memory(), d.Modes()}, nil
}

func (l library) DeviceByPCI(pci gpu.PCIAddress) (nvml.Device, error) {
	d, err := l.DeviceByPCIBusID(pci.String())
	if err != nil {
		return nil, err
	}
	return device{d, d.Memory(), d.Modes()}, nil
}

// HasFunction is true: functions that the driver's release lacks return ErrNotSupported.
func (l library) HasFunction(string) bool { return true }

func (l library) EventSet() (nvml.EventSet, error) {
	set, err := l.EventSetCreate()
	if err != nil {
		return nil, err
	}
	return eventSet{set}, nil
}

// eventSet is a simulated event set as an nvml.EventSet.
type eventSet struct {
	*sim.EventSet
}

func (e eventSet) Wait(timeout time.Duration) (nvml.EventData, bool, error) {
	data, err := e.EventSet.Wait(timeout)
	if err != nil {
		if code, ok := errors.AsType[*sim.Error](err); ok && code.Code == sim.CodeTimeout {
			err = nil
		}
		return nvml.EventData{}, false, err
	}
	return nvml.EventData{
		Handle: data.Device, Type: data.Type, Data: data.Data,
		GPUInstance: data.GPUInstance, ComputeInstance: data.ComputeInstance,
	}, true, nil
}

// device is a simulated GPU as an nvml.Device.
type device struct {
	*sim.Device
	sim.DeviceMemory
	sim.Modes
}

func (d device) Links() nvml.Links { return links{d.Device.Links()} }
func (d device) MIG() nvml.MIG     { return mig{d.Device.MIG()} }

func (d device) Use() nvml.Use { return use{d.Device} }

func (d device) Handle() any { return d.Device }

func (d device) RegisterEvents(types uint64, set nvml.EventSet) error {
	of, ok := set.(eventSet)
	if !ok {
		return fmt.Errorf("register events with a set of another library: %w", gpu.ErrInvalidArgument)
	}
	return d.Device.RegisterEvents(types, of.EventSet)
}

func (d device) RunningProcesses() ([]int, error) {
	clients, err := d.Processes()
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(clients))
	for _, c := range clients {
		pids = append(pids, c.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func (d device) Temperature() error {
	_, err := d.Telemetry().Temperature()
	return err
}

func (d device) PCIInfo() (nvml.PCIInfo, error) {
	info, err := d.PCI()
	return nvml.PCIInfo{BusID: info.BusID, DeviceID: info.DeviceID, SubsystemID: info.SubsystemID}, err
}

func (d device) FieldValues(fields []nvml.Field) ([]nvml.FieldValue, error) {
	if err := d.BeginFieldValues(); err != nil {
		return nil, err
	}
	values := make([]nvml.FieldValue, 0, len(fields))
	for _, f := range fields {
		v, err := d.FieldValue(f.ID, f.Scope)
		values = append(values, nvml.FieldValue{Value: v, Err: err})
	}
	return values, nil
}

// links are the NVLinks of a simulated GPU as nvml.Links.
type links struct {
	sim.Links
}

func (l links) NVLinkRemotePCIInfo(link int) (nvml.PCIInfo, error) {
	info, err := l.NVLinkRemotePCI(link)
	return nvml.PCIInfo{BusID: info.BusID, DeviceID: info.DeviceID, SubsystemID: info.SubsystemID}, err
}

func (l links) FabricInfo() (nvml.FabricInfo, error) {
	info, err := l.Fabric()
	now := nvml.FabricInfo{ClusterUUID: info.ClusterUUID, CliqueID: int(info.Clique), State: info.State, Health: info.HealthMask}
	if info.Status != 0 {
		now.Status = fmt.Errorf("the registration with the fabric has failed with code %d", info.Status)
	}
	return now, err
}

// mig is the MIG mode of a simulated GPU and its partitions as nvml.MIG.
type mig struct {
	sim.MIG
}

func (m mig) CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (nvml.GPUInstance, error) {
	gi, err := m.MIG.CreateGPUInstanceWithPlacement(profileID, at)
	if err != nil {
		return nil, err
	}
	return gpuInstance{gi}, nil
}

func (m mig) GPUInstances(profileID int) ([]nvml.GPUInstance, error) {
	found, err := m.MIG.GPUInstances(profileID)
	instances := make([]nvml.GPUInstance, 0, len(found))
	for _, gi := range found {
		instances = append(instances, gpuInstance{gi})
	}
	return instances, err
}

func (m mig) GPUInstanceByID(id int) (nvml.GPUInstance, error) {
	gi, err := m.MIG.GPUInstanceByID(id)
	if err != nil {
		return nil, err
	}
	return gpuInstance{gi}, nil
}

// gpuInstance is a simulated GPU instance as an nvml.GPUInstance.
type gpuInstance struct {
	*sim.GPUInstance
}

func (g gpuInstance) Info() (nvml.GPUInstanceInfo, error) {
	info, err := g.GPUInstance.Info()
	return nvml.GPUInstanceInfo{ID: info.ID, ProfileID: info.ProfileID, Placement: info.Placement}, err
}

func (g gpuInstance) ComputeInstanceProfileID(enum int) (int, error) {
	info, err := g.ComputeInstanceProfileInfo(enum, 0)
	return info.ID, err
}

func (g gpuInstance) CreateComputeInstance(profileID int) (nvml.ComputeInstance, error) {
	ci, err := g.GPUInstance.CreateComputeInstance(profileID)
	if err != nil {
		return nil, err
	}
	return computeInstance{ci}, nil
}

func (g gpuInstance) ComputeInstances(profileID int) ([]nvml.ComputeInstance, error) {
	found, err := g.GPUInstance.ComputeInstances(profileID)
	instances := make([]nvml.ComputeInstance, 0, len(found))
	for _, ci := range found {
		instances = append(instances, computeInstance{ci})
	}
	return instances, err
}

func (g gpuInstance) ComputeInstanceByID(id int) (nvml.ComputeInstance, error) {
	ci, err := g.GPUInstance.ComputeInstanceByID(id)
	if err != nil {
		return nil, err
	}
	return computeInstance{ci}, nil
}

// computeInstance is a simulated compute instance as an nvml.ComputeInstance.
type computeInstance struct {
	*sim.ComputeInstance
}

func (c computeInstance) Info() (nvml.ComputeInstanceInfo, error) {
	info, err := c.ComputeInstance.Info()
	if err != nil {
		return nvml.ComputeInstanceInfo{}, err
	}
	uuid, err := sim.MIGDeviceOf(c.ComputeInstance).UUID()
	return nvml.ComputeInstanceInfo{ID: info.ID, UUID: uuid}, err
}
