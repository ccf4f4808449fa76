// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// MIGParted imports a configuration file of mig-parted, which the MIG manager uses: a policy for each mig-config, of its
// name. The error is v1alpha1.Problems, each with the field; what is not wrong, but has no equivalent, is in LeftOut.
//
//   - mig-enabled: false offers GPUs whole: tier exclusive.
//   - mig-enabled: true with mig-devices keeps GPUs partitioned so: mig.mode layout.
//   - With either, a GPU that needs a reset for its MIG mode is reset once it is idle: mig.modeChange whenIdle.
//   - mig-enabled: true without keeps MIG mode to the admin and offers the partitions that are there: mig.mode existing.
//   - GPUs that no entry is of are offered as they are, whole or by the partitions that are there.
func MIGParted(data []byte, options Options) (*Import, error) {
	f := &partedFile{}
	if err := decode(data, f); err != nil {
		return nil, err
	}
	i := newImport("mig-parted", options)
	if err := i.checkParted(f); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(f.MIGConfigs))
	if options.Name != "" {
		if _, ok := f.MIGConfigs[options.Name]; !ok {
			return nil, v1alpha1.Problems{fmt.Errorf("mig-configs: there is no %q: choose one of %s", options.Name, strings.Join(names, ", "))}
		}
		names = []string{options.Name}
	}
	owners := f.labels()
	for _, name := range names {
		i.addConfig(f, owners, name)
	}
	if len(i.Policies) == 0 {
		var problems v1alpha1.Problems
		for _, l := range i.LeftOut {
			problems = append(problems, v1alpha1.ProblemsOf(l.Err)...)
		}
		return nil, problems
	}
	slices.SortFunc(i.Policies, func(a, b *v1alpha1.NodePolicy) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	i.note("mig-configs", "", "resources are named as with migStrategy mixed: nvidia.com/mig-<profile>. With single, partitions are "+
		"nvidia.com/gpu: import the file of the device plugin, too, and use its DeviceClasses")
	return i, nil
}

func (i *Import) addConfig(f *partedFile, owners map[string]string, name string) {
	path := field.NewPath("mig-configs").Key(name)
	i.policy = name
	defer func() { i.policy = "" }()
	policy, err := i.partedPolicy(f, owners, name, path)
	if err == nil {
		i.Policies = append(i.Policies, policy)
		i.serveRules(policy)
		return
	}
	i.leaveOut(name, err)
	for _, problem := range v1alpha1.ProblemsOf(err) {
		where, why, _ := strings.Cut(problem.Error(), ": ")
		i.note(where, "", "%s. The mig-config is left out", why)
	}
}

// partedPolicy makes a policy of a mig-config. Its error is of what has no equivalent.
func (i *Import) partedPolicy(f *partedFile, owners map[string]string, name string, path *field.Path) (*v1alpha1.NodePolicy, error) {
	label, err := i.policyName(owners, name, path)
	if err != nil {
		return nil, err
	}
	policy := newPolicy(label)
	entries := f.MIGConfigs[name]
	if most := v1alpha1.MaxRules - 1; len(entries) > most { // the last rule is of all other GPUs
		return nil, problemsOf(field.ErrorList{field.TooMany(path, len(entries), most)})
	}
	if overlapping(entries) {
		// mig-parted goes through its entries in order, so that the last one that matches a GPU holds; of rules the first.
		entries = slices.Clone(entries)
		slices.Reverse(entries)
		i.note(path.String(), "", "some GPUs have several entries, of which the last one holds with mig-parted: the rules stand in the other "+
			"order, as the first one holds")
	}
	for j := range entries {
		e := &entries[j]
		at := path.Index(slices.IndexFunc(f.MIGConfigs[name], func(o partedEntry) bool { return o.match == e.match }))
		if e.none {
			i.note(at.Child("devices").String(), e.Devices, "no GPU has the entry: left out")
			continue
		}
		rule, err := e.rule(at)
		if err != nil {
			return nil, err
		}
		if !addRule(policy, rule) {
			i.note(at.String(), "", "another entry for the same GPUs holds, with mig-parted as here: left out")
			continue
		}
		i.noteEntry(e, at)
	}
	addRule(policy, v1alpha1.Rule{
		Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive, v1alpha1.TierMIG}, MIG: &v1alpha1.MIGPolicy{Mode: v1alpha1.MIGExisting},
	})
	if err := policy.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return policy, nil
}

// overlapping reports whether a GPU may have several of the entries.
func overlapping(entries []partedEntry) bool {
	same := func(a, b string) bool { return a == b || strings.HasPrefix(a, b+":") || strings.HasPrefix(b, a+":") }
	apart := func(a, b []string) bool {
		return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(s string) bool {
			return slices.ContainsFunc(b, func(t string) bool { return same(s, t) })
		})
	}
	for i := range entries {
		for j := range entries[:i] {
			a, b := &entries[i], &entries[j]
			if !a.none && !b.none && !apart(a.match.DeviceIDs, b.match.DeviceIDs) && !apart(texts(a.match.Indexes), texts(b.match.Indexes)) {
				return true
			}
		}
	}
	return false
}

func texts(numbers []int32) []string {
	var list []string
	for _, n := range numbers {
		list = append(list, fmt.Sprint(n))
	}
	return list
}

// noteEntry notes what an entry says that a rule cannot.
func (i *Import) noteEntry(e *partedEntry, path *field.Path) {
	if *e.MIGEnabled && len(e.MIGDevices) == 0 {
		i.note(path.Child("mig-devices").String(), e.MIGDevices, "the partitions that are there are offered as they are (mig.mode: existing): "+
			"for those that are made when they are claimed set mig.mode: onDemand")
	}
}

// labels are the names of policies with the mig-config whose name each is, where several would have it: the one of just this
// name, or the first by name.
func (f *partedFile) labels() map[string]string {
	owners := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(f.MIGConfigs)) {
		label := v1alpha1.PolicyNameOf(name)
		if _, taken := owners[label]; !taken || label == name {
			owners[label] = name
		}
	}
	return owners
}

// policyName is the name of the policy for a mig-config.
func (i *Import) policyName(owners map[string]string, name string, path *field.Path) (string, error) {
	label := v1alpha1.PolicyNameOf(name)
	if err := v1alpha1.CheckPolicyName(label); err != nil {
		return "", fmt.Errorf("%s: its name cannot be that of a policy: %w", path, err)
	}
	if owner := owners[label]; owner != name {
		return "", fmt.Errorf("%s: its policy would be named %s, as that of %s is: rename one", path, label, owner)
	}
	if label != name {
		i.policy = label
		i.note(path.String(), name, "the policy is named %s, as names have lower-case letters; nodes with either label have it", label)
	}
	return label, nil
}

// rule is what an entry says of its GPUs.
func (e *partedEntry) rule(path *field.Path) (v1alpha1.Rule, error) {
	r := v1alpha1.Rule{Match: e.match}
	if len(e.match.DeviceIDs)+len(e.match.Indexes) == 0 {
		r.Match = nil
	}
	switch {
	case !*e.MIGEnabled:
		r.Tiers, r.MIG = []v1alpha1.Tier{v1alpha1.TierExclusive}, &v1alpha1.MIGPolicy{ModeChange: v1alpha1.ModeChangeWhenIdle}
		return r, nil
	case len(e.MIGDevices) == 0:
		r.Tiers, r.MIG = []v1alpha1.Tier{v1alpha1.TierMIG}, &v1alpha1.MIGPolicy{Mode: v1alpha1.MIGExisting}
		return r, nil
	}
	layout := map[string]int32{}
	var problems v1alpha1.Problems
	for _, profile := range slices.Sorted(maps.Keys(e.MIGDevices)) {
		if why := noEquivalent(profile); why != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path.Child("mig-devices").Key(profile), why))
		} else if n := e.MIGDevices[profile]; n > 0 {
			layout[profile] = int32(n)
		}
	}
	if len(problems) > 0 {
		return r, problems
	}
	r.Tiers, r.MIG = []v1alpha1.Tier{v1alpha1.TierMIG}, &v1alpha1.MIGPolicy{
		Mode: v1alpha1.MIGLayout, Layout: layout, ModeChange: v1alpha1.ModeChangeWhenIdle,
	}
	return r, nil
}

// noEquivalent says why a profile of mig-parted cannot be in a layout; nil if it can.
func noEquivalent(profile string) error {
	front, _, _ := strings.Cut(profile, ".")
	switch {
	case strings.HasSuffix(front, "c"):
		return errors.New("no equivalent: in Cleave a compute instance fills its partition. Use smaller partitions")
	case !offeredProfile.MatchString(profile):
		return errors.New("no equivalent: it is the name of no MIG profile that Cleave knows")
	default:
		return nil
	}
}

var offeredProfile = regexp.MustCompile(`^[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(\+me|\+me\.all|\+gfx|-me)?$`)

// serveRules names the resources of what a policy offers.
func (i *Import) serveRules(p *v1alpha1.NodePolicy) {
	for _, r := range p.Rules {
		if slices.Contains(r.OfferedTiers(), v1alpha1.TierExclusive) {
			i.serve(wholeResource, "whole GPUs", selector{kind: kindGPU})
		}
		if r.MIG == nil {
			continue
		}
		profiles := slices.Sorted(maps.Keys(r.MIG.Layout))
		if r.MIG.Mode == v1alpha1.MIGExisting { // the partitions that are there may be of any
			profiles = knownProfiles()
		}
		for _, profile := range profiles {
			i.serve(migResource(profile), "partitions of profile "+profile, selector{kind: kindMIG, profile: profile})
		}
	}
}
