// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DecodeNodePolicy decodes and validates a policy from one document of YAML or JSON. The error is Problems, each with the field.
func DecodeNodePolicy(data []byte) (*NodePolicy, error) {
	documents, err := Documents(data)
	if err != nil {
		return nil, ProblemsOf(err)
	}
	switch {
	case len(documents) > 1:
		return nil, ProblemsOf(errors.New("there are several documents: write one policy with several rules"))
	case len(documents) == 0:
		documents = []Document{{JSON: []byte("{}")}}
	case documents[0].Err != nil:
		return nil, ProblemsOf(documents[0].Err)
	}
	p := &NodePolicy{}
	if err := decode(documents[0].JSON, APIVersion, NodePolicyKind, p); err != nil {
		return nil, ProblemsOf(err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// Validate validates a policy as far as possible without GPUs. The error is Problems, each with the field.
func (p *NodePolicy) Validate() error {
	return asError(p.validate())
}

// asError converts a list to Problems; nil if it is empty.
func asError(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return ProblemsOf(errs.ToAggregate())
}

// PolicyName is the name of a policy in a JSON document, empty if it has none. It is not known if the document cannot be read, or if the
// name is none that a policy can have.
func PolicyName(raw []byte) (name string, known bool) {
	var named struct {
		Metadata PolicyMetadata `json:"metadata"`
	}
	if json.Unmarshal(raw, &named) != nil {
		return "", false
	}
	name = named.Metadata.Name
	if name != "" && CheckPolicyName(name) != nil {
		return "", false
	}
	return name, true
}

// PolicyNameOf converts the name of a configuration of another format, or a node's label, to a policy's name by replacing invalid
// characters.
func PolicyNameOf(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// CheckPolicyName rejects invalid names of policies: a name is the value of a node label, and lower case so that no two differ only
// by case.
func CheckPolicyName(name string) error {
	return asError(checkPolicyName(name))
}

func checkPolicyName(name string) field.ErrorList {
	path := field.NewPath("metadata", "name")
	if name == BuiltInPolicy {
		return field.ErrorList{field.Invalid(path, name, "is the name of the policy of nodes that none is given: choose another")}
	}
	if len(name) > validation.LabelValueMaxLength || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return field.ErrorList{field.Invalid(path, name,
			"must be the value of a node label: lower-case letters, digits, '-' and '.', 63 at most, such as training")}
	}
	return nil
}

func (p *NodePolicy) validate() field.ErrorList {
	var errs field.ErrorList
	if p.Metadata.Name != "" {
		errs = checkPolicyName(p.Metadata.Name)
	}
	if len(p.Rules) > MaxRules {
		return append(errs, field.TooMany(field.NewPath("rules"), len(p.Rules), MaxRules))
	}
	for i := range p.Rules {
		errs = append(errs, p.Rules[i].validate(field.NewPath("rules").Index(i))...)
	}
	if len(errs) > 0 {
		return errs
	}
	return unreached(p.Rules)
}

func (r *Rule) validate(path *field.Path) field.ErrorList {
	errs := r.Match.validate(path.Child("match"))
	errs = append(errs, eachOnce(path.Child("tiers"), r.Tiers, Tiers())...)
	errs = append(errs, r.validateParts(path)...)
	errs = append(errs, r.MIG.validate(path.Child("mig"))...)
	errs = append(errs, r.TimeSlice.validate(path.Child("timeSlice"))...)
	errs = append(errs, r.MPS.validate(path.Child("mps"))...)
	errs = append(errs, r.Publish.validate(path.Child("publish"), r)...)
	errs = append(errs, r.validateClients(path.Child("pauseClients"))...)
	return append(errs, r.Health.validate(path.Child("health"))...)
}

func (t *TimeSlicePolicy) validate(path *field.Path) field.ErrorList {
	if t == nil {
		return nil
	}
	errs := between(path.Child("shares"), t.Shares, MaxTimeSliceShares)
	errs = append(errs, t.Memory.validate(path.Child("memory"))...)
	if t.Placement != "" {
		errs = append(errs, oneOf(path.Child("placement"), t.Placement, SharePlacements())...)
	}
	if t.Interval != "" {
		errs = append(errs, oneOf(path.Child("interval"), t.Interval, Intervals())...)
	}
	return errs
}

func (m *MPSPolicy) validate(path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := between(path.Child("shares"), m.Shares, MaxMPSShares)
	errs = append(errs, m.Memory.validate(path.Child("memory"))...)
	errs = append(errs, m.Cores.validate(path.Child("cores"))...)
	errs = append(errs, CheckMemory(path.Child("sharedMemory"), m.SharedMemory)...)
	if m.Placement != "" {
		errs = append(errs, oneOf(path.Child("placement"), m.Placement, SharePlacements())...)
	}
	if m.Priority != "" {
		errs = append(errs, oneOf(path.Child("priority"), m.Priority, Priorities())...)
	}
	return errs
}

// validateParts rejects settings for tiers that the rule does not offer.
func (r *Rule) validateParts(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	layout := r.MIG.ModeOfUse() == MIGLayout
	if layout && !r.Exclude && slices.Contains(r.Tiers, TierMIG) && len(r.Tiers) > 1 {
		errs = append(errs, field.Invalid(path.Child("tiers"), r.Tiers,
			"a GPU with a layout is always partitioned and offers its partitions alone: leave out tiers, or use mig.mode onDemand"))
	}
	if r.Exclude && r.Tiers != nil {
		errs = append(errs, field.Forbidden(path.Child("tiers"), "the rule excludes its GPUs: remove one of the two"))
	}
	for _, part := range []struct {
		tier Tier
		set  bool
	}{{TierMIG, r.MIG != nil}, {TierTimeSlice, r.TimeSlice != nil}, {TierMPS, r.MPS != nil}} {
		switch at := path.Child(string(part.tier)); {
		case !part.set || slices.Contains(r.OfferedTiers(), part.tier):
		case part.tier == TierMIG && len(r.OfferedTiers()) > 0 && r.MIG.modeChangeOnly():
		case r.Exclude:
			errs = append(errs, field.Forbidden(at, "the rule excludes its GPUs: remove one of the two"))
		case r.Tiers != nil:
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("tiers does not have %q", part.tier)))
		default:
			errs = append(errs, field.Forbidden(at, "a GPU with a layout is always partitioned and offers its partitions alone"))
		}
	}
	return append(errs, r.validateModeChange(path.Child("mig", "modeChange"))...)
}

// validateModeChange rejects changes of the MIG mode by rules that do not determine a mode.
func (r *Rule) validateModeChange(path *field.Path) field.ErrorList {
	tiers := r.OfferedTiers()
	switch {
	case !r.MIG.ChangesMode():
		return nil
	case r.MIG.ModeOfUse() == MIGExisting:
		return field.ErrorList{field.Forbidden(path, "mode existing leaves MIG mode and partitions to others: remove one of the two")}
	case slices.Contains(tiers, TierMIG) && len(tiers) > 1:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("the tiers %q want the GPUs in MIG mode and out of it, and the mode does not "+
			"follow single claims: set tiers to [mig], or leave mig out of them", tiers))}
	default:
		return nil
	}
}

// profileName is the syntax of names of profiles: 1g.10gb, 1g.10gb+me, 1g.24gb+me.all, 1g.24gb+gfx, 1g.24gb-me. The driver rounds
// memory to whole gigabytes.
var profileName = regexp.MustCompile(offeredProfile)

// checkProfile rejects what is the name of no profile. policy.Check knows those of a board.
func checkProfile(path *field.Path, name string) field.ErrorList {
	if !profileName.MatchString(name) {
		return field.ErrorList{field.Invalid(path, name, "must be the name of a MIG profile, such as 1g.10gb or 1g.10gb+me")}
	}
	return nil
}

func (m *MIGPolicy) validate(path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.Mode != "" {
		errs = append(errs, oneOf(path.Child("mode"), m.Mode, MIGModes())...)
	}
	at := path.Child("layout")
	switch mode := m.ModeOfUse(); {
	case mode == MIGLayout && m.Layout == nil:
		errs = append(errs, field.Required(at, `mode is layout: say how many partitions of which profile, such as {"1g.10gb": 7}`))
	case m.Layout != nil && len(m.Layout) == 0:
		errs = append(errs, field.Required(at, `say how many partitions of which profile, such as {"1g.10gb": 7}, or leave it out`))
	case m.Layout != nil && mode != MIGLayout:
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("mode is %s: remove one of the two", mode)))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Layout)) {
		errs = append(errs, checkProfile(at.Key(name), name)...)
		if n := m.Layout[name]; n < 1 {
			errs = append(errs, field.Invalid(at.Key(name), n, "must be 1 or more"))
		}
	}
	if m.ModeChange != "" {
		errs = append(errs, oneOf(path.Child("modeChange"), m.ModeChange, ModeChanges())...)
	}
	if mode := m.ModeOfUse(); m.DisableWhenIdle && mode != MIGOnDemand {
		errs = append(errs, field.Forbidden(path.Child("disableWhenIdle"),
			fmt.Sprintf("it is for mode %s, and the mode is %s: remove one of the two", MIGOnDemand, mode)))
	}
	at = path.Child("profiles")
	switch mode := m.ModeOfUse(); {
	case m.Profiles == nil:
	case mode == MIGLayout:
		errs = append(errs, field.Forbidden(at, "the layout says which profiles there are"))
	case mode == MIGExisting:
		errs = append(errs, field.Forbidden(at, "mode existing offers the partitions that are there, of whatever profile"))
	case len(m.Profiles) == 0:
		errs = append(errs, field.Required(at, "name one, such as 1g.10gb, or leave it out for all; for no partitions leave mig out of tiers"))
	}
	for i, name := range m.Profiles {
		errs = append(errs, checkProfile(at.Index(i), name)...)
		if slices.Contains(m.Profiles[:i], name) {
			errs = append(errs, field.Duplicate(at.Index(i), name))
		}
	}
	return append(errs, m.validateShares(path.Child("share"))...)
}

func (h *HealthPolicy) validate(path *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	var errs field.ErrorList
	if h.Reaction != "" {
		errs = append(errs, oneOf(path.Child("reaction"), h.Reaction, HealthReactions())...)
	}
	for i, xid := range h.IgnoreXIDs {
		if xid < 0 {
			errs = append(errs, field.Invalid(path.Child("ignoreXIDs").Index(i), xid, "must be 0 or more"))
		}
	}
	return errs
}

// minMemory is the smallest minimum, step or size of memory, in bytes.
const minMemory = 1 << 20

func (c *MemoryCut) validate(path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := slices.Concat(CheckMemory(path.Child("minimum"), c.Minimum), CheckMemory(path.Child("step"), c.Step),
		CheckMemory(path.Child("default"), c.Default))
	if c.Default == nil || len(errs) > 0 {
		return errs
	}
	minimum, step := int64(DefaultMemoryMinimum), int64(DefaultMemoryStep)
	if c.Minimum != nil {
		minimum = c.Minimum.Value()
	}
	if c.Step != nil {
		step = c.Step.Value()
	}
	return onStep(path.Child("default"), c.Default.Value(), minimum, step, c.Default.String(), func(n int64) string {
		return resource.NewQuantity(n, resource.BinarySI).String()
	})
}

func (c *CoreCut) validate(path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := slices.Concat(between(path.Child("minimum"), c.Minimum, 100), between(path.Child("step"), c.Step, 100),
		between(path.Child("default"), c.Default, 100))
	if c.Default == nil || len(errs) > 0 {
		return errs
	}
	minimum, step := int64(DefaultCoreMinimum), int64(DefaultCoreStep)
	if c.Minimum != nil {
		minimum = int64(*c.Minimum)
	}
	if c.Step != nil {
		step = int64(*c.Step)
	}
	return onStep(path.Child("default"), int64(*c.Default), minimum, step, *c.Default, func(n int64) string { return fmt.Sprint(n) })
}

// onStep rejects a default that is not a minimum plus whole steps, to which every amount is rounded up.
func onStep(path *field.Path, n, minimum, step int64, value any, text func(int64) string) field.ErrorList {
	switch over := (n - minimum) % step; {
	case n < minimum:
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be the minimum of %s or more", text(minimum)))}
	case over != 0:
		return field.ErrorList{field.Invalid(path, value,
			fmt.Sprintf("must be the minimum of %s and whole steps of %s: %s is", text(minimum), text(step), text(n-over)))}
	default:
		return nil
	}
}

// between rejects values outside of 1 to most.
func between(path *field.Path, value *int32, most int32) field.ErrorList {
	if value == nil || *value >= 1 && *value <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be 1 to %d", most))}
}

// CheckMemory rejects an amount of memory below 1Mi, or that is not a whole number of bytes; nil is valid.
func CheckMemory(path *field.Path, value *resource.Quantity) field.ErrorList {
	if value == nil {
		return nil
	}
	// Value is inexact for amounts beyond 64 bits and for fractions.
	if n := value.Value(); n < minMemory || value.CmpInt64(n) != 0 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be a whole number of bytes, 1Mi or more")}
	}
	return nil
}
