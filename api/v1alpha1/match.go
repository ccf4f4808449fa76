// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// pciAddress has the four-digit domain of sysfs or the eight-digit one of NVML; deviceID is the form of mig-parted, in which the
// subsystem may follow (mig-parted v0.15.0, pkg/types/device.go).
var (
	pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`)
	deviceID   = regexp.MustCompile(`^0[xX][0-9a-fA-F]{8}(:0[xX][0-9a-fA-F]{8})?$`)
)

// deviceIDForm is what an invalid device ID must be.
const deviceIDForm = "must be a PCI device ID and the vendor's, such as 0x233010DE, or with the subsystem's, 0x233010DE:0x16C110DE"

// validate rejects a match of no GPU: a mistake would silently disable the rule.
func (m *Match) validate(path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for _, list := range []struct {
		name   string
		values []string
		ok     func(string) bool
		want   string
	}{
		{"productNames", m.ProductNames, func(s string) bool { return strings.TrimSpace(s) != "" },
			`must be a product as nvidia-smi -L has it, such as "NVIDIA H100 80GB HBM3"`},
		{"uuids", m.UUIDs, func(s string) bool { return strings.HasPrefix(s, "GPU-") },
			"must be the UUID of a GPU as nvidia-smi -L has it: GPU-…"},
		{"pciAddresses", m.PCIAddresses, pciAddress.MatchString, "must be a PCI address such as 0000:1b:00.0"},
		{"deviceIDs", m.DeviceIDs, deviceID.MatchString, deviceIDForm},
	} {
		at := path.Child(list.name)
		if len(list.values) > MaxListed {
			errs = append(errs, field.TooMany(at, len(list.values), MaxListed))
			continue
		}
		for i, value := range list.values {
			if !list.ok(value) {
				errs = append(errs, field.Invalid(at.Index(i), value, list.want))
			}
		}
	}
	at := path.Child("indexes")
	if len(m.Indexes) > MaxListed {
		return append(errs, field.TooMany(at, len(m.Indexes), MaxListed))
	}
	for i, n := range m.Indexes {
		if n < 0 {
			errs = append(errs, field.Invalid(at.Index(i), n, "must be 0 or more"))
		}
	}
	return append(errs, m.Memory.validate(path.Child("memory"))...)
}

func (r *MemoryRange) validate(path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	if r.Min == nil && r.Max == nil {
		return field.ErrorList{field.Required(path, "set min, max or both, such as {min: 70Gi}")}
	}
	errs := append(CheckMemory(path.Child("min"), r.Min), CheckMemory(path.Child("max"), r.Max)...)
	if len(errs) == 0 && r.Min != nil && r.Max != nil && r.Min.Cmp(*r.Max) > 0 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%s to %s", r.Min, r.Max), "min must not be more than max: no GPU matches"))
	}
	return errs
}

// has reports whether a range is within this one.
func (r *MemoryRange) has(other *MemoryRange) bool {
	if r == nil {
		return true
	}
	return other != nil &&
		(r.Min == nil || other.Min != nil && other.Min.Cmp(*r.Min) >= 0) &&
		(r.Max == nil || other.Max != nil && other.Max.Cmp(*r.Max) <= 0)
}

// everything reports whether every GPU matches.
func (m *Match) everything() bool {
	return m == nil || m.Memory == nil && !slices.ContainsFunc(m.lists(), func(l []string) bool { return len(l) > 0 })
}

// listOfDeviceIDs is the place of device IDs among lists.
const listOfDeviceIDs = 3

// lists are the match's lists in a canonical form of GPU names.
func (m *Match) lists() [][]string {
	if m == nil {
		return make([][]string, 5)
	}
	each := func(values []string, f func(string) string) []string {
		changed := make([]string, 0, len(values))
		for _, v := range values {
			changed = append(changed, f(v))
		}
		return changed
	}
	indexes := make([]string, 0, len(m.Indexes))
	for _, n := range m.Indexes {
		indexes = append(indexes, fmt.Sprint(n))
	}
	return [][]string{
		m.ProductNames, m.UUIDs, indexes, each(m.DeviceIDs, strings.ToLower),
		each(m.PCIAddresses, func(a string) string {
			const domain = len("0000:1b:00.0")
			if a = strings.ToLower(a); len(a) > domain && strings.HasPrefix(a, "0000") {
				return a[len(a)-domain:]
			}
			return a
		}),
	}
}

// selection is a match prepared for comparison with others.
type selection struct {
	lists  [][]string
	sets   []map[string]bool
	memory *MemoryRange
}

func (m *Match) selection() selection {
	s := selection{lists: m.lists()}
	for _, list := range s.lists {
		set := map[string]bool{}
		for _, v := range list {
			set[v] = true
		}
		s.sets = append(s.sets, set)
	}
	if m != nil {
		s.memory = m.Memory
	}
	return s
}

// takes reports, for each list, whether this match selects everything that another one may select by it.
func (s selection) takes(other selection) []bool {
	var takes []bool
	for i, set := range s.sets {
		all := len(set) == 0 || len(other.lists[i]) > 0
		for _, v := range other.lists[i] {
			device, _, _ := strings.Cut(v, ":") // of a device ID with a subsystem: one without has it, too
			all = all && (len(set) == 0 || set[v] || i == listOfDeviceIDs && set[device])
		}
		takes = append(takes, all)
	}
	return takes
}

// unreached are the rules that never apply, because earlier ones match all their GPUs.
func unreached(rules []Rule) field.ErrorList {
	var errs field.ErrorList
	var before []selection
	for i := range rules {
		path := field.NewPath("rules").Index(i).Child("match")
		if rules[i].Match.everything() {
			if i < len(rules)-1 {
				errs = append(errs, field.Required(path, "without it the rule matches every GPU, and the rules after it never apply: put it last"))
			}
			return errs
		}
		s := rules[i].Match.selection()
		if takers := s.takenBy(before); len(takers) > 0 {
			take := "matches"
			if len(takers) > 1 {
				take = "together match"
			}
			errs = append(errs, field.Forbidden(path,
				fmt.Sprintf("the rule never applies: %s %s all of these GPUs", strings.Join(takers, " and "), take)))
		}
		before = append(before, s)
	}
	return errs
}

// takenBy are the rules that together match everything that a match selects, as far as one list shows; none if something is left.
func (s selection) takenBy(before []selection) []string {
	takes := make([][]bool, len(before))
	for i, b := range before {
		takes[i] = b.takes(s)
	}
	// apart from one list, rule b matches everything
	but := func(b, list int) bool {
		for i, all := range takes[b] {
			if !all && i != list {
				return false
			}
		}
		return before[b].memory.has(s.memory)
	}
	for list, values := range s.lists {
		var takers []string
		for _, value := range values {
			b := 0
			for b < len(before) && (!but(b, list) || len(before[b].sets[list]) > 0 && !before[b].sets[list][value]) {
				b++
			}
			if b == len(before) {
				takers = nil
				break
			}
			if name := fmt.Sprintf("rules[%d]", b); !slices.Contains(takers, name) {
				takers = append(takers, name)
			}
		}
		if len(takers) > 0 {
			return takers
		}
	}
	for b := range before {
		if but(b, -1) {
			return []string{fmt.Sprintf("rules[%d]", b)}
		}
	}
	return nil
}
