// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PublishPolicy is what a GPU's devices say in ResourceSlices. It changes what the scheduler sees, not what a claim gets.
type PublishPolicy struct {
	// Attributes that partitions carry alongside those that they have anyway; dra.net/numaNode is carried by all devices.
	Attributes []PartitionAttribute `json:"attributes,omitempty"`
	// OmitAttributes are those that partitions do not carry.
	OmitAttributes []PartitionAttribute `json:"omitAttributes,omitempty"`
	// OmitProfiles are MIG profiles that are not offered on demand, by name, or "+me" for all with media engines.
	OmitProfiles []string `json:"omitProfiles,omitempty"`
	// Counters of amounts, for quotas. They constrain nothing.
	Counters []QuotaCounter `json:"counters,omitempty"`
}

// PartitionAttribute is the name of an attribute that a policy can add to partitions or leave out of them.
type PartitionAttribute string

// AttributePreviousNUMANode is numaNode as it was called before resource.kubernetes.io/numaNode was a standard: other drivers that have no
// release with the standard name publish it, dra-driver-cpu up to v0.2.0 (pkg/device/attributes.go) and dranet up to v1.4.0
// (pkg/apis/attributes.go). No device has it unless a policy says so.
const AttributePreviousNUMANode = "dra.net/numaNode"

// PartitionAttributes lists them. What DeviceClasses and cleave inspect need of every partition is not among them.
func PartitionAttributes() []PartitionAttribute {
	return []PartitionAttribute{
		"addressingMode", "architecture", "brand", "cpuAffinity", "cudaComputeCapability", "cudaDriverVersion",
		AttributePreviousNUMANode, "driverVersion", "eccEnabled", "giProfileID", "index", "memoryEnforcement", "migCapable", "minor",
		"pcieSwitch", "placementStart", "productName", "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pciBusID",
		"resource.kubernetes.io/pcieRoot",
	}
}

// QuotaCounter is a counter that quotas go by.
type QuotaCounter string

// The counters.
const (
	// QuotaMemory counts bytes.
	QuotaMemory QuotaCounter = "memory"
	// QuotaMultiprocessors counts multiprocessors.
	QuotaMultiprocessors QuotaCounter = "multiprocessors"
)

// QuotaCounters lists them.
func QuotaCounters() []QuotaCounter { return []QuotaCounter{QuotaMemory, QuotaMultiprocessors} }

// omittable are the names that omitProfiles can have.
var omittable = regexp.MustCompile(omittedProfile)

// MediaProfiles stands, in omitProfiles, for all profiles with media engines.
const MediaProfiles = "+me"

// validate checks a rule's settings of slices.
func (p *PublishPolicy) validate(path *field.Path, r *Rule) field.ErrorList {
	if p == nil {
		return nil
	}
	if r.Exclude {
		return field.ErrorList{field.Forbidden(path, "the rule excludes its GPUs: remove one of the two")}
	}
	errs := slices.Concat(
		eachOnce(path.Child("attributes"), p.Attributes, PartitionAttributes()),
		eachOnce(path.Child("omitAttributes"), p.OmitAttributes, PartitionAttributes()),
		eachOnce(path.Child("counters"), p.Counters, QuotaCounters()),
	)
	for i, name := range p.OmitAttributes {
		if slices.Contains(p.Attributes, name) {
			errs = append(errs, field.Invalid(path.Child("omitAttributes").Index(i), name, "is in attributes, too: remove one of the two"))
		}
	}
	at := path.Child("omitProfiles")
	switch mode := r.MIG.ModeOfUse(); {
	case p.OmitProfiles == nil:
	case r.MIG != nil && r.MIG.Profiles != nil:
		errs = append(errs, field.Forbidden(at, "mig.profiles says which profiles there are: remove one of the two"))
	case mode != MIGOnDemand:
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("it is for mode %s, and the mode is %s: remove one of the two", MIGOnDemand, mode)))
	}
	for i, name := range p.OmitProfiles {
		switch wrong := checkProfile(at.Index(i), name); {
		case name == MediaProfiles:
		case len(wrong) > 0:
			errs = append(errs, wrong...)
		case !omittable.MatchString(name):
			errs = append(errs, field.Invalid(at.Index(i), name, "is offered only if mig.profiles names it: remove it"))
		}
		if slices.Contains(p.OmitProfiles[:i], name) {
			errs = append(errs, field.Duplicate(at.Index(i), name))
		}
	}
	return errs
}

// eachOnce rejects unknown and duplicate values.
func eachOnce[T ~string](path *field.Path, values, all []T) field.ErrorList {
	var errs field.ErrorList
	for i, v := range values {
		errs = append(errs, oneOf(path.Index(i), v, all)...)
		if slices.Contains(values[:i], v) {
			errs = append(errs, field.Duplicate(path.Index(i), v))
		}
	}
	return errs
}
