// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
)

// noDevices is what kube-scheduler says of nodes on which its allocator finds no devices (Filter in
// pkg/scheduler/framework/plugins/dynamicresources of Kubernetes).
const noDevices = "cannot allocate all claims"

// verdict is what a scheduler makes of claims that fit.
type verdict struct{ *search }

// add adds what the scheduler says, and whether it may ignore the devices: it cannot be asked what it counts.
func (s verdict) add(ctx context.Context, fixed *causes) (notes []string) {
	says := Cause{Kind: SchedulerSays, name: s.question.says}
	scheduler, ignored := "", ""
	if pod := s.question.pod; pod != nil && slices.Contains(foreignSchedulers, pod.Spec.SchedulerName) {
		scheduler = pod.Spec.SchedulerName
	}
	if s.Release != nil {
		ignored = counting.Ignored(s.Release)
	}
	refused := says.name != "" && (scheduler != "" || strings.Contains(says.name, noDevices))
	switch {
	case !refused && ignored == "" || !s.fitsCountedAlone(ctx):
	case refused && scheduler != "":
		fixed.add(Cause{Kind: SchedulerIgnores, name: fmt.Sprintf("the pod fits devices with counters and shares alone, and %s finds none: "+
			"some releases ignore these", scheduler), remedy: "docs/queues.md says which, and what to do"})
	case refused && ignored != "":
		fixed.add(Cause{Kind: SchedulerIgnores, name: "the scheduler finds none of these devices: that of " + ignored,
			remedy: fmt.Sprintf("use Kubernetes %s or later, or turn on these gates of the scheduler, too; until then a policy of whole GPUs "+
				"alone, or a layout, offers what it allocates", counting.Since())})
	case refused:
		says.remedy = "if it still does in a minute, it ignores these devices: it is older than the API server, or has a feature gate " +
			"DRAPartitionableDevices or DRAConsumableCapacity off"
	default:
		notes = []string{"The scheduler of " + ignored + ": else what fits here waits."}
	}
	if says.name != "" {
		fixed.add(says)
	}
	return notes
}

// fitsCountedAlone reports whether no node would serve the claims for a scheduler that ignores counters and shares.
func (s verdict) fitsCountedAlone(ctx context.Context) bool {
	if len(s.claims) == 0 {
		return false
	}
	cluster := *s.Cluster
	f := &cluster.Features
	f.PartitionableDevices, f.ConsumableCapacity, f.FractionalCapacityRange = false, false, false
	ignoring := &search{Cluster: &cluster, question: s.question, fits: map[string]fit{}}
	for _, site := range s.sites {
		if !slices.Contains(s.fitted, site.node) {
			continue
		}
		if f := ignoring.fit(ctx, site, "all", s.claims...); f.ok || f.err != nil {
			return false
		}
	}
	return true
}

// uncounted is why nodes do not offer devices of a type that the cluster does not count.
func (c *Cluster) uncounted(kind string) (why []error) {
	all := []error{c.Counted.Counters}
	if kind != "gpu" && kind != "mig" {
		all = append(all, c.Counted.SharesBeside, c.Counted.Shares)
	}
	for _, err := range all {
		if err != nil && kind != "" {
			why = append(why, err)
		}
	}
	return why
}

// uncountedNotes are the reasons that are no limit of what is explained.
func (c *Cluster) uncountedNotes(limits []Cause) (notes []string) {
	for _, err := range c.Counted.Reasons() {
		if !slices.ContainsFunc(limits, func(l Cause) bool { return l.Message == err.Error() }) {
			notes = append(notes, counting.Sentence(err))
		}
	}
	return notes
}
