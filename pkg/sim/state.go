// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// maxGPUs bounds the GPUs of a node: NVML handles have no room for more.
const maxGPUs = 32

// noInstance is NVML's ID for no GPU or compute instance.
const noInstance = 0xffffffff

// nodeState is the mutable node-wide state.
type nodeState struct {
	// Boots counts them, and BootID changes with each.
	Boots  int    `json:"boots"`
	BootID string `json:"bootID"`
	// Unloaded means that the kernel driver is not loaded.
	Unloaded bool `json:"unloaded,omitempty"`
	// Lost are the indexes of the GPUs that fell off the bus, ascending.
	Lost []int `json:"lost,omitempty"`
	// UUIDs of GPUs that have replaced earlier ones, by index.
	UUIDs map[int]string `json:"uuids,omitempty"`
	// Faults in the order in which they were injected.
	Faults    []Fault `json:"faults,omitempty"`
	LastFault int     `json:"lastFault,omitempty"`
	// Absent are the indexes of GPUs that are not in the node, LinksDown of those whose NVLinks are not trained; ascending.
	Absent    []int `json:"absent,omitempty"`
	LinksDown []int `json:"linksDown,omitempty"`
	// Unloads counts how often the driver was unloaded.
	Unloads int `json:"unloads,omitempty"`
	// Confidential is one of Confidential*.
	Confidential int `json:"confidential,omitempty"`
	// NoFabricManager means that Fabric Manager does not run.
	NoFabricManager bool `json:"noFabricManager,omitempty"`
	// Quirks of the driver, sorted.
	Quirks []Quirk `json:"quirks,omitempty"`
}

// gpuState is the mutable state of one GPU.
type gpuState struct {
	MIG        bool `json:"mig,omitempty"`
	MIGPending bool `json:"migPending,omitempty"`
	// Instances in ascending ID.
	Instances []gpuInstance `json:"instances,omitempty"`
	// LastSerial is the number of instances ever created; it distinguishes an instance from a later one with the same ID.
	LastSerial  uint64 `json:"lastSerial,omitempty"`
	ComputeMode int    `json:"computeMode,omitempty"`
	// TimeSlice is the setting of nvidia-smi compute-policy: 0 default, 1 short, 2 medium, 3 long.
	TimeSlice   int  `json:"timeSlice,omitempty"`
	Persistence bool `json:"persistence,omitempty"`
	// Recovery is field 230 (GPU_RECOVERY_ACTION).
	Recovery int `json:"recovery,omitempty"`
	// RemapFailed is field 145 (REMAPPED_FAILURE), which survives resets.
	RemapFailed bool `json:"remapFailed,omitempty"`
	// Virtualization is one of Virtualization*; zero for the node model's.
	Virtualization int `json:"virtualization,omitempty"`
	// MinorShift is added to the minor number of the GPU.
	MinorShift int `json:"minorShift,omitempty"`
	// FabricState, if not zero, is the GPU's fabric state instead of completed: for FabricLooks more calls if that is above zero,
	// otherwise forever.
	FabricState int `json:"fabricState,omitempty"`
	FabricLooks int `json:"fabricLooks,omitempty"`
	// Clients are the processes that use the device, by PID.
	Clients []Client `json:"clients,omitempty"`
	Work    work     `json:"work,omitzero"`
	// Limits of memory, by cgroup.
	Limits []memoryLimit `json:"limits,omitempty"`
	// Events are the latest, in order of Seq.
	Events    []event `json:"events,omitempty"`
	LastEvent uint64  `json:"lastEvent,omitempty"`
}

// gpuInstance is an existing GPU instance.
type gpuInstance struct {
	ID      int               `json:"id"`
	Profile int               `json:"profile"` // profile ID
	Start   int               `json:"start"`
	Serial  uint64            `json:"serial"`
	Compute []computeInstance `json:"compute,omitempty"` // ascending ID
}

// computeInstance is an existing compute instance.
type computeInstance struct {
	ID      int    `json:"id"`
	Profile int    `json:"profile"` // profile ID
	Start   int    `json:"start"`   // in compute slices of the GPU instance
	Serial  uint64 `json:"serial"`
	// ComputeMode of the partition: in MIG mode the GPU has none of its own.
	ComputeMode int `json:"computeMode,omitempty"`
}

// Client is a process that uses a GPU.
type Client struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
	// Memory it uses, in bytes.
	Memory uint64 `json:"memory,omitempty"`
	// GPUInstance and ComputeInstance are those of its partition; both -1 on the whole GPU.
	GPUInstance     int `json:"gpuInstance"`
	ComputeInstance int `json:"computeInstance"`
	// Leaked means that it has the GPU instance open without computing there: NVML does not list it, and compute instances can be
	// destroyed, but not the GPU instance (DCGM#276; open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:6171-6177).
	Leaked bool `json:"leaked,omitempty"`
	// Load is how busy it keeps its GPU or partition; nil for the usual.
	Load *Load `json:"load,omitempty"`
	// Held means that the process itself is the client (see Hold), until it ends.
	Held bool `json:"held,omitempty"`
}

// event is an event for event sets.
type event struct {
	Seq             uint64 `json:"seq"`
	Type            uint64 `json:"type"`
	Data            uint64 `json:"data"`
	GPUInstance     uint32 `json:"gpuInstance"`
	ComputeInstance uint32 `json:"computeInstance"`
}

// keptEvents is the number of events that a GPU keeps for event sets.
const keptEvents = 32

// clone copies the state so that the copy can be changed.
func (s *nodeState) clone() *nodeState {
	c := *s
	c.Lost = slices.Clone(s.Lost)
	c.UUIDs = maps.Clone(s.UUIDs)
	c.Faults = slices.Clone(s.Faults)
	c.Absent = slices.Clone(s.Absent)
	c.LinksDown = slices.Clone(s.LinksDown)
	c.Quirks = slices.Clone(s.Quirks)
	return &c
}

// clone copies the state so that the copy can be changed.
func (s *gpuState) clone() *gpuState {
	c := *s
	c.Instances = slices.Clone(s.Instances)
	for i := range c.Instances {
		c.Instances[i].Compute = slices.Clone(c.Instances[i].Compute)
	}
	c.Clients = slices.Clone(s.Clients)
	c.Limits = slices.Clone(s.Limits)
	c.Events = slices.Clone(s.Events)
	return &c
}

// addEvent appends an event and drops the oldest.
func (s *gpuState) addEvent(e event) {
	s.LastEvent++
	e.Seq = s.LastEvent
	s.Events = append(s.Events, e)
	if n := len(s.Events) - keptEvents; n > 0 {
		s.Events = slices.Delete(s.Events, 0, n)
	}
}

// decodeNodeState decodes and checks the state of a node with a number of GPUs.
func decodeNodeState(data []byte, gpus int) (*nodeState, error) {
	var s nodeState
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("decode node state: %w", err)
	}
	for _, i := range s.Lost {
		if i < 0 || i >= gpus {
			return nil, fmt.Errorf("decode node state: lost GPU %d of %d", i, gpus)
		}
	}
	for _, i := range slices.Concat(s.Absent, s.LinksDown) {
		if i < 0 || i >= gpus {
			return nil, fmt.Errorf("decode node state: GPU %d of %d", i, gpus)
		}
	}
	return &s, nil
}

// decodeGPUState decodes the state of a GPU and checks it against its board, so that later steps meet no impossible instances.
func decodeGPUState(data []byte, b *Board) (*gpuState, error) {
	var s gpuState
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("decode GPU state: %w", err)
	}
	if (s.MIG || s.MIGPending || len(s.Instances) > 0) && b.MIG == nil {
		return nil, fmt.Errorf("decode GPU state: MIG on board %s, which has none", b.Name)
	}
	if len(s.Instances) > 0 && !s.MIG {
		return nil, fmt.Errorf("decode GPU state: instances without MIG mode")
	}
	var made gpuState
	for _, gi := range s.Instances {
		p := b.profileByID(gi.Profile)
		if p == nil {
			return nil, fmt.Errorf("decode GPU state: GPU instance %d has unknown profile %d", gi.ID, gi.Profile)
		}
		if err := made.admit(b, p, gi.Start); err != nil {
			return nil, fmt.Errorf("decode GPU state: GPU instance %d: %w", gi.ID, err)
		}
		if n := len(made.Instances); gi.ID != instanceID(b.MIG.Slices, gi.Start, p.Size) || n > 0 && made.Instances[n-1].ID >= gi.ID {
			return nil, fmt.Errorf("decode GPU state: GPU instance %d at %d:%d has the wrong ID or order", gi.ID, gi.Start, p.Size)
		}
		if err := checkCompute(p, gi.Compute); err != nil {
			return nil, fmt.Errorf("decode GPU state: GPU instance %d: %w", gi.ID, err)
		}
		made.Instances = append(made.Instances, gi)
	}
	if s.TimeSlice < 0 || s.TimeSlice > 3 {
		return nil, fmt.Errorf("decode GPU state: time slice %d", s.TimeSlice)
	}
	if err := checkLimits(s.Limits); err != nil {
		return nil, fmt.Errorf("decode GPU state: %w", err)
	}
	return &s, nil
}

func checkCompute(p *Profile, compute []computeInstance) error {
	var made gpuInstance
	for _, ci := range compute {
		c := p.computeByID(ci.Profile)
		if c == nil {
			return fmt.Errorf("compute instance %d has unknown profile %d", ci.ID, ci.Profile)
		}
		if err := made.admit(p, c, ci.Start); err != nil {
			return fmt.Errorf("compute instance %d: %w", ci.ID, err)
		}
		if n := len(made.Compute); ci.ID < 0 || ci.ID >= maxCompute || n > 0 && made.Compute[n-1].ID >= ci.ID {
			return fmt.Errorf("compute instance %d has the wrong ID or order", ci.ID)
		}
		made.Compute = append(made.Compute, ci)
	}
	return nil
}
