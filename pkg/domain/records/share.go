// SPDX-License-Identifier: Apache-2.0

package records

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Share is a claim's share of a shared GPU or partition.
type Share struct {
	// ID distinguishes the claim's shares of one device (shareID of the allocation).
	ID   string    `json:"id"`
	Kind gpu.Share `json:"kind"`
	// Exclusive: the GPU or partition is allocated to the claim alone, and shared by its own processes. The allocation then has no
	// share, and nothing is counted.
	Exclusive bool `json:"exclusive,omitempty"`
	// Shares, Memory in bytes and Cores in percent of the multiprocessors, as allocated; zero if the device does
	// not count it.
	Shares int64 `json:"shares,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	Cores  int64 `json:"cores,omitempty"`
	// CgroupMemory: the driver limits each container to Memory.
	CgroupMemory bool `json:"cgroupMemory,omitempty"`
	// Interval of the GPU's time slices that the claim requests; empty for any.
	Interval string `json:"interval,omitempty"`
	MPS      *MPS   `json:"mps,omitempty"`
}

// MPS configures how a claim's processes use the MPS server of their GPU: the allocated amounts, lowered by the claim's
// parameters.
type MPS struct {
	// ThreadPercentage of the multiprocessors, 1 to 100; zero if unspecified, which means all of them.
	ThreadPercentage int64 `json:"threadPercentage"`
	// Memory of each process in bytes; zero if the device does not count it.
	Memory int64 `json:"memory,omitempty"`
	// ManyClients: the server may get more clients than it supports with full connections.
	ManyClients bool `json:"manyClients,omitempty"`
	// BelowNormal priority.
	BelowNormal bool `json:"belowNormal,omitempty"`
	// PipeDir and ShmDir are the server's directories on the host; empty until it runs.
	PipeDir string `json:"pipeDir,omitempty"`
	ShmDir  string `json:"shmDir,omitempty"`
}

// Served is a claim registered with the node's MPS supervisor.
type Served struct {
	// Server is the device name of the whole GPU or partition.
	Server string
	Claim  types.UID
	// Owner is the DRA driver name of the plugin that registered it; empty for releases that did not pass one.
	Owner string
}

// ExclusiveID is the ID of an exclusive share: a device has at most one.
const ExclusiveID = "claim"

// Limits returns the limits of an MPS server that serves the claim alone; nil if others share it.
func (s *Share) Limits() *MPS {
	if !s.Exclusive {
		return nil
	}
	return s.MPS
}

// Shares lists the record's shares of one kind.
func (r *Record) Shares(kind gpu.Share) []*Device {
	var found []*Device
	for i := range r.Devices {
		if s := r.Devices[i].Share; s != nil && s.Kind == kind {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// IsShared reports whether the device may be allocated to other claims as well.
func (d *Device) IsShared() bool { return d.Share != nil && !d.Share.Exclusive }

// Server returns the name of the MPS server that the device would use: the device name of its GPU or partition.
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
