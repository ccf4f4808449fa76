// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
)

// Status is the complete state of a node for display. It is read without NVML calls, so faults do not affect it.
type Status struct {
	Model         string      `json:"model"`
	Description   string      `json:"description"`
	Root          string      `json:"root,omitempty"`
	DriverVersion string      `json:"driverVersion"`
	CUDAVersion   int         `json:"cudaVersion"` // 1000*major + 10*minor
	Unloaded      bool        `json:"unloaded"`
	BootID        string      `json:"bootID"`
	GPUs          []GPUStatus `json:"gpus"`
	Faults        []Fault     `json:"faults"`
}

// GPUStatus is the complete state of a GPU.
type GPUStatus struct {
	Index       int              `json:"index"`
	Minor       int              `json:"minor"`
	UUID        string           `json:"uuid"`
	PCI         string           `json:"pci"`
	NUMA        int              `json:"numa"` // -1: none
	Path        string           `json:"path"` // in sysfs, below devices
	Product     string           `json:"product"`
	Board       string           `json:"board"`
	MemoryMiB   uint64           `json:"memoryMiB"`
	Lost        bool             `json:"lost"`
	MIGCapable  bool             `json:"migCapable"`
	MIG         bool             `json:"mig"`
	MIGPending  bool             `json:"migPending"`
	ComputeMode int              `json:"computeMode"`
	TimeSlice   int              `json:"timeSlice"`
	Recovery    int              `json:"recoveryAction"`
	Instances   []InstanceStatus `json:"instances"`
	Clients     []Client         `json:"clients"`
	// Sessions are the visible processes that have the GPU open.
	Sessions  []Session     `json:"sessions,omitempty"`
	Limits    []LimitStatus `json:"memoryLimits,omitempty"`
	Absent    bool          `json:"absent,omitempty"`
	LinksDown bool          `json:"linksDown,omitempty"`
	// Fabric is one of Fabric*, and Virtualization one of Virtualization*, if they differ from the node's model.
	Fabric         int `json:"fabric,omitempty"`
	Virtualization int `json:"virtualization,omitempty"`
}

// LimitStatus are the memory limits of a cgroup, in bytes.
type LimitStatus struct {
	Cgroup string `json:"cgroup"`
	Soft   uint64 `json:"soft"`
	Hard   uint64 `json:"hard"` // NoMemoryLimit: none
}

// InstanceStatus is a GPU instance.
type InstanceStatus struct {
	ID        int             `json:"id"`
	Profile   string          `json:"profile"`
	ProfileID int             `json:"profileID"`
	Start     int             `json:"start"`
	Size      int             `json:"size"`
	Compute   []ComputeStatus `json:"compute"`
	// Serial distinguishes it from a later one in the same place.
	Serial uint64 `json:"serial"`
}

// ComputeStatus is a compute instance.
type ComputeStatus struct {
	ID        int    `json:"id"`
	Profile   string `json:"profile"`
	ProfileID int    `json:"profileID"`
	Start     int    `json:"start"`
	Size      int    `json:"size"`
	UUID      string `json:"uuid"`
	// ComputeMode is one of NVML_COMPUTEMODE_*.
	ComputeMode int `json:"computeMode,omitempty"`
}

// MIGText describes the MIG mode: "n/a", "off", "on", "off, on after reset".
func (g *GPUStatus) MIGText() string {
	word := func(on bool) string {
		if on {
			return "on"
		}
		return "off"
	}
	switch {
	case !g.MIGCapable:
		return "n/a"
	case g.MIG == g.MIGPending:
		return word(g.MIG)
	default:
		return word(g.MIG) + ", " + word(g.MIGPending) + " after reset"
	}
}

// StateText describes the health: "ok", "absent", "lost" or "recovery action 1".
func (g *GPUStatus) StateText() string {
	switch {
	case g.Absent:
		return "absent"
	case g.Lost:
		return "lost"
	case g.Recovery != 0:
		return "recovery action " + strconv.Itoa(g.Recovery)
	default:
		return "ok"
	}
}

// Status reads everything.
func (n *Node) Status() (*Status, error) {
	node, err := n.state.load()
	if err != nil {
		return nil, err
	}
	st := &Status{
		Model:         n.spec.Name,
		Description:   n.spec.Description,
		Root:          n.files.root,
		DriverVersion: n.spec.DriverVersion,
		CUDAVersion:   n.spec.CUDAVersion,
		Unloaded:      node.Unloaded,
		BootID:        node.BootID,
		Faults:        slices.Clone(node.Faults),
	}
	for i, d := range n.devices {
		g, err := n.gpus[i].load()
		if err != nil {
			return nil, err
		}
		st.GPUs = append(st.GPUs, d.status(g, node))
	}
	return st, nil
}

// status describes the GPU.
func (d *Device) status(st *gpuState, node *nodeState) GPUStatus {
	g := GPUStatus{
		Index:       d.index,
		Minor:       d.spec.Minor,
		UUID:        d.spec.UUID,
		PCI:         d.spec.bdf(),
		NUMA:        d.spec.NUMA,
		Path:        d.spec.Path,
		Product:     d.board.Product,
		Board:       d.board.Name,
		MemoryMiB:   d.board.MemoryMiB,
		Lost:        slices.Contains(node.Lost, d.index),
		MIGCapable:  d.board.MIG != nil,
		MIG:         st.MIG,
		MIGPending:  st.MIGPending,
		ComputeMode: st.ComputeMode,
		TimeSlice:   st.TimeSlice,
		Recovery:    st.Recovery,
		Clients:     slices.Clone(st.Clients),
		Sessions:    d.node.open.of(d.index),
		Absent:      slices.Contains(node.Absent, d.index),
		LinksDown:   slices.Contains(node.LinksDown, d.index),
		Fabric:      st.FabricState,

		Virtualization: st.Virtualization,
	}
	for _, l := range st.Limits {
		if l.current() {
			g.Limits = append(g.Limits, LimitStatus{Cgroup: l.Cgroup, Soft: l.Soft, Hard: l.Hard})
		}
	}
	for _, gi := range st.Instances {
		p := d.board.profileByID(gi.Profile)
		i := InstanceStatus{ID: gi.ID, Profile: p.Name, ProfileID: p.ID, Start: gi.Start, Size: p.Size, Serial: gi.Serial}
		for _, ci := range gi.Compute {
			c := p.computeByID(ci.Profile)
			m := MIGDeviceOf(d.MIG().ComputeInstanceHandle(gi.ID, ci.ID, ci.Serial))
			i.Compute = append(i.Compute, ComputeStatus{
				ID: ci.ID, Profile: c.name(p), ProfileID: c.ID, Start: ci.Start, Size: c.Slices, UUID: m.uuid(),
				ComputeMode: ci.ComputeMode,
			})
		}
		g.Instances = append(g.Instances, i)
	}
	return g
}
