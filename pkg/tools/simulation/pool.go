// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Pool is equal nodes.
type Pool struct {
	// Model names the nodes in the results.
	Model string
	// Nodes is how many there are.
	Nodes int
	// Node is each of them, with the offers of its policy.
	Node *policy.Node
	// Driver publishes for them.
	Driver string
	// Classes are the cluster's DeviceClasses.
	Classes allocator.Classes
}

// MaxNodes is the most nodes of a pool, those of the largest cluster that Kubernetes supports
// (https://kubernetes.io/docs/setup/best-practices/cluster-large/).
const MaxNodes = 5000

// request is one kind of pods as the pool sees it.
type request struct {
	pods *Pods
	// fits are the devices that match, for the measure.
	fits []packing.Request
	// slices are the compute slices that a pod takes, share is its share of a node's.
	slices, share float64
}

// plan is what all replays of a workload on a pool have in common.
type plan struct {
	pool      Pool
	published []*resourceapi.ResourceSlice
	measured  *pools.Node
	requests  []request
	gpus      int // of a node
	slices    int // compute slices of a node
	// limit bounds the search for a pod's devices.
	limit time.Duration
}

// SearchLimit is how long the search for a pod's devices may take. It is what kube-scheduler gives the allocator for a node
// (filterTimeout of DynamicResourcesArgs).
const SearchLimit = 10 * time.Second

// newPlan resolves what a workload asks of a pool. A request that no device of an empty node fits is an error.
func newPlan(ctx context.Context, pool Pool, w *Workload) (*plan, error) {
	p := &plan{pool: pool, gpus: len(pool.Node.GPUs), limit: SearchLimit}
	list := nodeslices.Objects(pool.Node, pool.Driver, "node")
	for i := range list.Items {
		p.published = append(p.published, &list.Items[i])
	}
	for i := range pool.Node.GPUs {
		p.slices += computeSlices(pool.Node, i)
	}
	cache := pools.NewCache()
	var err error
	if p.measured, err = cache.Node(p.published); err != nil {
		return nil, fmt.Errorf("read what the nodes publish: %w", err)
	}
	for i := range w.Pods {
		r, err := p.request(ctx, cache, &w.Pods[i])
		if err != nil {
			return nil, fmt.Errorf("pods %s: %w", w.Pods[i].Name, err)
		}
		p.requests = append(p.requests, r)
	}
	return p, nil
}

// ErrNoDevice is wrapped where even an empty node has no room for a pod.
var ErrNoDevice = errors.New("an empty node of the pool has no room for it")

func (p *plan) request(ctx context.Context, cache *pools.Cache, pods *Pods) (request, error) {
	claim := allocator.NewClaim(pods.Name, pods.DeviceClassName, pods.Count)
	demand, err := pools.NewDemand(p.pool.Classes.Get, &claim.Spec)
	if err != nil {
		return request{}, err
	}
	r := request{pods: pods}
	if r.fits, err = cache.Requests(ctx, p.measured, demand); err != nil {
		return request{}, err
	}
	uses, ok, err := p.measured.NewState().Fit(r.fits...)
	if err != nil {
		return request{}, err
	}
	if !ok {
		return request{}, fmt.Errorf("allocate %d of DeviceClass %s: %w", pods.Count, pods.DeviceClassName, ErrNoDevice)
	}
	for _, u := range uses {
		r.slices += p.sizeOf(u.Device)
	}
	r.share = r.slices / float64(p.slices)
	return r, nil
}

// sizeOf is what one allocation of a device takes of the compute slices of its GPU: all of them, those of the partition, or
// the part of them that a share has.
func (p *plan) sizeOf(device int) float64 {
	d := &p.measured.Model.Devices[device]
	for i := range p.pool.Node.GPUs {
		for _, s := range p.pool.Node.Shapes(&p.pool.Node.GPUs[i]) {
			switch {
			case s.Name() != d.Name:
			case s.IsPartition():
				return partOf(d) * float64(s.Profile.ComputeSlices)
			default:
				return partOf(d) * float64(computeSlices(p.pool.Node, i))
			}
		}
	}
	return 0
}

// partOf is the part of a device that one allocation takes: all of it, or the largest part that a share has of a capacity.
func partOf(d *packing.Device) float64 {
	if !d.Shared {
		return 1
	}
	part := 0.0
	for _, c := range d.Capacities {
		part = max(part, float64(c.Default)/float64(max(1, c.Total)))
	}
	return part
}

// computeSlices are those of a GPU: the most that a partition of it may have, or 1 where it is not partitioned.
func computeSlices(node *policy.Node, i int) int {
	most := 1
	for _, profile := range node.GPUs[i].MIG.Profiles {
		most = max(most, profile.ComputeSlices)
	}
	return most
}

// node of a replay.
type node struct {
	allocator *allocator.Node
	state     *packing.State
	// share of the node's compute slices that is allocated.
	share float64
	// answers by request, for as long as nothing of the node changes.
	answers []answer
}

// answer caches a request's fate on a node.
type answer struct {
	// predicted means that uses and fits are known, measured that cost is, and refused that the allocator found no place. Where
	// there are too many combinations to predict, unsure is set, and the allocator decides; givenUp, if that takes too long.
	predicted, fits, unsure, measured, refused, givenUp bool

	uses []packing.Use
	cost packing.Cost
}

// placement is a pod on a node.
type placement struct {
	node    int
	request int
	result  resourceapi.AllocationResult
	uses    []packing.Use
}

// newNodes are a pool's nodes, all empty.
func (p *plan) newNodes() ([]*node, error) {
	// All have one name: the allocator is asked of one at a time.
	first, err := allocator.NewNode(p.published, p.pool.Classes)
	if err != nil {
		return nil, err
	}
	nodes, empty := make([]*node, p.pool.Nodes), p.measured.NewState()
	for i := range nodes {
		nodes[i] = &node{allocator: first.EmptyClone(), state: empty.Clone(), answers: make([]answer, len(p.requests))}
	}
	return nodes, nil
}

// allocate asks the allocator for a place on a node.
func (p *plan) allocate(ctx context.Context, nodes []*node, at, request int, name string) (*placement, error) {
	n, r := nodes[at], &p.requests[request]
	result, err := n.allocator.AllocateFromClass(ctx, name, r.pods.DeviceClassName, r.pods.Count)
	if errors.Is(err, allocator.ErrNoFit) {
		n.answers[request].refused = true
		return nil, allocator.ErrNoFit
	}
	if err != nil {
		return nil, err
	}
	uses := p.measured.Uses(result.Devices.Results)
	n.state.Allocate(uses...)
	n.share += r.share
	clear(n.answers)
	return &placement{node: at, request: request, result: result, uses: uses}, nil
}

// release gives a pod's devices back.
func (p *plan) release(nodes []*node, gone *placement) {
	n := nodes[gone.node]
	n.allocator.Release(gone.result)
	n.state.Release(gone.uses...)
	n.share -= p.requests[gone.request].share
	clear(n.answers)
}

// predict is whether a request fits a node: what the allocator would find, on the model that all nodes share.
func (p *plan) predict(n *node, request int) (*answer, error) {
	a := &n.answers[request]
	if a.predicted {
		return a, nil
	}
	uses, ok, err := n.state.Fit(p.requests[request].fits...)
	if err != nil && !errors.Is(err, packing.ErrSearch) {
		return nil, err
	}
	a.predicted, a.fits, a.unsure, a.uses = true, ok, err != nil, uses
	return a, nil
}

func (p *plan) measure(n *node, request int) (*answer, error) {
	a, err := p.predict(n, request)
	if err == nil && a.fits && !a.measured {
		a.measured, a.cost = true, n.state.Cost(a.uses)
	}
	return a, err
}

// states are the nodes' for the measure.
func states(nodes []*node) []*packing.State {
	all := make([]*packing.State, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.state)
	}
	return all
}
