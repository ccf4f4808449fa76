// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/driver/names"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// Aspect is a set of observed things.
type Aspect uint

// The aspects.
const (
	// Inventory is the GPUs as reported by the driver.
	Inventory Aspect = 1 << iota
	// Allocations is the devices allocated to claims.
	Allocations
	// Partitions is the existing partitions, and the obstacles to allocating devices.
	Partitions
	// Supervisor is the node's MPS supervisor.
	Supervisor
	// Driver is the NVIDIA driver's library and kernel module.
	Driver
	// Policies is the policy files.
	Policies
	// Cluster is the node's state in the API server.
	Cluster
	// Names is the state of other driver names.
	Names
	// Health is the conditions of GPUs.
	Health
	// Specs is the CDI spec of the GPUs.
	Specs
	// Listing is the listed claims of the API server.
	Listing
	// Publication is whether published slices have arrived at the API server.
	Publication
	// ClaimSpecs are the CDI specs of claims: some are missing.
	ClaimSpecs
	// Work is the end of background work.
	Work
	// Notices are the notices about the node's machine.
	Notices
	// Periodic is everything, once every reconcile interval; persisting problems are then reported again.
	Periodic
)

// Has reports whether a set includes any of some aspects.
func (a Aspect) Has(some Aspect) bool { return a&some != 0 }

// Observed is the input of Desired, which modifies nothing that it refers to.
type Observed struct {
	Now time.Time
	// Changed are the aspects observed since the previous plan.
	Changed Aspect
	// Pass counts the observations since the loop last waited, from zero.
	Pass int
	// Ready is set once claims can be prepared; before, nothing is published.
	Ready bool

	// Compatible publishes the attributes that manifests written for NVIDIA's DRA driver need.
	Compatible bool

	// Inventory is the GPUs as the driver reports them.
	Inventory *gpu.Node
	// MemoryLimits are the GPUs on which the driver can limit a container's memory.
	MemoryLimits map[gpu.PCIAddress]bool
	// Driver names the missing parts of the NVIDIA driver; nil if it is complete.
	Driver error
	// Policies are the readable files, PolicyErr the errors in them. Both may be set.
	Policies  *policy.Set
	PolicyErr error
	// MPS is why no MPS server can be started now; nil if one can.
	MPS error
	// Counted describes how the cluster counts consumption of GPUs.
	Counted counting.Counted
	// Lists is set if the API server accepts list attributes.
	Lists bool

	// Before are the names of the devices in the plugin's slices before its start.
	Before []string

	// Allocations are the records of claims of all driver names, and claims without a record; Records are those of this
	// driver name alone.
	Allocations, Records []*records.Record
	// Unlisted is set until the claims of the API server have been listed: before, allocations without a record are unknown. Listed
	// is the start of the listing that Allocations reflect, ListFailed the time of the last failure; zero for never.
	Unlisted           bool
	Listed, ListFailed time.Time
	// Unfinished is set while a record awaits removal or completion.
	Unfinished bool
	// Unclaimed are the complete partitions that no claim owns, by GPU.
	Unclaimed map[gpu.PCIAddress][]gpu.Place
	// Layouts are the recorded places at which the layouts of GPUs were last offered, in any boot.
	Layouts map[gpu.PCIAddress][]gpu.Place
	// Occupied are devices that cannot be allocated though no claim has them, Existing the partitions that already exist. Both were
	// observed for the devices of Memory.Offered.
	Occupied []string
	Existing []Existing
	// Working is set while work of an earlier step is running. Its end is marked.
	Working bool
	// Recovered is when the last recovery ended; zero for none.
	Recovered time.Time
	// LayoutProblems are the reasons, from the last attempt, why GPUs are not partitioned as the policy wants.
	LayoutProblems []LayoutProblem

	// ModeRunning is the running change of a MIG mode; zero for none. ModesLeft are the GPUs with an unfinished change,
	// ModeFailures the errors of the last attempts.
	ModeRunning  ModeOrder
	ModesLeft    map[string]bool
	ModeFailures map[string]ModeFailure

	// ResetDone is the last request for a reset that was carried out; empty for none.
	ResetDone string

	// Arrived is set once the API server has the last published slices. WriteFailed is when it last refused a slice or did not
	// answer, unless it is known to have accepted one since; zero for never.
	Arrived     bool
	WriteFailed time.Time
	// Writing is set while slices wait for the writes of others. Written is when a write last began, or was seen to end.
	Writing bool
	Written time.Time

	// Conditions are the GPUs' health problems, the worst first.
	Conditions map[gpu.PCIAddress][]health.Condition
	// Incomplete is why GPUs, by device name, cannot be injected into containers.
	Incomplete map[string]error
	// Cluster is the node's state in the API server.
	Cluster cluster.State
	// Notices are those about the node's machine that stand, NoticePolicy is the reaction to them.
	Notices      []notices.Standing
	NoticePolicy notices.Policy
	// Names are other driver names under which Cleave has served the node, in order.
	Names []DriverName

	// Memory is that of the previous plan; zero for the first.
	Memory Memory
}

// Existing is a partition that exists before a claim has it.
type Existing struct {
	Device, UUID string
}

// LayoutProblem is why a GPU is not partitioned as its policy wants.
type LayoutProblem struct {
	// GPU is the name of its whole-GPU device.
	GPU string
	Err error
}

// DriverName is another driver name under which Cleave has served the node.
type DriverName struct {
	Driver string
	State  names.Observed
}

// Memory is the state passed from plan to plan.
type Memory struct {
	// Active is the active policy; nil while none was usable. PolicyErr is why the requested one is not active, PolicyAside the
	// errors in files that the node does not use, PolicyNotes the settings of other file formats that were not converted.
	Active                 *Policy
	PolicyErr, PolicyAside string
	PolicyNotes            []string

	// Offered is what the GPUs offer; nil before the first plan. Previous is what they offered before devices were withdrawn: these
	// stay published, tainted, until Withdrawal is over; nil for none.
	Offered    *policy.Node
	Previous   *policy.Node
	Withdrawal withdrawal
	// Before is the part of Observed.Before that can be offered; nil for none, and after the first publication.
	Before *policy.Node

	// MPSOffered is set once devices of type mps were published; they stay, tainted while the supervisor is unavailable. MPSKnown
	// is set once the supervisor was queried, MPSAway while it does not answer.
	MPSOffered, MPSKnown, MPSAway bool

	// Hiding is the progress of withdrawing all devices because of a conflict, Hidden is set once only allocated devices are
	// published.
	Hiding withdrawal
	Hidden bool

	// Conflict is why nothing new is published, Layouts the layout problems, Incomplete the problems of the CDI spec by device
	// and Unreadable the GPUs that cannot be read: each as last reported.
	Conflict   string
	Layouts    string
	Incomplete map[string]string
	Unreadable []string
	// UnreadableAt is when all of Unreadable were last reported.
	UnreadableAt time.Time
	// Inventory is the GPUs as last reported.
	Inventory *gpu.Node
	// Modes are the GPUs whose MIG mode must change, or that are to be reset, by device. NotReset is the last request that was reported
	// not to be carried out: it names no GPU, or was carried out before. ResetAt is when the last reset was reported.
	Modes    map[string]ModeMemory
	NotReset string
	ResetAt  time.Time
	// Pause is the pause of clients that have such GPUs open.
	Pause PauseMemory

	// Notice is what followed from the notices about the node's machine.
	Notice notices.Decision

	// Recovered is when recovery last began; Unfinished since when there is work left for it.
	Recovered, Unfinished time.Time
	// LayoutsDue is set while layouts are waiting.
	LayoutsDue bool

	// Published is the view that the last slices were built from; nil before the first.
	Published *View
}

// hold is why other driver names forbid publishing anything new; empty if they do not.
func (o *Observed) hold() string {
	var holds []string
	for _, n := range o.Names {
		if why := names.Hold(n.Driver, n.State); why != "" {
			holds = append(holds, why)
		}
	}
	return strings.Join(holds, "; ")
}

// isName reports whether Cleave publishes a device under another of its driver names.
func (o *Observed) isName(d cluster.Device) bool {
	return cluster.IsCleaveName(d.Name) && slices.ContainsFunc(o.Names, func(n DriverName) bool { return n.Driver == d.Driver })
}

// text of an error; empty for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
