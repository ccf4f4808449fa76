package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NodePolicyKind is the kind of a policy file.
const NodePolicyKind = "NodePolicy"

// NodePolicy says what a node's GPUs are handed out as. The zero value offers every tier with default numbers.
type NodePolicy struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        PolicyMetadata `json:"metadata,omitempty"`
	// Rules are tried in order for each GPU; the first that matches holds, and defaults where none does.
	Rules []Rule `json:"rules,omitempty"`
}

// PolicyMetadata names a policy.
type PolicyMetadata struct {
	// Name by which the node label gpu.cleave.dev/policy picks the policy; empty to take that of its file.
	Name string `json:"name,omitempty"`
}

// PolicyLabel is the node label that picks a policy by name, DefaultPolicy the one for nodes without it, and
// BuiltInPolicy stands for none.
const (
	PolicyLabel   = Group + "/policy"
	DefaultPolicy = "default"
	BuiltInPolicy = "built-in"
)

// Rule is what some of a node's GPUs are handed out as.
type Rule struct {
	// Match says for which GPUs; nil for every GPU.
	Match *Match `json:"match,omitempty"`
	// Exclude leaves the GPUs to others: nothing of them is published.
	Exclude bool `json:"exclude,omitempty"`
	// Tiers that the GPUs offer; all where nothing is said.
	Tiers []Tier `json:"tiers,omitzero"`
	// MIG says how the GPUs are partitioned.
	MIG *MIGPolicy `json:"mig,omitempty"`
	// TimeSlice and MPS say how shares are cut.
	TimeSlice *TimeSlicePolicy `json:"timeSlice,omitempty"`
	MPS       *MPSPolicy       `json:"mps,omitempty"`
	// Health says what is done with a GPU that is in trouble.
	Health *HealthPolicy `json:"health,omitempty"`
}

// MIGPolicy is how GPUs are partitioned.
type MIGPolicy struct {
	// Mode; layout where one is given, else onDemand.
	Mode MIGMode `json:"mode,omitempty"`
	// Profiles that are made on demand, by name such as 1g.10gb; the whole catalog where nothing is said: all plain
	// profiles and those with media engines (+me).
	Profiles []string `json:"profiles,omitzero"`
	// Layout is how many partitions of each profile a GPU is kept cut into.
	Layout map[string]int32 `json:"layout,omitempty"`
}

// MIGMode is how partitions come to be.
type MIGMode string

// The modes.
const (
	// MIGOnDemand makes a partition when a claim needs it.
	MIGOnDemand MIGMode = "onDemand"
	// MIGLayout keeps GPUs cut in one way, ahead of claims.
	MIGLayout MIGMode = "layout"
	// MIGExisting hands out the partitions that are there and makes or unmakes none.
	MIGExisting MIGMode = "existing"
)

// MIGModes lists them.
func MIGModes() []MIGMode { return []MIGMode{MIGOnDemand, MIGLayout, MIGExisting} }

// HealthPolicy is what is done with a GPU that is in trouble.
type HealthPolicy struct {
	// Reaction; default NoSchedule.
	Reaction HealthReaction `json:"reaction,omitempty"`
	// IgnoreXIDs are errors that are only counted, beside those that an application causes by itself (13, 31, 43, 45, 68
	// and 109; NVIDIA, "XID errors").
	IgnoreXIDs []int32 `json:"ignoreXIDs,omitempty"`
}

// HealthReaction is the effect of the taint on the devices of a GPU in trouble.
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

// Match selects GPUs. Each list that is given must have the GPU.
type Match struct {
	// ProductNames as the driver has them, such as "NVIDIA H100 80GB HBM3".
	ProductNames []string `json:"productNames,omitempty"`
	UUIDs        []string `json:"uuids,omitempty"`
	// PCIAddresses such as 0000:1b:00.0.
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// Indexes of NVML. They may change with a reboot.
	Indexes []int32 `json:"indexes,omitempty"`
	// DeviceIDs are PCI device and vendor IDs as NVML joins them, such as 0x233010DE.
	DeviceIDs []string `json:"deviceIDs,omitempty"`
	// Memory of the GPU, as published.
	Memory *MemoryRange `json:"memory,omitempty"`
}

// MemoryRange holds the amounts of memory from Min to Max, both included; an end that is not given is open.
type MemoryRange struct {
	Min *resource.Quantity `json:"min,omitempty"`
	Max *resource.Quantity `json:"max,omitempty"`
}

// Tier is a way to hand out a GPU.
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
	Shares *int32     `json:"shares,omitempty"`
	Memory *MemoryCut `json:"memory,omitempty"`
	// Interval of claims that ask for none.
	Interval Interval `json:"interval,omitempty"`
}

// MPSPolicy is how a GPU is shared by an MPS server.
type MPSPolicy struct {
	// Shares is how many claims have the GPU at once, default 10; no more than the clients that MPS takes, see
	// MaxMPSShares.
	Shares *int32     `json:"shares,omitempty"`
	Memory *MemoryCut `json:"memory,omitempty"`
	Cores  *CoreCut   `json:"cores,omitempty"`
	// SharedMemory is the size of the /dev/shm that the GPU's clients share, 1Mi and up; default 1Gi.
	SharedMemory *resource.Quantity `json:"sharedMemory,omitempty"`
	// Priority of claims that ask for none.
	Priority Priority `json:"priority,omitempty"`
}

// MemoryCut bounds the amounts of memory of one share. Requests are rounded up to the minimum, and above it by steps.
type MemoryCut struct {
	// Minimum, 1Mi and up; default 1Gi.
	Minimum *resource.Quantity `json:"minimum,omitempty"`
	// Step, 1Mi and up; default 256Mi.
	Step *resource.Quantity `json:"step,omitempty"`
	// Default is what a claim gets that does not say; one share's part where nothing is said.
	Default *resource.Quantity `json:"default,omitempty"`
}

// CoreCut bounds the amounts of multiprocessors of one share, in percent of the GPU.
type CoreCut struct {
	// Minimum, 1 to 100; default 1.
	Minimum *int32 `json:"minimum,omitempty"`
	// Step, 1 to 100; default 1.
	Step *int32 `json:"step,omitempty"`
	// Default is what a claim gets that does not say; one share's part where nothing is said.
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

// MaxTimeSliceShares bounds the shares of one GPU in time, MaxMPSShares those of an MPS server: MPS takes 60 clients a
// device from driver release 590 on, 48 before, and the board's own bound holds besides (NVIDIA MPS documentation,
// "Limitations").
const (
	MaxTimeSliceShares = 1000
	MaxMPSShares       = 60
)

// minMemory is the smallest minimum, step or size of memory, in bytes.
const minMemory = 1 << 20

// DecodeNodePolicy reads a policy from one document of YAML or JSON and checks it. The error is Problems, each with the
// field that is wrong.
func DecodeNodePolicy(data []byte) (*NodePolicy, error) {
	documents, err := Documents(data)
	if err != nil {
		return nil, asProblems(err)
	}
	switch {
	case len(documents) > 1:
		return nil, asProblems(errors.New("there are several documents: write one policy with several rules"))
	case len(documents) == 0:
		documents = []Document{{JSON: []byte("{}")}}
	case documents[0].Err != nil:
		return nil, asProblems(documents[0].Err)
	}
	p := &NodePolicy{}
	if err := decode(documents[0].JSON, NodePolicyKind, p); err != nil {
		return nil, asProblems(err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// Validate checks a policy as far as that needs no GPU. The error is Problems, each with the field that is wrong.
func (p *NodePolicy) Validate() error {
	return asError(p.validate())
}

// asError is nil where nothing is wrong, else Problems.
func asError(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return asProblems(errs.ToAggregate())
}

// PolicyName is the name that a JSON document has as a policy; empty where it has none, or is none.
func PolicyName(raw []byte) string {
	var named struct {
		Metadata PolicyMetadata `json:"metadata"`
	}
	if json.Unmarshal(raw, &named) != nil || CheckPolicyName(named.Metadata.Name) != nil {
		return ""
	}
	return named.Metadata.Name
}

// CheckPolicyName refuses what cannot name a policy: it is the value of a node label, and lower case so that no two
// differ by that alone.
func CheckPolicyName(name string) error {
	return asError(checkPolicyName(name))
}

func checkPolicyName(name string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	if name == BuiltInPolicy {
		return field.ErrorList{field.Invalid(path, name, "is the name of the policy of nodes that none is given: choose another")}
	}
	if len(name) > validation.LabelValueMaxLength || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return field.ErrorList{field.Invalid(path, name, "must be the value of a node label: lower-case letters, digits, '-' and '.', 63 at most, such as training")}
	}
	return nil
}

func (p *NodePolicy) validate() field.ErrorList {
	var errs field.ErrorList
	if p.Metadata.Name != "" {
		errs = checkPolicyName(p.Metadata.Name)
	}
	for i := range p.Rules {
		path := field.NewPath("rules").Index(i)
		errs = append(errs, p.Rules[i].validate(path)...)
		if p.Rules[i].Match.everything() && i < len(p.Rules)-1 {
			errs = append(errs, field.Required(path.Child("match"), "without it the rule takes every GPU, and those after it none: put it last"))
		}
	}
	return errs
}

// everything tells whether every GPU matches.
func (m *Match) everything() bool {
	return m == nil || len(m.ProductNames)+len(m.UUIDs)+len(m.PCIAddresses)+len(m.Indexes) == 0
}

// pciAddress has the four-digit domain of sysfs or the eight-digit one of NVML.
var pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`)

// validate refuses what no GPU can match: a rule with a slip in it would be passed over.
func (m *Match) validate(path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for i, a := range m.PCIAddresses {
		if !pciAddress.MatchString(a) {
			errs = append(errs, field.Invalid(path.Child("pciAddresses").Index(i), a, "must be a PCI address such as 0000:1b:00.0"))
		}
	}
	for i, n := range m.Indexes {
		if n < 0 {
			errs = append(errs, field.Invalid(path.Child("indexes").Index(i), n, "must be 0 or more"))
		}
	}
	return errs
}

func (r *Rule) validate(path *field.Path) field.ErrorList {
	errs := r.Match.validate(path.Child("match"))
	for i, t := range r.Tiers {
		errs = append(errs, oneOf(path.Child("tiers").Index(i), t, Tiers())...)
	}
	for _, part := range []struct {
		tier Tier
		name string
		set  bool
	}{{TierTimeSlice, "timeSlice", r.TimeSlice != nil}, {TierMPS, "mps", r.MPS != nil}} {
		if part.set && r.Tiers != nil && !slices.Contains(r.Tiers, part.tier) {
			errs = append(errs, field.Forbidden(path.Child(part.name), fmt.Sprintf("tiers does not have %q", part.tier)))
		}
	}
	if t := r.TimeSlice; t != nil {
		at := path.Child("timeSlice")
		errs = append(errs, between(at.Child("shares"), t.Shares, MaxTimeSliceShares)...)
		errs = append(errs, t.Memory.validate(at.Child("memory"))...)
	}
	if m := r.MPS; m != nil {
		at := path.Child("mps")
		errs = append(errs, between(at.Child("shares"), m.Shares, MaxMPSShares)...)
		errs = append(errs, m.Memory.validate(at.Child("memory"))...)
		errs = append(errs, atLeast(at.Child("sharedMemory"), m.SharedMemory)...)
		if c := m.Cores; c != nil {
			errs = append(errs, between(at.Child("cores", "minimum"), c.Minimum, 100)...)
			errs = append(errs, between(at.Child("cores", "step"), c.Step, 100)...)
		}
	}
	return errs
}

func (c *MemoryCut) validate(path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	return append(atLeast(path.Child("minimum"), c.Minimum), atLeast(path.Child("step"), c.Step)...)
}

// between refuses what is not 1 to most.
func between(path *field.Path, value *int32, most int32) field.ErrorList {
	if value == nil || *value >= 1 && *value <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be 1 to %d", most))}
}

// atLeast refuses less than a mebibyte.
func atLeast(path *field.Path, value *resource.Quantity) field.ErrorList {
	if value == nil {
		return nil
	}
	// What does not fit into 64 bits, or is no whole number, is not what Value makes of it.
	if n := value.Value(); n < minMemory || value.CmpInt64(n) != 0 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be a whole number of bytes, 1Mi or more")}
	}
	return nil
}
