// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// DevicePlugin imports a configuration file of NVIDIA's device plugin. The error is v1alpha1.Problems, each with the field.
//
// The policy offers GPUs as the plugin does: whole, or as shares where sharing says so, and the partitions that somebody
// else made where the MIG strategy is not none.
func DevicePlugin(data []byte, options Options) (*Import, error) {
	f := &pluginFile{}
	if err := decode(data, f); err != nil {
		return nil, err
	}
	own := f.Flags.strategy()
	if options.MIGStrategy != "" {
		f.Flags.MigStrategy = &options.MIGStrategy
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	p := &pluginImport{file: f, Import: newImport("device-plugin", options)}
	name := cmp.Or(options.Name, v1alpha1.DefaultPolicy)
	policy := newPolicy(v1alpha1.PolicyNameOf(name))
	p.Policies, p.policy = []*v1alpha1.NodePolicy{policy}, policy.Metadata.Name
	if policy.Metadata.Name != name {
		p.note("", name, "the policy is named %s, as names have lower-case letters; nodes with either label have it", policy.Metadata.Name)
	}
	p.noteFlags(&f.Flags)
	p.noteStrategy(own)
	p.nameResources()
	p.share(policy)
	p.nameWhatIsAskedForToday()
	if len(f.Imex.ChannelIDs) > 0 {
		p.note("imex.channelIDs", f.Imex.ChannelIDs,
			"no equivalent: Cleave injects no IMEX channels; NVIDIA's driver for compute domains does and can run alongside it")
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return p.Import, nil
}

// pluginImport is an import of a device plugin's file under way.
type pluginImport struct {
	*Import
	file *pluginFile
	// bases are what the plugin calls GPUs and partitions before sharing, the first that matches a device first.
	bases []base
	// shares are the profiles whose partitions are shared.
	shares []v1alpha1.PartitionShare
}

// base is a resource before sharing.
type base struct {
	field    string // of the file; empty for what the plugin has by itself
	resource string
	// partitions reports that it is of partitions, not of GPUs.
	partitions bool
	// profile of the partitions, like that of the product or profile.
	profile string
	like    pattern
}

// selector selects the base's devices, in the shape of a kind.
func (b base) selector(k kind) selector {
	if b.partitions {
		return selector{kind: kindMIG, profile: b.profile, profileLike: b.like}
	}
	return selector{kind: k, productLike: b.like}
}

// shares selects the shares of the base's devices.
func (b base) shares(w *way, e *replicatedResource) selector {
	s := b.selector(w.kind)
	if e.sharesPartitions(b) {
		s.kind = w.partitionKind
	}
	return s
}

// sharedWay is way, nil where every resource has one replica. It notes those.
func (p *pluginImport) sharedWay() *way {
	w := p.file.way()
	if w == nil {
		return nil
	}
	shared := false
	for i := range w.Resources {
		if e := &w.Resources[i]; e.shared() {
			shared = true
		} else {
			p.note(fmt.Sprintf("%s.resources[%d].replicas", w.field, i), *e.Replicas, "one replica is not shared: these devices are offered whole")
		}
	}
	if !shared {
		return nil
	}
	return w
}

// noteStrategy notes what the strategy means, and where it is not the file's own.
func (p *pluginImport) noteStrategy(own string) {
	const existing = "partitions are offered as they are (mig.mode: existing), and Cleave makes and removes none: import the file of " +
		"mig-parted for layouts, or set mig.mode: onDemand to have them made when they are claimed"
	s := p.file.Flags.strategy()
	if s != own {
		p.note("flags.migStrategy", own, "the ClusterPolicy's mig.strategy, which is %s, comes before that of the file", s)
	}
	switch {
	case p.file.Flags.MigStrategy == nil:
		p.note("flags.migStrategy", own+" (default)", "the plugin's environment (MIG_STRATEGY) and --mig-strategy come before its file: if "+
			"they are single or mixed, add flags.migStrategy to the file")
	case s == strategySingle:
		p.note("flags.migStrategy", s, "nvidia.com/gpu stands for partitions, too; %s. The plugin refuses a node with partitions of several "+
			"profiles, Cleave offers any of them", existing)
	case s == strategyMixed:
		p.note("flags.migStrategy", s, "%s", existing)
	}
}

// nameResources says what GPUs and partitions are called before sharing (internal/rm/rm.go, AddDefaultResourcesToConfig).
func (p *pluginImport) nameResources() {
	const ignored = "the releases of the plugin that are known read it and ignore it, so pods ask for %s: the DeviceClasses serve both names"
	strategy := p.file.Flags.strategy()
	for i, r := range p.file.Resources.GPUs {
		field := fmt.Sprintf("resources.gpus[%d]", i)
		p.bases = append(p.bases, base{field: field, resource: r.Name, like: r.Pattern})
		p.note(field, r, ignored, wholeResource)
	}
	p.bases = append(p.bases, base{resource: wholeResource})
	for i, r := range p.file.Resources.MIG {
		field := fmt.Sprintf("resources.mig[%d]", i)
		if strategy == strategyNone {
			p.note(field, r, "flags.migStrategy is none: neither the plugin nor Cleave offers partitions")
			continue
		}
		p.bases = append(p.bases, base{field: field, resource: r.Name, partitions: true, like: r.Pattern})
		if strategy == strategySingle {
			p.note(field, r, ignored, wholeResource)
		} else {
			p.note(field, r, ignored, "nvidia.com/mig-<profile>")
		}
	}
	switch strategy {
	case strategySingle:
		p.bases = append(p.bases, base{resource: wholeResource, partitions: true})
	case strategyMixed:
		for _, profile := range knownProfiles() {
			p.bases = append(p.bases, base{resource: migResource(profile), partitions: true, profile: profile})
		}
	}
}

// share makes the rules of a policy, and the classes.
func (p *pluginImport) share(policy *v1alpha1.NodePolicy) {
	w := p.sharedWay()
	if w != nil {
		p.noteSharing(w)
		p.sharePartitions(w)
	}
	for _, b := range p.bases {
		var shared bool // all devices of the base
		for i := 0; w != nil && i < len(w.Resources); i++ {
			if e := &w.Resources[i]; e.Name == b.resource && e.shared() {
				p.shareBase(policy, w, i, b)
				shared = shared || e.refs.all
			}
		}
		if !shared {
			p.serve(b.resource, b.why(), b.selector(kindGPU))
		}
		if products, ok := b.products(); ok && products != nil && !shared {
			addRule(policy, p.rule(&v1alpha1.Match{ProductNames: products}, v1alpha1.TierExclusive))
		}
	}
	addRule(policy, p.rule(nil, v1alpha1.TierExclusive))
}

// why says in a comment what the class of the base is.
func (b base) why() string {
	switch {
	case b.profile != "":
		return "partitions of profile " + b.profile
	case b.partitions:
		return "partitions"
	default:
		return "whole GPUs"
	}
}

// products are the names of the products that a base is of, as a policy matches them; nil for all, not ok where a pattern
// cannot be put so.
func (b base) products() ([]string, bool) {
	switch {
	case b.partitions, !b.like.says():
		return nil, true
	case b.like.wildcard():
		return nil, false
	default:
		return []string{string(b.like)}, true
	}
}

// rule is one for GPUs that are offered in one way alongside their partitions.
func (p *pluginImport) rule(match *v1alpha1.Match, tier v1alpha1.Tier) v1alpha1.Rule {
	r := v1alpha1.Rule{Match: match, Tiers: []v1alpha1.Tier{tier}}
	if p.file.Flags.strategy() != strategyNone {
		r.Tiers = append(r.Tiers, v1alpha1.TierMIG)
		r.MIG = &v1alpha1.MIGPolicy{Mode: v1alpha1.MIGExisting, Share: p.shares}
	}
	return r
}

// shareBase shares devices of a base, as resource number i of a way to share says.
func (p *pluginImport) shareBase(policy *v1alpha1.NodePolicy, w *way, i int, b base) {
	e := &w.Resources[i]
	field := fmt.Sprintf("%s.resources[%d]", w.field, i)
	name := w.name(e)
	if b.partitions {
		p.servePartitions(w, field, e, b)
		return
	}
	products, ok := b.products()
	if !ok {
		p.serve(name, b.why(), b.selector(kindGPU))
		p.note(b.field+".pattern", string(b.like), "no equivalent: the rules of a policy have whole product names. These GPUs are offered "+
			"whole until a rule with match.productNames shares them")
		return
	}
	if products != nil {
		p.note(b.field+".pattern", string(b.like), "the rules of the policy take it for the whole name of a product: check it with nvidia-smi -L")
	}
	s := b.selector(w.kind)
	for _, m := range p.matches(field, e.refs, products) {
		addRule(policy, w.rule(p, m, e))
	}
	s.indexes, s.uuids = e.refs.gpus(), e.refs.uuids
	if !e.refs.all && len(s.indexes)+len(s.uuids) == 0 {
		return // partitions alone
	}
	p.serve(name, w.whyOf(b, e), s)
	if b.field != "" {
		p.serve(wholeResource, w.whyOf(b, e), s)
	}
}

// matches are those of the rules for devices of some products: lists of one match must all have the GPU, so that indexes
// and UUIDs take two rules.
func (p *pluginImport) matches(field string, refs deviceRefs, products []string) []*v1alpha1.Match {
	if refs.all {
		if products == nil {
			return []*v1alpha1.Match{nil}
		}
		return []*v1alpha1.Match{{ProductNames: products}}
	}
	if refs.count > 0 {
		p.note(field+".devices", refs.count, "the first GPUs by index are shared; the plugin takes any")
	}
	if len(refs.partitions) > 0 {
		p.note(field+".devices", refs.partitions, "no equivalent for partitions: each goes to one claim")
	}
	var matches []*v1alpha1.Match
	if indexes := refs.gpus(); len(indexes) > 0 {
		matches = append(matches, &v1alpha1.Match{ProductNames: products, Indexes: indexes})
	}
	if len(refs.uuids) > 0 {
		matches = append(matches, &v1alpha1.Match{ProductNames: products, UUIDs: refs.uuids})
	}
	return matches
}

// noteSharing notes what shares are not, and what of the file the plugin itself ignores.
func (p *pluginImport) noteSharing(w *way) {
	value := fmt.Sprintf("%t (default)", w.kind == kindMPS) // api/config/v1/config.go, NewConfig
	if f := w.FailRequestsGreaterThanOne; f != nil {
		value = fmt.Sprint(*f)
	}
	const two = "a request for 2 gets shares of two different GPUs, and waits where there is one GPU"
	if refuses := cmp.Or(w.FailRequestsGreaterThanOne, new(w.kind == kindMPS)); *refuses {
		p.note(w.field+".failRequestsGreaterThanOne", value, "the ValidatingAdmissionPolicy of the import refuses requests for 2, where the "+
			"resource stands for shares on all nodes; without it, %s", two)
		for i := range w.Resources {
			if e := &w.Resources[i]; e.shared() {
				p.single[w.name(e)], p.single[w.plainName(e)] = true, true
			}
		}
	} else {
		p.note(w.field+".failRequestsGreaterThanOne", value, "%s", two)
	}
	if w.kind == kindTimeSlice {
		p.note(w.field, "", "each share is counted as its part of the GPU's memory; a driver of release 615 or later holds pods to it, which "+
			"the plugin does not")
	}
	for i := range w.Resources {
		e := &w.Resources[i]
		if !e.shared() {
			continue
		}
		field := fmt.Sprintf("%s.resources[%d]", w.field, i)
		known := false
		for _, b := range p.bases {
			known = known || b.resource == e.Name
		}
		if !known {
			p.note(field+".name", e.Name, "no GPU or partition has this resource: neither the plugin nor Cleave does anything about it")
			continue
		}
		if *e.Replicas > w.most {
			p.note(field+".replicas", *e.Replicas, "%d shares, the most that there can be", w.most)
		}
		const mostBefore = 48
		if w.kind == kindMPS && *e.Replicas > mostBefore {
			p.note(field+".replicas", *e.Replicas, "with drivers before release 590 MPS takes %d", mostBefore)
		}
		if e.Rename != "" && e.Rename != w.plainName(e) {
			p.note(field+".rename", e.Rename, "the releases of the plugin that are known read it and ignore it, so pods ask for %s: the "+
				"DeviceClasses serve both names", w.plainName(e))
		}
		if !e.refs.all {
			p.note(field+".devices", e.Devices,
				"the releases of the plugin that are known read it and share all devices; Cleave shares those, and offers the others whole")
		}
	}
}

// nameWhatIsAskedForToday adds classes for the names under which shares go with the plugin, which ignores rename.
func (p *pluginImport) nameWhatIsAskedForToday() {
	w := p.file.way()
	if w == nil {
		return
	}
	for i := range w.Resources {
		e := &w.Resources[i]
		plain := w.plainName(e)
		if p.classes[plain] != nil || !e.shared() {
			continue
		}
		for _, b := range p.bases {
			if b.resource == e.Name && b.field == "" {
				p.serve(plain, w.whyOf(b, e), b.shares(w, e))
			}
		}
	}
}
