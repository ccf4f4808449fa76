// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// ErrIncomplete is returned for a node without a complete and valid pool.
var ErrIncomplete = errors.New("no pool is complete and valid")

// ErrUnpredictable is returned for what only the allocator can predict.
var ErrUnpredictable = errors.New("only the allocator can decide this")

// Node has the devices that a driver publishes for one node.
type Node struct {
	Name, Driver string
	Model        *packing.Model
	// Counted means that devices compete for counters, are shared, or are partitions.
	Counted bool

	pools   []string // by the model's number of a pool
	objects []*resourceapi.Device
	taints  [][]resourceapi.DeviceTaint // by device; of slices and rules
	index   map[deviceKey]int
	tainted packing.Bits
	known   map[string][]packing.Request // by the key of a demand
}

type deviceKey struct{ pool, device string }

// Node is what a driver publishes for a node, from all its slices for that node, in any order, and the DeviceTaintRules of
// the cluster. It knows pools that are published in full; where there is none, it returns ErrIncomplete. Devices that not
// only one node has give ErrUnpredictable. The slices must not change afterwards.
func (c *Cache) Node(published []*resourceapi.ResourceSlice, rules ...*resourceapi.DeviceTaintRule) (*Node, error) {
	for _, s := range published {
		if s.Spec.NodeName == nil {
			return nil, fmt.Errorf("read ResourceSlice %s: it is not of one node: %w", s.Name, ErrUnpredictable)
		}
	}
	found := slices.DeleteFunc(resourcepool.Gather(published, nil), func(p *resourcepool.Pool) bool { return !p.IsUsable() })
	if len(found) == 0 {
		return nil, ErrIncomplete
	}
	n := &Node{
		Name: *published[0].Spec.NodeName, Driver: published[0].Spec.Driver,
		index: map[deviceKey]int{}, known: map[string][]packing.Request{},
	}
	b := builder{node: n}
	for _, p := range found {
		b.add(p)
	}
	n.Model = c.share(packing.NewModel(b.counters, b.blocks, b.gpus, b.devices))
	n.tainted = packing.NewBits(len(n.objects))
	for i := range n.objects {
		n.taint(i, rules)
	}
	return n, nil
}

// taint notes the taints of a device that keep claims off.
func (n *Node) taint(i int, rules []*resourceapi.DeviceTaintRule) {
	var found []resourceapi.DeviceTaint
	for _, t := range resourcepool.TaintsOf(resourcepool.ID{Driver: n.Driver, Pool: n.Pool(i)}, n.objects[i], rules) {
		if resourcepool.Refuses(t, nil) {
			found = append(found, t)
		}
	}
	n.taints = append(n.taints, found)
	if len(found) > 0 {
		n.tainted.Set(i)
	}
}

// State is a node with what claims are allocated. Those without an allocation must not be among them.
func (c *Cache) State(published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim, rules []resourceapi.DeviceTaintRule,
) (*packing.State, error) {
	node, err := c.Node(pointers(published), pointers(rules)...)
	if err != nil {
		return nil, err
	}
	state := node.NewState()
	for i := range claims {
		state.Allocate(node.Uses(claims[i].Status.Allocation.Devices.Results)...)
	}
	return state, nil
}

func pointers[T any](all []T) []*T {
	to := make([]*T, len(all))
	for i := range all {
		to[i] = &all[i]
	}
	return to
}

// NewState is the node with nothing allocated.
func (n *Node) NewState() *packing.State { return packing.NewState(n.Model, n.tainted) }

// Device is the index of a device.
func (n *Node) Device(pool, name string) (int, bool) {
	i, ok := n.index[deviceKey{pool, name}]
	return i, ok
}

// Object is a device as it is published.
func (n *Node) Object(i int) *resourceapi.Device { return n.objects[i] }

// Pool is the name of a device's pool.
func (n *Node) Pool(i int) string { return n.pools[n.Model.Devices[i].Pool] }

// Uses are those of the results of an allocation that are of this node. Results with admin access use nothing, and devices
// that are not published anymore are left out: the allocator does not charge their counters, either.
func (n *Node) Uses(results []resourceapi.DeviceRequestAllocationResult) []packing.Use {
	var uses []packing.Use
	for i := range results {
		r := &results[i]
		if r.Driver != n.Driver || r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		at, ok := n.Device(r.Pool, r.Device)
		if !ok {
			continue
		}
		use := packing.Use{Device: at}
		if d := &n.Model.Devices[at]; d.Shared {
			use.Amounts = make([]int64, len(d.Capacities))
			for j := range d.Capacities {
				if q, ok := r.ConsumedCapacity[resourceapi.QualifiedName(d.Capacities[j].Name)]; ok {
					use.Amounts[j] = thousandths(q)
				}
			}
		}
		uses = append(uses, use)
	}
	return uses
}
