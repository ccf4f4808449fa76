// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// Aspect is a set of things that are observed.
type Aspect uint

// The aspects.
const (
	// Inventory is the GPUs, as the driver reports them.
	Inventory Aspect = 1 << iota
	// Allocations is what claims have been allocated.
	Allocations
	// Partitions is what exists on GPUs, and what occupies devices.
	Partitions
	// Supervisor is the node's MPS supervisor.
	Supervisor
	// Driver is the NVIDIA driver's library and kernel module.
	Driver
	// Policies is the policy files.
	Policies
	// Cluster is what the API server says of the node.
	Cluster
	// Names is the state of other driver names.
	Names
	// Health is the conditions of GPUs.
	Health
	// Specs is the CDI spec of the GPUs.
	Specs
	// Listing is the claims of the API server, as listed.
	Listing
	// Publication is whether the API server has what was published.
	Publication
	// ClaimSpecs is the CDI specs of claims: some are missing.
	ClaimSpecs
	// Work is the end of work that a step did not wait for.
	Work
	// Periodic is everything, once every reconcile interval; what is still wrong then is reported again.
	Periodic
)

// Has reports whether a set has any of some aspects.
func (a Aspect) Has(some Aspect) bool { return a&some != 0 }

// Observed is all that Desired goes by. Desired changes nothing that it refers to.
type Observed struct {
	Now time.Time
	// Changed is what was observed anew since the plan before.
	Changed Aspect
	// Pass counts the observations since the loop waited last, from zero.
	Pass int
	// Ready is set once claims can be prepared; before, nothing is published.
	Ready bool

	// Compatible publishes what manifests written for NVIDIA's DRA driver need.
	Compatible bool

	// Inventory is the GPUs as the driver reports them.
	Inventory *gpu.Node
	// MemoryLimits are the GPUs on which the driver can hold a container to an amount of memory.
	MemoryLimits map[gpu.PCIAddress]bool
	// Driver is what of the NVIDIA driver is missing; nil if nothing is.
	Driver error
	// Policies are the files that could be read, PolicyErr what is wrong with them. Both may be given.
	Policies  *policy.Set
	PolicyErr error
	// MPS is why no MPS server can be started now; nil if one can.
	MPS error
	// Counted is what the cluster counts of GPUs.
	Counted cluster.Counted
	// Lists is set where the API server accepts attributes that are lists.
	Lists bool

	// Before are the names of the devices that the plugin's slices had before its start.
	Before []string

	// Allocations are the records of claims of all driver names, and claims without a record; Records are those of this
	// driver name alone.
	Allocations, Records []*records.Record
	// Unlisted is set until the claims of the API server were listed: what is allocated and has no record is not known before.
	// Listed is when the last listing began by which Allocations are, ListFailed when one failed last; zero for never.
	Unlisted           bool
	Listed, ListFailed time.Time
	// Unfinished is set while a record has something that is yet to be removed or completed.
	Unfinished bool
	// Unclaimed are the partitions of GPUs that were created for no claim and are complete.
	Unclaimed map[gpu.PCIAddress][]gpu.Place
	// Layouts are the places in which the layouts of GPUs were offered last, by what is on record of whatever boot.
	Layouts map[gpu.PCIAddress][]gpu.Place
	// Occupied are devices that cannot be allocated though no claim has them, Existing those that are partitions which exist
	// already. Both were observed under what Memory.Offered offers.
	Occupied []string
	Existing []Existing
	// Working: work of an earlier step is still being done. It is marked when it ends.
	Working bool
	// LayoutProblems is why GPUs are not partitioned as the policy wants, by the last attempt.
	LayoutProblems []LayoutProblem

	// ModeRunning is the change of a MIG mode that runs now; of no GPU for none. ModesLeft are those with a change that
	// was begun and has not ended, ModeFailures why the last attempts failed.
	ModeRunning  ModeOrder
	ModesLeft    map[string]bool
	ModeFailures map[string]ModeFailure

	// Arrived is set while the API server has had what was published last. WriteFailed is when it last refused a slice or did not
	// answer, if it has taken none since as far as that is known; zero for never.
	Arrived     bool
	WriteFailed time.Time

	// Conditions are what is wrong with GPUs, the worst first.
	Conditions map[gpu.PCIAddress][]health.Condition
	// Incomplete is why GPUs, by device name, cannot be given to containers.
	Incomplete map[string]error
	// Cluster is what the API server says of the node.
	Cluster cluster.State
	// Names are other driver names under which Cleave has served the node, in order.
	Names []DriverName

	// Memory is that of the plan before; its zero value is for the first plan.
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

// Memory is what one plan hands to the next.
type Memory struct {
	// Active is the active policy; nil while none could be used. PolicyErr is why the requested one is not active, PolicyAside
	// what is wrong with files that the node does not use, PolicyNotes what was not taken over from files of other formats.
	Active                 *Policy
	PolicyErr, PolicyAside string
	PolicyNotes            []string

	// Offered is what the GPUs offer; nil before the first plan. Previous is what they offered before something of it went:
	// its devices stay published, tainted, until Withdrawal is over; nil for none.
	Offered    *policy.Node
	Previous   *policy.Node
	Withdrawal withdrawal
	// Before is what of Observed.Before can be offered; nil for nothing, and after the first publication.
	Before *policy.Node

	// MPSOffered is set once devices of type mps were published; they stay, tainted, when the supervisor goes away. MPSKnown is
	// set once the supervisor was asked, MPSAway while it does not answer.
	MPSOffered, MPSKnown, MPSAway bool

	// Hiding is how far the withdrawal of all devices for a conflict is, Hidden is set once only what is allocated is published.
	Hiding withdrawal
	Hidden bool

	// Conflict is why nothing new is published, Layouts the layout problems, Incomplete the problems of the CDI spec by device
	// and Unreadable the GPUs that cannot be read: each as last reported.
	Conflict   string
	Layouts    string
	Incomplete map[string]string
	Unreadable []string
	// Inventory is the GPUs as last reported.
	Inventory *gpu.Node
	// Modes are the GPUs whose MIG mode is to be changed, by device.
	Modes map[string]ModeMemory

	// Recovered is when recovery ran last; Unfinished since when there is something to finish.
	Recovered, Unfinished time.Time
	// LayoutsDue is set while layouts have to wait.
	LayoutsDue bool

	// Published is what the last slices were made of; nil before the first.
	Published *View
}

// hold is why nothing new may be published because of other driver names; empty where it may.
func (o *Observed) hold() string {
	var holds []string
	for _, n := range o.Names {
		if why := names.Hold(n.Driver, n.State); why != "" {
			holds = append(holds, why)
		}
	}
	return strings.Join(holds, "; ")
}

// isName reports whether a device of another driver is one that Cleave publishes under another of its names.
func (o *Observed) isName(d cluster.Device) bool {
	if !cluster.IsCleaveName(d.Name) {
		return false
	}
	for _, n := range o.Names {
		if n.Driver == d.Driver {
			return true
		}
	}
	return false
}

// text of an error; empty where there is none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
