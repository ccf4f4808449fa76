// SPDX-License-Identifier: Apache-2.0

package records

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Share is what a claim has of a shared GPU or partition.
type Share struct {
	// ID distinguishes the claim's shares of one device (shareID of the allocation).
	ID   string    `json:"id"`
	Kind gpu.Share `json:"kind"`
	// Exclusive: the claim has the GPU or partition for itself, and its own processes share it so. The allocation has no share
	// then, and nothing is counted.
	Exclusive bool `json:"exclusive,omitempty"`
	// Shares, Memory in bytes and Cores in percent of the multiprocessors, as allocated; zero where the device does
	// not count it.
	Shares int64 `json:"shares,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	Cores  int64 `json:"cores,omitempty"`
	// CgroupMemory: the driver limits each container to Memory.
	CgroupMemory bool `json:"cgroupMemory,omitempty"`
	// Interval of the GPU's time slices that the claim asks for; empty if it does not care.
	Interval string `json:"interval,omitempty"`
	MPS      *MPS   `json:"mps,omitempty"`
}

// MPS is how a claim's processes use the MPS server of their GPU. It holds what was allocated, lowered by the claim's
// parameters.
type MPS struct {
	// ThreadPercentage of the multiprocessors, 1 to 100; zero where nothing says, which is all of them.
	ThreadPercentage int64 `json:"threadPercentage"`
	// Memory of each process in bytes; zero where the device does not count it.
	Memory int64 `json:"memory,omitempty"`
	// ManyClients: the server may have more clients than it takes at full connections.
	ManyClients bool `json:"manyClients,omitempty"`
	// BelowNormal priority.
	BelowNormal bool `json:"belowNormal,omitempty"`
	// PipeDir and ShmDir are the server's directories on the host; empty until it is there.
	PipeDir string `json:"pipeDir,omitempty"`
	ShmDir  string `json:"shmDir,omitempty"`
}

// Served is a claim on the list of the node's MPS supervisor.
type Served struct {
	// Server is the device name of the whole GPU or partition.
	Server string
	Claim  types.UID
	// Owner is the DRA driver name of the plugin that registered it; empty for one of a release that gave none.
	Owner string
}

// ExclusiveID is the ID of an exclusive share: a device has one at most.
const ExclusiveID = "claim"

// Limits are those of an MPS server that is the claim's alone; nil where others share it.
func (s *Share) Limits() *MPS {
	if !s.Exclusive {
		return nil
	}
	return s.MPS
}

// Shares lists the record's shares of a kind.
func (r *Record) Shares(kind gpu.Share) []*Device {
	var found []*Device
	for i := range r.Devices {
		if s := r.Devices[i].Share; s != nil && s.Kind == kind {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// IsShared reports whether other claims may have the device, too.
func (d *Device) IsShared() bool { return d.Share != nil && !d.Share.Exclusive }

// Server is the name of the MPS server that the device would have: the device name of its GPU or partition.
func (d *Device) Server() string {
	if d.Partition != nil {
		return d.Partition.Place().DeviceName(d.GPU)
	}
	return d.GPU
}

func (s *Share) clone() *Share {
	c := *s
	if s.MPS != nil {
		m := *s.MPS
		c.MPS = &m
	}
	return &c
}
