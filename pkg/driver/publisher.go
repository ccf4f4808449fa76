package driver

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// slicePublisher is the part of the kubelet plugin helper that writes ResourceSlices in the background.
type slicePublisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// publisher keeps the slices of a node as they should be.
type publisher struct {
	to     slicePublisher
	client kubernetes.Interface
	driver string
	pool   string
	// published is what was handed on last; nil before the first time.
	published []resourceslice.Slice
	// arriving is the index of the slice that was changed last, which the API server may not have yet; nil if all is there.
	arriving *int
}

// syncTimeout bounds the wait for one slice to reach the API server; syncPoll is how often it is looked for.
const (
	syncTimeout = 10 * time.Second
	syncPoll    = 100 * time.Millisecond
)

// update publishes what differs from before. Slices change one at a time, each when the one before has reached the API
// server: a pool of which several slices change gets a new generation, and nothing can be allocated from it until all
// are there. The last one is waited for only once another one is to change, so that a change of one slice costs one
// request.
//
// No device that claims hold is ever missing, nor a counter that it consumes, as the scheduler would hand them out again:
//   - What is published before and after has them: what claims hold is offered whatever the policy says, and the counters of
//     a GPU depend on its board alone.
//   - Where slices change one at a time, each state in between has the same counters, and each device that is published
//     before and after. That is so only if no device changes its slice and no counters change; see oneByOne.
//   - Else all slices are handed on at once. The helper then removes, changes and makes slices in an order of its own, but
//     from its first write to its last the pool is not whole: slices are fewer than they say that they are, or those of the
//     new generation are. From such a pool the scheduler allocates nothing (GatherPools of
//     k8s.io/dynamic-resource-allocation/structured).
func (p *publisher) update(ctx context.Context, want resourceslice.DriverResources) error {
	slices := want.Pools[p.pool].Slices
	if !oneByOne(p.published, slices) {
		p.arriving = nil
		return p.publish(ctx, slices)
	}
	for i := range slices {
		if resourceslice.DevicesDeepEqual(p.published[i].Devices, slices[i].Devices) {
			continue
		}
		p.awaitOther(ctx, i)
		next := append([]resourceslice.Slice{}, p.published...)
		next[i] = slices[i]
		if err := p.publish(ctx, next); err != nil {
			return err
		}
		p.arriving = &i
	}
	return nil
}

// oneByOne tells whether slices can change one after the other: their number and their counters stay, and no device comes
// to another slice, where it would be twice, or nowhere, for a while.
func oneByOne(was, want []resourceslice.Slice) bool {
	if len(was) != len(want) {
		return false
	}
	sliceOf := map[string]int{}
	for i := range was {
		if !apiequality.Semantic.DeepEqual(was[i].SharedCounters, want[i].SharedCounters) {
			return false
		}
		for _, d := range was[i].Devices {
			sliceOf[d.Name] = i
		}
	}
	for i := range want {
		for _, d := range want[i].Devices {
			if before, ok := sliceOf[d.Name]; ok && before != i {
				return false
			}
		}
	}
	return true
}

// awaitOther waits for the slice that was changed last, unless it is the one that is to change now.
func (p *publisher) awaitOther(ctx context.Context, index int) {
	if p.arriving == nil || *p.arriving == index {
		return
	}
	if err := p.wait(ctx, *p.arriving, p.published[*p.arriving].Devices); err != nil {
		// The helper goes on trying; what is lost is only the pool's staying allocatable meanwhile.
		klog.FromContext(ctx).Error(err, "A ResourceSlice is slow to arrive; changing the next one", "slice", *p.arriving)
	}
	p.arriving = nil
}

// publish hands slices on and remembers them once that has worked.
func (p *publisher) publish(ctx context.Context, slices []resourceslice.Slice) error {
	err := p.to.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.pool: {Slices: slices}}})
	if err == nil {
		p.published = slices
	}
	return err
}

// refresh has the helper compare what was published with what is there. Where nothing differs nothing is written.
func (p *publisher) refresh(ctx context.Context) {
	if p.published == nil {
		return
	}
	if err := p.publish(ctx, p.published); err != nil {
		klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices again")
	}
}

// wait returns once the API server has a slice with these devices at an index.
func (p *publisher) wait(ctx context.Context, index int, devices []resourceapi.Device) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	selector := fields.Set{"spec.nodeName": p.pool, "spec.driver": p.driver}.String()
	// The helper names slices by their index (k8s.io/dynamic-resource-allocation/resourceslice).
	prefix := fmt.Sprintf("%05x-", index)
	for {
		list, err := p.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			for _, s := range list.Items {
				if strings.HasPrefix(s.Name, prefix) && resourceslice.DevicesDeepEqual(s.Spec.Devices, devices) {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for ResourceSlice %d: %w", index, ctx.Err())
		case <-tick.C:
		}
	}
}

// publish brings the slices in line with hardware and records.
func (s *service) publish(ctx context.Context, hw *hardware, p *publisher) {
	node, view := s.view(hw)
	err := p.update(ctx, s.resources(node, view))
	s.ready.published(err)
	s.ranking.published(view.WholeGPUs(node), err)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not publish ResourceSlices")
	}
}

// view is the inventory that is published, and what is published beside it.
func (s *service) view(hw *hardware) (*gpu.Node, publish.View) {
	node := hw.Node()
	taints := append(s.supervisor.taints(node), s.drainTaints(node)...)
	taints = append(taints, s.health.taints(node)...)
	for _, device := range s.engine.Occupied() {
		taints = append(taints, publish.Taint{Device: device, Key: publish.TaintOccupied})
	}
	if s.conflict != nil {
		left, conflicts := besideOthers(node, records.HeldOf(s.engine.Records()))
		node, taints = left, append(taints, conflicts...)
	}
	return node, publish.View{Taints: taints, Free: freeGPUs(s.engine.Records()), Lists: s.lists.taken, Compatible: s.config.compatible()}
}

// resources are the slices as they should be now.
func (s *service) resources(node *gpu.Node, view publish.View) resourceslice.DriverResources {
	r := publish.Resources(node, s.config.NodeName, view)
	for _, existing := range s.engine.Existing() {
		publish.NameExisting(r, s.config.NodeName, existing.Device, existing.UUID)
	}
	return r
}
