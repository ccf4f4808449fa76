// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// Explain finds out why claims, "namespace/name", are not allocated. It reads all slices, some milliseconds a node, so it is asked
// about several at once. Claims that are gone have no answer.
func (s *Source) Explain(ctx context.Context, keys []string) (map[string]*explain.Explanation, error) {
	questions := map[string]*explain.Question{}
	var asked []*explain.Question
	a := &asker{watches: &s.watches, namespaces: map[string]explain.Namespace{}, objects: explain.Objects{
		Driver: s.config.Driver, Now: time.Now(), Nodes: s.watches.machines(), Claims: listed[resourceapi.ResourceClaim](s.watches.claims),
		Classes: listed[resourceapi.DeviceClass](s.watches.classes), Rules: listed[resourceapi.DeviceTaintRule](s.watches.rules),
	}}
	for _, key := range keys {
		if questions[key] != nil {
			continue
		}
		if q := a.question(s, key); q != nil {
			questions[key], asked = q, append(asked, q)
		}
	}
	answers := map[string]*explain.Explanation{}
	if asked == nil {
		return answers, nil
	}
	cluster, kept := explain.NewCluster(a.objects, asked...), structured.Features{}
	for _, p := range listed[packedSlice](s.watches.slices) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		slice, err := p.unpack()
		if err != nil {
			return nil, err
		}
		kept.PartitionableDevices = kept.PartitionableDevices || len(slice.Spec.SharedCounters) > 0
		kept.ConsumableCapacity = kept.ConsumableCapacity || slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool {
			return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
		})
		cluster.AddSlice(slice)
	}
	s.scheduler(&cluster.Objects, kept)
	for _, key := range keys {
		if questions[key] == nil || answers[key] != nil {
			continue
		}
		e, err := cluster.Explain(ctx, questions[key])
		if err != nil {
			return nil, err
		}
		answers[key] = e
	}
	return answers, nil
}

// scheduler sets what the scheduler's allocator can do, and what the cluster does not count: by the API server's release, and by what its
// slices show that it keeps. cleave explain asks for the latter by a dry run; here nothing is written, not even so.
func (s *Source) scheduler(o *explain.Objects, kept structured.Features) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Features = allocator.Features(); s.release == nil {
		return
	}
	f := allocator.FeaturesOf(s.release)
	f.PartitionableDevices = f.PartitionableDevices || kept.PartitionableDevices
	f.ConsumableCapacity = f.ConsumableCapacity || kept.ConsumableCapacity
	o.Features, o.Release, o.Counted = f, s.release, counting.Of(s.release, f.PartitionableDevices, f.ConsumableCapacity)
}

// machines are the Nodes as far as claims depend on them; by their slices, where Nodes cannot be read.
func (w *watches) machines() []*corev1.Node {
	var all []*corev1.Node
	for _, m := range listed[machine](w.nodes) {
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: m.Labels}, Spec: corev1.NodeSpec{Unschedulable: m.cordoned, Taints: m.taints},
			Status: corev1.NodeStatus{Allocatable: m.extended},
		})
	}
	if w.nodes == nil {
		for _, name := range slices.Sorted(slices.Values(w.slices.GetIndexer().ListIndexFuncValues(byNode))) {
			all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	return all
}
