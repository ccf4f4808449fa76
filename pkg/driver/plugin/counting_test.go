// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// newCountingBed is a plugin whose API server keeps no counters while off is set.
func newCountingBed(t *testing.T) (b *controlBed, off *atomic.Bool) {
	t.Helper()
	b, off = newControlBed(t), new(atomic.Bool)
	b.client.Discovery().(*fake.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.37.1"}
	b.client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if !cmp.Equal(create.GetCreateOptions().DryRun, []string{metav1.DryRunAll}) {
			return false, nil, nil
		}
		slice := create.GetObject().DeepCopyObject().(*resourceapi.ResourceSlice)
		if off.Load() {
			slice.Spec.Devices[0].ConsumesCounters = nil
		}
		return true, slice, nil
	})
	return b, off
}

// A feature gate of the API server is switched off and on again under the plugin. A slice that came back without a field says so.
func TestControl_CountersDropped(t *testing.T) {
	b, off := newCountingBed(t)
	b.run("a30")
	var all []string
	b.published("at the start", func(devices map[string][]string) bool {
		all = namesOf(devices)
		return len(all) > 2
	})
	p := &plugin{written: b.writes.note, fatal: func(err error) { t.Errorf("the plugin ends: %v", err) }}
	dropped := fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, &resourceslice.DroppedFieldsError{
		DesiredSlice: &resourceapi.ResourceSlice{}, ActualSlice: &resourceapi.ResourceSlice{}})
	off.Store(true)
	p.HandleError(t.Context(), dropped, "published")
	b.published("gate off", func(devices map[string][]string) bool { return len(devices) == 2 })
	if got := testutil.ToFloat64(b.metrics.notCounted.WithLabelValues("counters")); got != 1 {
		t.Errorf("the metric says %v, want 1", got)
	}
	off.Store(false)
	b.counting.Doubt()
	b.published("gate on", func(devices map[string][]string) bool { return cmp.Equal(all, namesOf(devices)) })
}

// A feature gate was switched off while the plugin was away: what it had published stays at first, with a taint.
func TestControl_RestartOffersLess(t *testing.T) {
	b, off := newCountingBed(t)
	stop := b.run("a30")
	all := 0
	b.published("gate on", func(devices map[string][]string) bool {
		all = len(devices)
		return all > 2
	})
	stop()
	off.Store(true)
	again := &controlBed{service: newService(b.config), t: t, client: b.client, asks: true}
	again.service.client, again.events = b.client, b.events
	again.run("a30")
	again.published("restarted", func(devices map[string][]string) bool {
		withdrawn := 0
		for _, taints := range devices {
			if slices.Contains(taints, nodeslices.TaintWithdrawn) {
				withdrawn++
			}
		}
		return len(devices) == all && withdrawn == all-2
	})
}

func namesOf(devices map[string][]string) []string {
	return slices.Sorted(maps.Keys(devices))
}
