// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PartitionShare is how partitions of a profile are shared by many claims. A partition that is shared is created by its first
// claim and destroyed after its last one, unless a layout keeps it.
type PartitionShare struct {
	// Profile of the partitions, such as 3g.40gb. With a layout, one that the layout has.
	Profile string `json:"profile"`
	// MPS shares them by an MPS server each. Amounts are of the partition: cores in percent of its multiprocessors, at least
	// one of them a share, and no more shares than the clients that MPS takes on a partition of that size.
	MPS *MPSPolicy `json:"mps,omitempty"`
	// TimeSlice shares them in time. They have no interval of their own: a GPU has one for all of its partitions.
	TimeSlice *TimeSlicePolicy `json:"timeSlice,omitempty"`
}

// validateShares checks how the partitions of a rule are shared.
func (m *MIGPolicy) validateShares(path *field.Path) field.ErrorList {
	if m.Share != nil && len(m.Share) == 0 {
		return field.ErrorList{field.Required(path,
			"name a profile whose partitions are shared, such as {profile: 3g.40gb, mps: {shares: 8}}, or leave it out")}
	}
	var errs field.ErrorList
	for i := range m.Share {
		errs = append(errs, m.Share[i].validate(path.Index(i))...)
		same := func(s PartitionShare) bool { return s.Profile == m.Share[i].Profile }
		if slices.ContainsFunc(m.Share[:i], same) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("profile"), m.Share[i].Profile))
		}
	}
	if len(errs) > 0 || m.ModeOfUse() != MIGLayout {
		return errs
	}
	for i := range m.Share {
		if _, ok := m.Layout[m.Share[i].Profile]; !ok {
			errs = append(errs, field.Invalid(path.Index(i).Child("profile"), m.Share[i].Profile,
				"the layout has no partition of it, so there is none to share: add it to mig.layout, or remove it here"))
		}
	}
	return errs
}

func (s *PartitionShare) validate(path *field.Path) field.ErrorList {
	errs := checkProfile(path.Child("profile"), s.Profile)
	if s.MPS == nil && s.TimeSlice == nil {
		errs = append(errs, field.Required(path, fmt.Sprintf("say how partitions of profile %s are shared: mps: {} or timeSlice: {}", s.Profile)))
	}
	errs = append(errs, s.MPS.validate(path.Child("mps"))...)
	at := path.Child("timeSlice")
	if s.TimeSlice != nil && s.TimeSlice.Interval != "" {
		errs = append(errs, field.Forbidden(at.Child("interval"),
			"a GPU has one interval for all of its partitions, so none can have its own: remove it"))
	}
	return append(errs, s.TimeSlice.validate(at)...)
}
