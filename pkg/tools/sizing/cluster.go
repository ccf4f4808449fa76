// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Cluster collects what advice depends on.
type Cluster struct {
	driver string
	cache  *pools.Cache
	slices *resourcepool.SliceSet
	claims []*resourceapi.ResourceClaim
	// owners are those of pods with claims.
	owners   map[types.UID]string
	problems []string
}

// NewCluster prepares for slices and pods. Claims that are not allocated are left out.
func NewCluster(driver string, claims []*resourceapi.ResourceClaim) *Cluster {
	c := &Cluster{driver: driver, cache: pools.NewCache(), owners: map[types.UID]string{}}
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			c.claims = append(c.claims, claim)
		}
	}
	slices.SortFunc(c.claims, func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	attributes := c.cache.Attributes(nil)
	attributes.Add("productName")
	c.slices = resourcepool.NewSliceSet(attributes)
	return c
}

// AddSlice adds a ResourceSlice. It is not kept.
func (c *Cluster) AddSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.Driver != c.driver || s.Spec.NodeName == nil {
		return
	}
	if _, err := c.slices.Add(s); err != nil {
		c.problems = append(c.problems, err.Error())
	}
}

// AddPod adds a pod, of which the owner is kept.
func (c *Cluster) AddPod(p *corev1.Pod) {
	if len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil {
		c.owners[p.UID] = cmp.Or(repack.ControllerOf(p), "Pod/"+p.Name)
	}
}

// node is a node, and what is allocated of it.
type node struct {
	published *pools.Node
	state     *packing.State
	kinds     []Device // by device
}

// holding is what a claim has.
type holding struct {
	claim    *resourceapi.ResourceClaim
	workload string
	on       *node
	uses     []packing.Use
	// asked is the first device's kind.
	asked Device
	// follows is the kind that is advised.
	follows *Device
}

// keys are those of its devices.
func (h *holding) keys() (keys []Key) {
	for _, u := range h.uses {
		keys = append(keys, Key{h.claim.Namespace, h.claim.Name, h.on.state.Model().Devices[u.Device].Name})
	}
	return keys
}

// load reads nodes by name, and what claims have of them.
func (c *Cluster) load() (nodes []*node, held []*holding) {
	byPool := map[string]*node{}
	for _, name := range c.slices.Nodes() {
		published, err := c.cache.Node(c.slices.Of(name))
		if err != nil {
			c.problems = append(c.problems, "node "+name+" is not considered: "+err.Error())
			continue
		}
		n := &node{published: published, state: published.NewState()}
		for i := range n.state.Model().Devices {
			n.kinds = append(n.kinds, kindOf(c.driver, published, i))
			byPool[published.Pool(i)] = n
		}
		nodes = append(nodes, n)
	}
	complete(nodes)
	for _, claim := range c.claims {
		var on *node
		results := claim.Status.Allocation.Devices.Results
		for i := range results {
			if results[i].Driver == c.driver && on == nil {
				on = byPool[results[i].Pool]
			}
		}
		if on == nil {
			continue
		}
		if uses := on.published.Uses(results); len(uses) > 0 {
			on.state.Allocate(uses...)
			held = append(held, &holding{claim: claim, workload: c.workloadOf(claim), on: on, uses: uses, asked: on.kinds[uses[0].Device]})
		}
	}
	return nodes, held
}

// workloadOf is who owns the pods of a claim.
func (c *Cluster) workloadOf(claim *resourceapi.ResourceClaim) string {
	found := ""
	for _, user := range claim.Status.ReservedFor {
		if owner := c.owners[user.UID]; owner != "" && (found == "" || owner < found) {
			found = owner
		}
	}
	return cmp.Or(found, "ResourceClaim/"+claim.Name)
}

func kindOf(driver string, n *pools.Node, i int) Device {
	object, d := n.Object(i), &n.Model.Devices[i]
	return Device{
		Product: resourcepool.Text(driver, object, "productName"), Shape: d.Shape, shared: d.Shared,
		Memory: capacityOf(driver, object, "memory"), Multiprocessors: capacityOf(driver, object, "multiprocessors"),
	}
}

func capacityOf(driver string, d *resourceapi.Device, name string) int64 {
	c, ok := d.Capacity[resourceapi.QualifiedName(name)]
	if !ok {
		c = d.Capacity[resourceapi.QualifiedName(driver+"/"+name)]
	}
	return c.Value.Value()
}

// complete gives whole GPUs the multiprocessors of the partition that takes all of one, on any node, as they do not publish them.
func complete(nodes []*node) {
	kinds := kindsOf(nodes)
	for _, n := range nodes {
		for i := range n.kinds {
			whole := &n.kinds[i]
			for j := range kinds {
				if k := &kinds[j]; whole.Shape == "gpu" && k.Product == whole.Product && !k.smaller(whole) {
					whole.Multiprocessors = max(whole.Multiprocessors, k.Multiprocessors)
				}
			}
		}
	}
}
