// SPDX-License-Identifier: Apache-2.0

package explain

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Objects are those of the cluster, except its ResourceSlices.
type Objects struct {
	// Driver is the driver whose absence from a node is worth a cause.
	Driver string
	Nodes  []*corev1.Node
	// Claims of all namespaces; only allocated ones count.
	Claims  []*resourceapi.ResourceClaim
	Classes resourcepool.Classes
	Rules   []*resourceapi.DeviceTaintRule
	// Running are the pods; nil where nobody asks who could be evicted.
	Running *Running
}

// Cluster answers questions. ResourceSlices are added one by one and kept small: attributes that no question needs are left out,
// and equal slices of several nodes are one in memory, so that 1,000 equal nodes need little more than one.
type Cluster struct {
	Objects
	slices   *resourcepool.SliceSet
	inPool   map[resourcepool.ID][]*resourceapi.ResourceSlice
	selected map[selection][]bool
	uses     map[resourcepool.ID]map[string]*use
	needs    map[string]*need
	brokenBy error
}

// selectors are those of all clusters: the same classes are asked about again and again.
var selectors = resourcepool.NewSelectors()

// NewCluster prepares a cluster for questions, before its slices are added.
func NewCluster(o Objects, questions ...*Question) *Cluster {
	needed := resourcepool.NewAttributes("type", "profile", "productName") // for descriptions
	for _, class := range o.Classes {
		needed.AddSelectors(selectors, class.Spec.Selectors)
	}
	for _, q := range questions {
		for _, claim := range q.claims {
			for _, r := range requestsOf(claim) {
				needed.AddSelectors(selectors, r.selectors)
			}
			for _, constraint := range claim.Spec.Devices.Constraints {
				for _, name := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
					if name != nil {
						needed.Add(resourcepool.Identifier(*name))
					}
				}
			}
		}
	}
	c := &Cluster{
		Objects: o, slices: resourcepool.NewSliceSet(needed), inPool: map[resourcepool.ID][]*resourceapi.ResourceSlice{},
		selected: map[selection][]bool{}, uses: map[resourcepool.ID]map[string]*use{}, needs: map[string]*need{},
	}
	for _, claim := range o.Claims {
		c.addUses(claim)
	}
	return c
}

// AddSlice adds a ResourceSlice. It is not kept.
func (c *Cluster) AddSlice(s *resourceapi.ResourceSlice) {
	kept, err := c.slices.Add(s, c.Rules...)
	if err != nil {
		c.brokenBy = err
		return
	}
	pool := resourcepool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
	c.inPool[pool] = append(c.inPool[pool], kept)
}

// class is a DeviceClass; nil if there is none of that name.
func (c *Cluster) class(name string) *resourceapi.DeviceClass {
	found, _ := c.Classes.Get(name)
	return found
}

// use lists the allocations of a device.
type use struct {
	claims []Use
	// exclusive is set for a device that is not shared.
	exclusive bool
	results   []resourceapi.DeviceRequestAllocationResult
	consumed  map[resourceapi.QualifiedName]resource.Quantity
}

// addUses notes the devices that a claim is allocated, as the scheduler does: admin access uses none.
func (c *Cluster) addUses(claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	by := useOf(claim)
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		pool := c.uses[resourcepool.ID{Driver: r.Driver, Pool: r.Pool}]
		if pool == nil {
			pool = map[string]*use{}
			c.uses[resourcepool.ID{Driver: r.Driver, Pool: r.Pool}] = pool
		}
		u := pool[r.Device]
		if u == nil {
			u = &use{consumed: map[resourceapi.QualifiedName]resource.Quantity{}}
			pool[r.Device] = u
		}
		u.claims, u.results = append(u.claims, by), append(u.results, r)
		if r.ShareID == nil {
			u.exclusive = true
			continue
		}
		for name, q := range r.ConsumedCapacity {
			sum := u.consumed[name]
			sum.Add(q)
			u.consumed[name] = sum
		}
	}
}

// useOf names a claim with its users.
func useOf(claim *resourceapi.ResourceClaim) Use {
	u := Use{Claim: nameOf(claim), Ending: claim.DeletionTimestamp != nil}
	for _, user := range claim.Status.ReservedFor {
		u.Pods = append(u.Pods, user.Name)
	}
	return u
}
