// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

// sampled are the values of a metric so far, by its labels; of a histogram, the numbers of observations.
func sampled(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if f.GetName() == name {
				all[strings.Join(labels, " ")] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// A pod is rejected by topology if it had room without the constraints of its claim.
func TestRejections(t *testing.T) {
	numa := resourceapi.FullyQualifiedName("resource.kubernetes.io/numaNode")
	gpus := func(n int64, aligned bool) func(*resourceapi.ResourceClaimSpec) {
		return func(s *resourceapi.ResourceClaimSpec) {
			s.Devices.Requests[0].Exactly.Count = n
			if aligned {
				s.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &numa}}
			}
		}
	}
	for name, tt := range map[string]struct {
		count   int64
		aligned bool
		want    string
	}{
		"more than a NUMA node has":         {5, true, "by=topology class=gpu"},
		"more than the node has":            {9, false, "by=room class=gpu"},
		"more than the node has in any way": {9, true, "by=room class=gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "")
			b.addNodes("hgx-h100", "n1")
			pod := b.pod("x", "gpu", gpus(tt.count, tt.aligned))
			b.preFilter(pod) // the allocator is asked first
			before := sampled(t, "cleave_scheduler_rejections_total")
			b.preFilter(pod)
			if diff := cmp.Diff(map[string]float64{tt.want: 1}, since(before, sampled(t, "cleave_scheduler_rejections_total"))); diff != "" {
				t.Errorf("rejections (-want +got):\n%s", diff)
			}
		})
	}
}

// The time in the queue is observed once, when a pod is bound.
func TestQueueDuration(t *testing.T) {
	const metric = "cleave_scheduler_queue_duration_seconds"
	b := newBed(t, "")
	b.addNodes("hgx-h100", "n1")
	pod := b.pod("x", "gpu")
	before := sampled(t, metric)
	b.preFilter(pod)
	state, got := b.preFilter(pod)
	if got != "n1" {
		t.Fatalf("got %s, want n1", got)
	}
	first, ok := b.plugin.queued.get(pod.UID)
	b.plugin.queued.note(pod.UID, first.Add(1))
	if again, _ := b.plugin.queued.get(pod.UID); !ok || !again.Equal(first) {
		t.Errorf("the first attempt was at %v, and then at %v", first, again)
	}
	for range 2 {
		b.plugin.PostBind(t.Context(), state, pod, "n1")
	}
	if diff := cmp.Diff(map[string]float64{"class=gpu": 1}, since(before, sampled(t, metric))); diff != "" {
		t.Errorf("observations (-want +got):\n%s", diff)
	}
}
