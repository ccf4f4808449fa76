// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodePolicyKind is the kind of a policy file.
const NodePolicyKind = "NodePolicy"

// NodePolicy defines how a node's GPUs are offered. The zero value offers every tier with default numbers.
type NodePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata names the policy.
	Metadata PolicyMetadata `json:"metadata,omitempty"`
	// Rules are tried in order for each GPU; the first that matches holds, and defaults where none does. MaxRules at most.
	Rules []Rule `json:"rules,omitempty"`
}

// PolicyMetadata names a policy.
type PolicyMetadata struct {
	// Name by which the node label gpu.cleave.dev/policy picks the policy: lower-case letters, digits, '-' and '.', 63 at
	// most. Empty to take that of its file.
	Name string `json:"name,omitempty"`
}

// PolicyLabel is the node label that picks a policy by name, DefaultPolicy the one for nodes without it, and
// BuiltInPolicy stands for none.
const (
	PolicyLabel   = Group + "/policy"
	DefaultPolicy = "default"
	BuiltInPolicy = "built-in"
)

// ReleaseDriverLabel is the node label by which, with the value "true", Cleave releases the NVIDIA driver so that it can be
// unloaded or replaced.
const ReleaseDriverLabel = Group + "/release-driver"

// ResetLabel is the node label by which Cleave resets a GPU once nothing uses it. Its value is the name of the GPU's device, such as
// gpu-0000-1b-00-0, and may end in a dot and any text, so that a further reset of the GPU is another request.
const ResetLabel = Group + "/reset"

// AllocatedTwiceTaint marks a device that two schedulers have allocated, by a DeviceTaintRule of cleave-scheduler, until no claim has it;
// plugins do not set it.
const AllocatedTwiceTaint = Group + "/allocated-twice"

// PlacementAnnotation is that by which a pod has a strategy of cleave-scheduler of its own.
const PlacementAnnotation = Group + "/placement"

// RepackKey is the label or annotation by which a pod, with RepackNever, is not restarted by a repack; and the taint of a node that
// replacements are to leave while a repack moves them.
const (
	RepackKey   = Group + "/repack"
	RepackNever = "never"
)

// ReleasesDriver reports whether the labels of a node request the release of the driver.
func ReleasesDriver(labels map[string]string) bool { return labels[ReleaseDriverLabel] == "true" }

// Rule is how some of a node's GPUs are offered.
type Rule struct {
	// Match says for which GPUs; nil for every GPU.
	Match *Match `json:"match,omitempty"`
	// Exclude leaves the GPUs to others: nothing of them is published but what is still allocated.
	Exclude bool `json:"exclude,omitempty"`
	// Tiers that the GPUs offer. Where nothing is said: mig with mode layout, else all. An empty list is none.
	Tiers []Tier `json:"tiers,omitzero"`
	// MIG says how the GPUs are partitioned.
	MIG *MIGPolicy `json:"mig,omitempty"`
	// TimeSlice says how shares in time are sized.
	TimeSlice *TimeSlicePolicy `json:"timeSlice,omitempty"`
	// MPS says how shares of an MPS server are sized.
	MPS *MPSPolicy `json:"mps,omitempty"`
	// Health says what is done with an unhealthy GPU.
	Health *HealthPolicy `json:"health,omitempty"`
	// Publish says what ResourceSlices carry of the GPUs.
	Publish *PublishPolicy `json:"publish,omitempty"`
	// PauseClients are labels of the Node under which DaemonSets of clients, such as DCGM, select nodes with the value "true". While
	// nothing but pods without a claim keeps a GPU from a change of its MIG mode or a requested reset, the labels have another value.
	// MaxClientLabels at most.
	PauseClients []string `json:"pauseClients,omitempty"`
}

// OfferedTiers are those of the rule, or those it has where it does not say.
func (r *Rule) OfferedTiers() []Tier {
	switch {
	case r.Exclude:
		return nil
	case r.Tiers != nil:
		return r.Tiers
	case r.MIG.ModeOfUse() == MIGLayout:
		return []Tier{TierMIG}
	default:
		return Tiers()
	}
}

// MIGPolicy is how GPUs are partitioned.
type MIGPolicy struct {
	// Mode; layout where one is given, else onDemand.
	Mode MIGMode `json:"mode,omitempty"`
	// Profiles that are made on demand, by name such as 1g.10gb. Where nothing is said: all plain profiles and those with
	// media engines (+me), but not those with all of them, none, or graphics (+me.all, -me, +gfx).
	Profiles []string `json:"profiles,omitempty"`
	// Layout is how many partitions of each profile a GPU is kept partitioned into, 1 and up.
	Layout map[string]int32 `json:"layout,omitempty"`
	// Share are the profiles whose partitions many claims may have at once; in mode onDemand also such as Profiles does not
	// have, which are then offered shared only.
	Share []PartitionShare `json:"share,omitempty"`
	// DisableWhenIdle switches MIG mode off once the last partition of a GPU is destroyed, as NVIDIA's DRA driver does;
	// default false, which saves the next partition the switch. Only for mode onDemand, on boards that change the mode
	// without a reset.
	DisableWhenIdle bool `json:"disableWhenIdle,omitempty"`
	// ModeChange says when the MIG mode of GPUs that need a reset for it is changed to what the tiers want; default never.
	// Others change it as claims need it.
	ModeChange ModeChange `json:"modeChange,omitempty"`
}

// ModeChange is when the MIG mode of GPUs that need a reset for it is changed.
type ModeChange string

// When it is changed.
const (
	// ModeChangeNever takes the mode as it is found.
	ModeChangeNever ModeChange = "never"
	// ModeChangeWhenIdle resets a GPU that no claim and no process uses.
	ModeChangeWhenIdle ModeChange = "whenIdle"
)

// ModeChanges lists them.
func ModeChanges() []ModeChange { return []ModeChange{ModeChangeNever, ModeChangeWhenIdle} }

// ChangesMode reports whether the MIG mode is changed by a reset of an idle GPU.
func (m *MIGPolicy) ChangesMode() bool { return m != nil && m.ModeChange == ModeChangeWhenIdle }

// modeChangeOnly reports whether nothing but the change of modes is said, which GPUs without partitions have, too.
func (m *MIGPolicy) modeChangeOnly() bool {
	return m != nil && m.ModeChange != "" && m.Mode == "" && m.Profiles == nil && m.Layout == nil && m.Share == nil &&
		!m.DisableWhenIdle
}

// ModeOfUse is the mode, or the one that holds where none is said.
func (m *MIGPolicy) ModeOfUse() MIGMode {
	switch {
	case m == nil:
		return MIGOnDemand
	case m.Mode != "":
		return m.Mode
	case m.Layout != nil:
		return MIGLayout
	default:
		return MIGOnDemand
	}
}

// MIGMode is how partitions come to be.
type MIGMode string

// The modes.
const (
	// MIGOnDemand makes a partition when a claim needs it.
	MIGOnDemand MIGMode = "onDemand"
	// MIGLayout keeps GPUs partitioned in one way, ahead of claims.
	MIGLayout MIGMode = "layout"
	// MIGExisting offers the partitions that are there, and none is created or destroyed.
	MIGExisting MIGMode = "existing"
)

// MIGModes lists them.
func MIGModes() []MIGMode { return []MIGMode{MIGOnDemand, MIGLayout, MIGExisting} }

// HealthPolicy is what is done with an unhealthy GPU.
type HealthPolicy struct {
	// Reaction; default NoSchedule.
	Reaction HealthReaction `json:"reaction,omitempty"`
	// IgnoreXIDs are errors that are only counted, alongside those that applications cause, such as 13, 31, 43, 45, 68 and
	// 109 (NVIDIA, "XID errors"; docs/health.md has all).
	IgnoreXIDs []int32 `json:"ignoreXIDs,omitempty"`
}

// HealthReaction is the effect of the taint on the devices of an unhealthy GPU.
type HealthReaction string

// The reactions.
const (
	// ReactNone only reports.
	ReactNone HealthReaction = "None"
	// ReactNoSchedule keeps new claims away.
	ReactNoSchedule HealthReaction = "NoSchedule"
	// ReactNoExecute evicts the pods, too.
	ReactNoExecute HealthReaction = "NoExecute"
)

// HealthReactions lists them.
func HealthReactions() []HealthReaction {
	return []HealthReaction{ReactNone, ReactNoSchedule, ReactNoExecute}
}

// Match selects GPUs. Each list that is given must have the GPU, MaxListed entries at most.
type Match struct {
	// ProductNames as the driver has them, such as "NVIDIA H100 80GB HBM3".
	ProductNames []string `json:"productNames,omitempty"`
	// UUIDs such as GPU-1d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2.
	UUIDs []string `json:"uuids,omitempty"`
	// PCIAddresses such as 0000:1b:00.0.
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// Indexes of NVML. They may change with a reboot.
	Indexes []int32 `json:"indexes,omitempty"`
	// DeviceIDs are PCI device and vendor IDs as NVML joins them, such as 0x233010DE; after a colon, those of the subsystem
	// may follow, which tell boards with one GPU apart: 0x233010DE:0x16C110DE.
	DeviceIDs []string `json:"deviceIDs,omitempty"`
	// Memory of the GPU, as published. A GPU that does not report its memory does not match.
	Memory *MemoryRange `json:"memory,omitempty"`
}

// MemoryRange holds the amounts of memory from Min to Max, both included; an end that is not given is open.
type MemoryRange struct {
	// Min is the least.
	Min *resource.Quantity `json:"min,omitempty"`
	// Max is the most.
	Max *resource.Quantity `json:"max,omitempty"`
}

// Tier is a way to offer a GPU.
type Tier string

// The tiers.
const (
	TierExclusive Tier = "exclusive"
	TierMIG       Tier = "mig"
	TierTimeSlice Tier = "timeSlice"
	TierMPS       Tier = "mps"
)

// Tiers lists them.
func Tiers() []Tier { return []Tier{TierExclusive, TierMIG, TierTimeSlice, TierMPS} }

// TimeSlicePolicy is how a GPU is shared in time.
type TimeSlicePolicy struct {
	// Shares is how many claims have the GPU at once, 1 to 1000; default 4. A claim that does not say how much memory
	// it wants gets one share's part.
	Shares *int32 `json:"shares,omitempty"`
	// Memory of one share.
	Memory *MemoryCut `json:"memory,omitempty"`
	// Interval of claims that ask for none; the driver's where nothing is said.
	Interval Interval `json:"interval,omitempty"`
	// Placement of shares on the GPUs of a node; default pack.
	Placement SharePlacement `json:"placement,omitempty"`
}

// MPSPolicy is how a GPU is shared by an MPS server.
type MPSPolicy struct {
	// Shares is how many claims have the GPU at once, default 10; no more than the clients that MPS takes, see
	// MaxMPSShares.
	Shares *int32 `json:"shares,omitempty"`
	// Memory of one share.
	Memory *MemoryCut `json:"memory,omitempty"`
	// Cores are the multiprocessors of one share.
	Cores *CoreCut `json:"cores,omitempty"`
	// SharedMemory is the size of the /dev/shm that the GPU's clients share, 1Mi and up; default 1Gi.
	SharedMemory *resource.Quantity `json:"sharedMemory,omitempty"`
	// Priority of claims that ask for none; default Normal.
	Priority Priority `json:"priority,omitempty"`
	// Placement of shares on the GPUs of a node; default pack.
	Placement SharePlacement `json:"placement,omitempty"`
}

// MemoryCut bounds the amounts of memory of one share. Requests are rounded up to the minimum, and above it by steps.
type MemoryCut struct {
	// Minimum, 1Mi and up; default 1Gi.
	Minimum *resource.Quantity `json:"minimum,omitempty"`
	// Step, 1Mi and up; default 256Mi.
	Step *resource.Quantity `json:"step,omitempty"`
	// Default is what a claim gets that does not say: the minimum and whole steps. One share's part where nothing is said.
	Default *resource.Quantity `json:"default,omitempty"`
}

// CoreCut bounds the amounts of multiprocessors of one share, in percent of the GPU, or of the partition that is shared.
type CoreCut struct {
	// Minimum, 1 to 100; default 1, of a partition what is one multiprocessor of it.
	Minimum *int32 `json:"minimum,omitempty"`
	// Step, 1 to 100; default 1.
	Step *int32 `json:"step,omitempty"`
	// Default is what a claim gets that does not say: the minimum and whole steps, 100 at most. One share's part where
	// nothing is said.
	Default *int32 `json:"default,omitempty"`
}

// Defaults of a policy.
const (
	DefaultTimeSliceShares = 4
	DefaultMPSShares       = 10
	DefaultMemoryMinimum   = 1 << 30
	DefaultMemoryStep      = 256 << 20
	DefaultCoreMinimum     = 1
	DefaultCoreStep        = 1
	DefaultSharedMemory    = 1 << 30
)

// Bounds of a policy.
const (
	// MaxTimeSliceShares bounds the shares of one GPU in time.
	MaxTimeSliceShares = 1000
	// MaxMPSShares bounds those of an MPS server: MPS takes 60 clients a device from driver release 590 on, 48 before, and
	// the board's own bound holds besides (NVIDIA MPS documentation, "Limitations").
	MaxMPSShares = 60
	// MaxRules bounds the rules of a policy, MaxListed the entries of one list of a match.
	MaxRules  = 64
	MaxListed = 1024
)
