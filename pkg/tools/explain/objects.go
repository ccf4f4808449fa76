// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Objects are those of the cluster, except its ResourceSlices.
type Objects struct {
	// Driver is the driver whose absence from a node is worth a cause.
	Driver string
	Nodes  []*corev1.Node
	// Claims of all namespaces; only allocated ones count.
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	Rules   []*resourceapi.DeviceTaintRule
}

// Cluster answers questions. ResourceSlices are added one by one and kept small: attributes that no question needs are left out,
// and equal slices of several nodes are one in memory, so that 1,000 equal nodes need little more than one.
type Cluster struct {
	Objects
	needed   attributes
	cel      *cel.Cache
	classes  lister
	slices   *inspect.SliceSet
	contents map[int]*content
	onNode   map[string][]*slice
	shared   []*slice
	inPool   map[resourcepool.ID][]*slice
	uses     map[resourcepool.ID]map[string]*use
	needs    map[string]*need
	brokenBy error
}

// slice is a ResourceSlice, whose devices may be those of others.
type slice struct {
	*resourceapi.ResourceSlice
	content *content
}

// content is what equal slices of several nodes have in common.
type content struct {
	id int
	// selected is what expressions say of the devices.
	selected map[string][]match
}

// compiled are expressions of all clusters: the same classes are asked about again and again.
var compiled = cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})

// NewCluster prepares a cluster for questions, before its slices are added.
func NewCluster(o Objects, questions ...*Question) *Cluster {
	c := &Cluster{
		Objects: o, cel: compiled, classes: lister{},
		contents: map[int]*content{}, slices: inspect.NewSliceSet(), onNode: map[string][]*slice{},
		inPool: map[resourcepool.ID][]*slice{}, uses: map[resourcepool.ID]map[string]*use{},
		needs: map[string]*need{}, needed: attributes{names: map[string]bool{}},
	}
	for _, class := range o.Classes {
		c.classes[class.Name] = class
		c.needed.addSelectors(c.cel, class.Spec.Selectors)
	}
	for _, name := range []string{"type", "profile", "productName"} { // for descriptions
		c.needed.names[name] = true
	}
	for _, q := range questions {
		for _, claim := range q.claims {
			for _, r := range requestsOf(claim) {
				c.needed.addSelectors(c.cel, r.selectors)
			}
			for _, constraint := range claim.Spec.Devices.Constraints {
				for _, name := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
					if name != nil {
						c.needed.names[identifier(resourceapi.QualifiedName(*name))] = true
					}
				}
			}
		}
	}
	for _, claim := range o.Claims {
		c.addUses(claim)
	}
	return c
}

// AddSlice adds a ResourceSlice. It is not kept.
func (c *Cluster) AddSlice(s *resourceapi.ResourceSlice) {
	devices := slices.Clone(s.Spec.Devices)
	for i := range devices {
		devices[i].Attributes = c.needed.of(devices[i].Attributes)
		devices[i].Taints = c.taintsOf(s, &devices[i])
	}
	added, id, err := c.slices.Add(s, devices)
	if err != nil {
		c.brokenBy = err
		return
	}
	if c.contents[id] == nil {
		c.contents[id] = &content{id: id, selected: map[string][]match{}}
	}
	kept := &slice{added, c.contents[id]}
	pool := resourcepool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
	c.inPool[pool] = append(c.inPool[pool], kept)
	if name := s.Spec.NodeName; name != nil && *name != "" {
		c.onNode[*name] = append(c.onNode[*name], kept)
		return
	}
	c.shared = append(c.shared, kept)
}

// taintsOf are the taints of a device with those of DeviceTaintRules.
func (c *Cluster) taintsOf(s *resourceapi.ResourceSlice, d *resourceapi.Device) []resourceapi.DeviceTaint {
	taints := d.Taints
	for _, r := range c.Rules {
		if resourcepool.Taints(r, resourcepool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}, d.Name) {
			taints = append(slices.Clip(taints), r.Spec.Taint)
		}
	}
	return taints
}

// lister is the cluster's classes.
type lister map[string]*resourceapi.DeviceClass

// List implements structured.DeviceClassLister.
func (l lister) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, c := range l {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Get implements structured.DeviceClassLister.
func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	if c := l[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

// use is what of a device is allocated.
type use struct {
	claims []Use
	// exclusive is set for a device that is not shared.
	exclusive bool
	shares    []resourceapi.DeviceRequestAllocationResult
	consumed  map[resourceapi.QualifiedName]resource.Quantity
}

// addUses notes the devices that a claim is allocated, as the scheduler does: admin access uses none.
func (c *Cluster) addUses(claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	by := Use{Claim: nameOf(claim), Ending: claim.DeletionTimestamp != nil}
	for _, user := range claim.Status.ReservedFor {
		by.Pods = append(by.Pods, user.Name)
	}
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
		u.claims = append(u.claims, by)
		if r.ShareID == nil {
			u.exclusive = true
			continue
		}
		u.shares = append(u.shares, r)
		for name, q := range r.ConsumedCapacity {
			sum := u.consumed[name]
			sum.Add(q)
			u.consumed[name] = sum
		}
	}
}
