// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// way is how the file has GPUs shared.
type way struct {
	field string
	// kind of the shares of GPUs, partitionKind of those of partitions.
	kind, partitionKind kind
	most                int64
	placement           v1alpha1.SharePlacement
	*replicated
}

// way is nil where nothing is to be shared. The plugin distributes shares over GPUs unless it is told to pack them
// (NVIDIA/k8s-device-plugin#1621; releases before 0.20 always do).
func (f *pluginFile) way() *way {
	placement := v1alpha1.PlacementSpread
	if p := f.Flags.Plugin.SharedDevicesAllocationPolicy; p != nil && *p == "packed" {
		placement = ""
	}
	switch {
	case f.Sharing.TimeSlicing != nil:
		return &way{"sharing.timeSlicing", kindTimeSlice, kindMIGTimeSlice, v1alpha1.MaxTimeSliceShares, placement, f.Sharing.TimeSlicing}
	case f.Sharing.MPS != nil:
		return &way{"sharing.mps", kindMPS, kindMIGMPS, v1alpha1.MaxMPSShares, placement, f.Sharing.MPS}
	default:
		return nil
	}
}

// sharePartitions finds the profiles whose partitions are shared, which all rules have: a resource of strategy mixed is of one.
func (p *pluginImport) sharePartitions(w *way) {
	for _, b := range p.bases {
		for i := range w.Resources {
			e := &w.Resources[i]
			again := func(s v1alpha1.PartitionShare) bool { return s.Profile == b.profile }
			if e.Name == b.resource && e.shared() && e.sharesPartitions(b) && !slices.ContainsFunc(p.shares, again) {
				p.shares = append(p.shares, w.partitionShare(b.profile, e))
			}
		}
	}
}

// sharesPartitions reports whether a policy can share what the resource says: all partitions of a profile.
func (r *replicatedResource) sharesPartitions(b base) bool { return b.profile != "" && r.refs.all }

// servePartitions lets the resource of shared partitions be served by them, or by whole ones where a policy cannot share them.
func (p *pluginImport) servePartitions(w *way, field string, e *replicatedResource, b base) {
	if !e.refs.all && e.refs.count == 0 && len(e.refs.partitions) == 0 {
		return // GPUs alone
	}
	if !e.sharesPartitions(b) {
		p.serve(w.name(e), b.why(), b.selector(kindMIG))
		p.note(field, short(e.Name), "each partition goes to one claim, so fewer pods fit: a policy shares all partitions of a profile, and "+
			"this names none or a choice of devices. Add the profile to mig.share, or use smaller partitions")
		return
	}
	p.serve(w.name(e), w.whyOf(b, e), b.shares(w, e))
	p.note(field, short(e.Name), "a node whose MIG boards lack profile %s refuses the policy: give such nodes one without it (mig.share)",
		b.profile)
}

// name of the shared resource: what the file says.
func (w *way) name(e *replicatedResource) string {
	return cmp.Or(e.Rename, w.plainName(e))
}

// plainName of the shared resource: what the plugin makes of it, as its releases ignore rename (cmd/nvidia-device-plugin,
// DisableResourceNamingInConfig).
func (w *way) plainName(e *replicatedResource) string {
	if w.RenameByDefault {
		return e.Name + sharedSuffix
	}
	return e.Name
}

// whyOf says in a comment what the class of the shares is.
func (w *way) whyOf(b base, e *replicatedResource) string {
	what, how := "GPUs", "time slices"
	if b.partitions {
		what = b.why()
	}
	if w.kind == kindMPS {
		how = "MPS"
	}
	return fmt.Sprintf("%s shared by %s, %d shares each", what, how, w.shares(e))
}

// shares are the replicas, as far as Cleave takes them.
func (w *way) shares(e *replicatedResource) int32 { return int32(min(*e.Replicas, w.most)) }

// rule is one for GPUs that are shared.
func (w *way) rule(p *pluginImport, match *v1alpha1.Match, e *replicatedResource) v1alpha1.Rule {
	if w.kind == kindMPS {
		r := p.rule(match, v1alpha1.TierMPS)
		r.MPS = w.mps(e)
		return r
	}
	r := p.rule(match, v1alpha1.TierTimeSlice)
	r.TimeSlice = w.timeSlice(e)
	return r
}

func (w *way) partitionShare(profile string, e *replicatedResource) v1alpha1.PartitionShare {
	if w.kind == kindMPS {
		return v1alpha1.PartitionShare{Profile: profile, MPS: w.mps(e)}
	}
	return v1alpha1.PartitionShare{Profile: profile, TimeSlice: w.timeSlice(e)}
}

func (w *way) mps(e *replicatedResource) *v1alpha1.MPSPolicy {
	shares := w.shares(e)
	return &v1alpha1.MPSPolicy{Shares: &shares, Memory: anyMemory(), Placement: w.placement}
}

func (w *way) timeSlice(e *replicatedResource) *v1alpha1.TimeSlicePolicy {
	shares := w.shares(e)
	return &v1alpha1.TimeSlicePolicy{Shares: &shares, Memory: anyMemory(), Placement: w.placement}
}

// anyMemory lets a share's part of memory be that of the GPU or partition over the number of shares, however many there are:
// with the default minimum of 1 GiB fewer shares than there should be would fit on a small one.
func anyMemory() *v1alpha1.MemoryCut {
	step := resource.MustParse("1Mi")
	return &v1alpha1.MemoryCut{Minimum: &step, Step: &step}
}
