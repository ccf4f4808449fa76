// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// load is the search as it begins, and the pods and claims that are not advised.
func (c *Cluster) load() (*search, []Kept) {
	s := &search{cache: c.cache, nodes: c.publish(), sets: map[string]int{}}
	for _, n := range s.nodes {
		for g := range n.state.Model().GPUs {
			n.gpus = append(n.gpus, &gpu{on: n, index: g, fixed: !n.takesPods() || n.nominated})
		}
		s.gpus = append(s.gpus, n.gpus...)
	}
	pods, kept := c.allocate(s)
	volumes, numbers := c.boundVolumes(), map[string]int{} // of demands
	for _, p := range slices.SortedFunc(maps.Values(pods), func(a, b *pod) int { return strings.Compare(a.name(), b.name()) }) {
		if p.on.wholly(p.uses) {
			p.on.fix(p.uses) // it would take a whole GPU elsewhere
			continue
		}
		demand := c.judge(p)
		if p.kept != "" {
			p.on.fix(p.uses)
			kept = append(kept, Kept{Namespace: p.object.Namespace, Pod: p.object.Name, Node: p.on.name, Reason: p.kept, Message: p.message})
			continue
		}
		number, known := numbers[demand.Key]
		if !known {
			number = len(s.demands)
			numbers[demand.Key] = number
			s.demands = append(s.demands, demand)
		}
		p.demand, p.needs, p.where = number, needsOf(p.object, c.served), s.nodesFor(p.object, volumes)
		for _, u := range p.uses {
			if g := p.on.gpuOf(u); !slices.Contains(g.pods, p) {
				g.pods = append(g.pods, p)
			}
		}
	}
	for _, n := range s.nodes {
		n.plans = make([]plan, len(s.demands))
		n.recount()
		s.whole += n.whole
	}
	slices.SortFunc(kept, func(a, b Kept) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(cmp.Or(a.Pod, a.Claim), cmp.Or(b.Pod, b.Claim)))
	})
	return s, kept
}

// publish reads the slices of nodes, by name. Nodes without a complete pool get a problem, but no advice.
func (c *Cluster) publish() []*node {
	rules := slices.SortedFunc(slices.Values(c.Rules), func(a, b *resourceapi.DeviceTaintRule) int { return strings.Compare(a.Name, b.Name) })
	if n := len(c.slices.Of("")); n > 0 {
		c.problems = append(c.problems, fmt.Sprintf("%d ResourceSlices are not of one node, and are not considered", n))
	}
	var found []*node
	for _, name := range c.slices.Nodes() {
		published, err := c.cache.Node(c.slices.Of(name), rules...)
		if err != nil {
			c.problems = append(c.problems, fmt.Sprintf("node %s is not considered: %v", name, err))
			continue
		}
		n := c.nodes[name]
		if n == nil {
			n = &node{}
		}
		n.name, n.published, n.state = name, published, published.NewState()
		found = append(found, n)
	}
	return found
}

// allocate adds the claims' devices to the nodes. It returns the pods that have parts of GPUs, and the claims that no pod uses.
func (c *Cluster) allocate(s *search) (map[*corev1.Pod]*pod, []Kept) {
	owners := map[string]*node{} // by pool
	for _, n := range s.nodes {
		for _, slice := range c.slices.Of(n.name) {
			owners[slice.Spec.Pool.Name] = n
		}
	}
	pods := map[*corev1.Pod]*pod{}
	var kept []Kept
	for _, key := range slices.Sorted(maps.Keys(c.claims)) {
		claim := c.claims[key]
		for _, n := range c.nodesOf(claim, owners) {
			uses := n.published.Uses(claim.Status.Allocation.Devices.Results)
			if len(uses) == 0 {
				continue // admin access, or devices that are not published anymore
			}
			n.state.Allocate(uses...)
			users := 0
			for _, user := range claim.Status.ReservedFor {
				if object := c.pods[user.UID]; object != nil {
					users++
					if pods[object] == nil {
						pods[object] = &pod{object: object, on: n}
					}
					pods[object].uses = append(pods[object].uses, uses...)
				}
			}
			if users > 0 {
				continue
			}
			n.fix(uses)
			if !n.wholly(uses) {
				kept = append(kept, Kept{Namespace: claim.Namespace, Claim: claim.Name, Node: n.name, Reason: Unused, Message: "no pod uses it"})
			}
		}
	}
	return pods, kept
}

// nodesOf are the nodes that a claim has devices of: one, unless somebody wrote its status by hand.
func (c *Cluster) nodesOf(claim *resourceapi.ResourceClaim, owners map[string]*node) (found []*node) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if n := owners[r.Pool]; r.Driver == c.Driver && n != nil && !slices.Contains(found, n) {
			found = append(found, n)
		}
	}
	return found
}

// fix notes that something on GPUs does not move.
func (n *node) fix(uses []packing.Use) {
	for _, u := range uses {
		n.gpuOf(u).fixed = true
	}
}

// wholly reports whether uses are of whole GPUs alone.
func (n *node) wholly(uses []packing.Use) bool {
	m := n.state.Model()
	return !slices.ContainsFunc(uses, func(u packing.Use) bool {
		d := &m.Devices[u.Device]
		return d.Shared || d.Size < m.GPUs[d.GPU].Units
	})
}

// boundVolumes are the node affinities of volumes, by "namespace/name" of their claims.
func (c *Cluster) boundVolumes() map[string]*nodeaffinity.NodeSelector {
	found := map[string]*nodeaffinity.NodeSelector{}
	for _, v := range c.Volumes {
		if v.Spec.ClaimRef == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		if selector, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required); err == nil { // the API server checks it
			found[v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name] = selector
		}
	}
	return found
}

// nodesFor is the number of the set of nodes that admit a pod, by their labels and taints and its volumes.
func (s *search) nodesFor(p *corev1.Pod, volumes map[string]*nodeaffinity.NodeSelector) int {
	var names []string
	var bound []*nodeaffinity.NodeSelector
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := p.Namespace + "/" + v.PersistentVolumeClaim.ClaimName
		if selector := volumes[name]; selector != nil {
			names, bound = append(names, name), append(bound, selector)
		}
	}
	key := placesKey(p, names)
	if number, ok := s.sets[key]; ok {
		return number
	}
	set, affinity := packing.NewBits(len(s.nodes)), nodeaffinity.GetRequiredNodeAffinity(p)
	for i, n := range s.nodes {
		if n.admits(p, affinity, bound) {
			set.Set(i)
		}
	}
	s.sets[key] = len(s.admitted)
	s.admitted = append(s.admitted, set)
	return s.sets[key]
}

// placesKey encodes the parts of a pod that decide which nodes admit it: equal pods have equal keys.
func placesKey(p *corev1.Pod, volumes []string) string {
	var required *corev1.NodeSelector
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	key, _ := json.Marshal([]any{p.Spec.NodeSelector, required, p.Spec.Tolerations, volumes}) // all of it can be encoded
	return string(key)
}
