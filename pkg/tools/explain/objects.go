// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/structured"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
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
	// Features are those of the scheduler's allocator; none for those of allocator.Features.
	Features structured.Features
	// Release is the API server's, and taken for the scheduler's; nil where it is not known. Counted is what it fails to count, and nodes
	// therefore do not offer.
	Release *version.Version
	Counted counting.Counted
	// Now is the time of the question; zero where the age of pods is of no matter.
	Now time.Time
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
	names    *names
	needs    map[string]*need
	brokenBy error
}

// selectors are those of all clusters: the same classes are asked about again and again.
var selectors = selector.NewCache()

// NewCluster prepares a cluster for questions, before its slices are added.
func NewCluster(o Objects, questions ...*Question) *Cluster {
	if o.Features == (structured.Features{}) {
		o.Features = allocator.Features()
	}
	needed := resourcepool.NewAttributes("type", "profile", "productName") // for descriptions
	for _, class := range o.Classes {
		selectors.AddTo(needed, class.Spec.Selectors)
	}
	for _, q := range questions {
		for _, claim := range q.claims {
			for _, r := range requestsOf(claim) {
				selectors.AddTo(needed, r.selectors)
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
		selected: map[selection][]bool{}, uses: usesOf(o.Running, o.Claims...), needs: map[string]*need{},
		names: newNames(),
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
	c.names.add(s, c.slices.Content(kept))
	pool := resourcepool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
	c.inPool[pool] = append(c.inPool[pool], kept)
}

// otherDriver notes that the cluster has devices of Cleave's other name alone: what is said of the driver's own devices is left out then.
func (c *Cluster) otherDriver() []string {
	others := map[string]string{v1alpha1.Group: nvidia.DriverName, nvidia.DriverName: v1alpha1.Group}
	other, published := others[c.Driver], false
	for id := range c.inPool {
		if id.Driver == c.Driver {
			return nil
		}
		published = published || id.Driver == other
	}
	selects := func(class *resourceapi.DeviceClass) bool { return resourcepool.SelectsDriver(class, c.Driver) }
	if !published || slices.ContainsFunc(c.Classes, selects) {
		return nil
	}
	return []string{fmt.Sprintf("No node has devices of %s, but of %s: add --driver-name %s.", c.Driver, other, other)}
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

// usesOf are the devices that claims are allocated, as the scheduler has it: admin access uses none.
func usesOf(running *Running, claims ...*resourceapi.ResourceClaim) map[resourcepool.ID]map[string]*use {
	uses := map[resourcepool.ID]map[string]*use{}
	started := running.started()
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		by := useOf(claim, started)
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			id := resourcepool.ID{Driver: r.Driver, Pool: r.Pool}
			if uses[id] == nil {
				uses[id] = map[string]*use{}
			}
			if uses[id][r.Device] == nil {
				uses[id][r.Device] = &use{consumed: map[resourceapi.QualifiedName]resource.Quantity{}}
			}
			uses[id][r.Device].add(by, r)
		}
	}
	return uses
}

func (u *use) add(by Use, r resourceapi.DeviceRequestAllocationResult) {
	u.claims, u.results = append(u.claims, by), append(u.results, r)
	if r.ShareID == nil {
		u.exclusive = true
		return
	}
	for name, q := range r.ConsumedCapacity {
		sum := u.consumed[name]
		sum.Add(q)
		u.consumed[name] = sum
	}
}

// started are the times at which pods started, by "namespace/name".
func (r *Running) started() map[string]*metav1.Time {
	all := map[string]*metav1.Time{}
	if r != nil {
		for _, p := range r.Pods {
			all[p.Namespace+"/"+p.Name] = p.Status.StartTime
		}
	}
	return all
}

// useOf names a claim with its users, and since when it has its devices: if the scheduler did not note the time (feature
// DRADeviceBindingConditions), since the first of its pods started.
func useOf(claim *resourceapi.ResourceClaim, started map[string]*metav1.Time) Use {
	u := Use{Claim: nameOf(claim), Ending: claim.DeletionTimestamp != nil}
	since := claim.Status.Allocation.AllocationTimestamp
	for _, user := range claim.Status.ReservedFor {
		u.Pods = append(u.Pods, user.Name)
		if began := started[claim.Namespace+"/"+user.Name]; claim.Status.Allocation.AllocationTimestamp == nil && began != nil &&
			(since == nil || began.Before(since)) {
			since = began
		}
	}
	if since != nil {
		u.Since = new(since.UTC())
	}
	return u
}
