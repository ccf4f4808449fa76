// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// ofRelease makes the bed's cluster one of a release, with the feature gates of counters and shares of its API server, and publishes what
// a node of that cluster offers.
func (b *bed) ofRelease(release string, counters, shares bool, p *v1alpha1.NodePolicy) {
	b.Helper()
	b.Release = version.MustParseGeneric(release)
	b.Counted = counting.Of(b.Release, counters, shares)
	b.Features = allocator.FeaturesOf(b.Release)
	b.Features.PartitionableDevices, b.Features.ConsumableCapacity = counters, shares
	b.Features.FractionalCapacityRange = false
	gpus, err := models.Load("hgx-h100")
	b.must(err)
	caps := policy.Capabilities{Counters: b.Counted.Counters, Shares: b.Counted.Shares, SharesBeside: b.Counted.SharesBeside}
	b.slices = nodeslices.Objects(policy.Apply(p, gpus, caps), driver, "node-1").Items
}

// A scheduler that ignores counters and shares finds none of the devices that are free: the pod waits for another scheduler, not for them.
func TestExplain_SchedulerIgnores(t *testing.T) {
	const (
		refused = "0/1 nodes are available: 1 cannot allocate all claims."
		ignored = "ignores partitions, shares, and GPUs that are offered as these, unless the feature gates DRAPartitionableDevices and " +
			"DRAConsumableCapacity are on there as in the API server"
	)
	alone := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}}}}
	for name, tt := range map[string]struct {
		release, scheduler, says string
		policy                   *v1alpha1.NodePolicy
		state                    State
		kinds                    []Kind
		want                     string
		not                      string
	}{
		"refused by an old one": {"1.35.4", "", refused, nil, Waits, []Kind{SchedulerIgnores, SchedulerSays},
			"- the scheduler finds none of these devices: that of Kubernetes 1.35.4 " + ignored + "\n  (use Kubernetes 1.36.2 or later, or turn on " +
				"these gates of the scheduler, too; until then a policy of whole GPUs alone, or a layout, offers what it allocates)\n" +
				"- the scheduler says: " + refused + "\n", "else what fits here waits"},
		"not yet refused": {"1.35.4", "", "", nil, Fits, nil, "\nThe scheduler of Kubernetes 1.35.4 " + ignored + ": else what fits here waits.\n", ""},
		"refused for something else": {"1.35.4", "", "1 Insufficient cpu.", nil, Waits, []Kind{SchedulerSays},
			"- the scheduler says: 1 Insufficient cpu.\n\nNode node-1: enough devices are free\n\nThe scheduler of Kubernetes 1.35.4 ignores", ""},
		"devices without counters":              {"1.35.4", "", refused, alone, Waits, []Kind{SchedulerSays}, "- the scheduler says: " + refused + "\n\n", "ignores"},
		"devices without counters, not refused": {"1.35.4", "", "", alone, Fits, nil, "fits:\n", "ignores"},
		"a release that counts":                 {"1.37.2", "", "", nil, Fits, nil, "fits:\n", "ignores"},
		"refused in a release that counts": {"1.37.2", "", refused, nil, Waits, []Kind{SchedulerSays},
			"- the scheduler says: " + refused + "\n  (if it still does in a minute, it ignores these devices: it is older than the API server, " +
				"or has a feature gate DRAPartitionableDevices or DRAConsumableCapacity off)\n", ""},
		"another scheduler": {"1.37.2", "kai-scheduler", "no node has the resources", nil, Waits, []Kind{SchedulerIgnores, SchedulerSays},
			"- the pod fits devices with counters and shares alone, and kai-scheduler finds none: some releases ignore these\n" +
				"  (docs/queues.md says which, and what to do)\n- the scheduler says: no node has the resources\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			p := tt.policy
			if p == nil {
				p = &v1alpha1.NodePolicy{}
			}
			b.ofRelease(tt.release, true, true, p)
			pod := podOf("trainer")
			pod.Spec.SchedulerName = tt.scheduler
			if tt.says != "" {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
					Reason: corev1.PodReasonUnschedulable, Message: tt.says}}
			}
			e := b.explain(AboutPod(pod, namespace(whole(1)), b.Objects))
			var kinds []Kind
			for _, c := range e.Causes {
				kinds = append(kinds, c.Kind)
			}
			got := text(t, e)
			if diff := cmp.Diff(tt.kinds, kinds); diff != "" || e.State != tt.state || !strings.Contains(got, tt.want) ||
				tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("got %s, want %s and %q without %q; causes (-want +got):\n%s\n%s", e.State, tt.state, tt.want, tt.not, diff, got)
			}
		})
	}
}

// Where the API server drops counters or what shares need, nodes do not offer what would need them, and the limit says so, with the remedy.
// What does not follow from that is a note.
func TestExplain_NotCounted(t *testing.T) {
	const (
		counters = "GPUs are offered in one tier each"
		shares   = "GPUs are not shared"
		beside   = "GPUs are shared only where their policy has no other tier"
	)
	for name, tt := range map[string]struct {
		release          string
		counters, shares bool
		request          resourceapi.DeviceRequest
		state            State
		limits, notes    []string
	}{
		"partitions without counters": {"1.37.2", false, true, asks("mig-1g.10gb.cleave.dev", 1), Refused, []string{counters, "no node has a device"}, nil},
		"of an older release": {"1.35.4", false, false, asks("mig-1g.10gb.cleave.dev", 1), Refused, []string{counters, "no node has a device"},
			[]string{shares, beside}},
		"shares without their gate": {"1.37.2", true, false, asks("mps.cleave.dev", 1), Refused, []string{shares, "no node has a device"}, nil},
		"shares beside":             {"1.36.1", true, true, asks("timeslice.cleave.dev", 1), Refused, []string{beside, "no node has a device"}, nil},
		"partitions, shares beside": {"1.36.1", true, true, asks("mig-1g.5gb.cleave.dev", 1), Refused, []string{"no node has a device"}, []string{beside}},
		"too many":                  {"1.37.2", false, true, asks("gpu.cleave.dev", 9), Refused, []string{"9 devices requested"}, []string{counters}},
		"whole GPUs":                {"1.35.4", false, false, asks("gpu.cleave.dev", 8), Fits, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			b.ofRelease(tt.release, tt.counters, tt.shares, &v1alpha1.NodePolicy{})
			e := b.explain(AboutClaim(claim("c", tt.request)))
			var limits, notes []string
			begin := func(of string) string { // as far as they are compared
				for _, known := range []string{counters, shares, beside, "no node has a device", "9 devices requested"} {
					if strings.HasPrefix(of, known) {
						return known
					}
				}
				return of
			}
			for _, c := range e.Limits {
				if limits = append(limits, begin(c.Message)); (c.Kind == NotCounted) != strings.HasPrefix(c.Message, "GPUs are") {
					t.Errorf("%q is of kind %s", c.Message, c.Kind)
				}
				if c.Kind == ClassSelector && len(tt.limits) > 1 && c.Remedy != "" {
					t.Errorf("a policy is no remedy: %q", c.Remedy)
				}
			}
			for _, n := range e.Notes {
				if !strings.HasPrefix(n, "A claim is allocated") {
					notes = append(notes, begin(n))
				}
			}
			if diff := cmp.Diff([][]string{tt.limits, tt.notes}, [][]string{limits, notes}); diff != "" || e.State != tt.state {
				t.Errorf("got %s, want %s; limits and notes (-want +got):\n%s\n%s", e.State, tt.state, diff, text(t, e))
			}
		})
	}
}
