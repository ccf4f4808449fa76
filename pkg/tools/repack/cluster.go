// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Objects are those of the cluster, except ResourceSlices and pods, of which there are many.
type Objects struct {
	Driver string
	Nodes  []*corev1.Node
	// Claims of all namespaces and drivers; only allocated ones count.
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	Rules   []*resourceapi.DeviceTaintRule
	Budgets []*policyv1.PodDisruptionBudget
	// Volumes bind pods to nodes by their node affinity.
	Volumes []*corev1.PersistentVolume
}

// Cluster collects what advice depends on. Attributes of devices that no selector needs are left out, and equal slices of
// several nodes are one in memory.
type Cluster struct {
	Objects
	cache   *pools.Cache
	slices  *inspect.SliceSet
	classes map[string]*resourceapi.DeviceClass
	nodes   map[string]*node
	// claims by "namespace/name", and those that a pod uses, by its UID.
	claims map[string]*resourceapi.ResourceClaim
	users  map[types.UID][]*resourceapi.ResourceClaim
	pods   map[types.UID]*corev1.Pod
	// waiting counts pods with claims that have no node yet.
	waiting int
	// needed are the attributes that are kept; nil for all.
	needed   map[string]bool
	problems []string
}

// NewCluster prepares for slices and pods.
func NewCluster(o Objects) *Cluster {
	c := &Cluster{
		Objects: o, cache: pools.NewCache(), slices: inspect.NewSliceSet(), classes: map[string]*resourceapi.DeviceClass{},
		nodes: map[string]*node{}, claims: map[string]*resourceapi.ResourceClaim{}, users: map[types.UID][]*resourceapi.ResourceClaim{},
		pods: map[types.UID]*corev1.Pod{},
	}
	for _, class := range o.Classes {
		c.classes[class.Name] = class
	}
	var expressions []string
	for _, claim := range o.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		c.claims[claim.Namespace+"/"+claim.Name] = claim
		for _, user := range claim.Status.ReservedFor {
			c.users[user.UID] = append(c.users[user.UID], claim)
		}
		if driver, _ := driversOf(claim, o.Driver); driver {
			expressions = append(expressions, c.expressions(claim)...)
		}
	}
	slices.Sort(expressions)
	if identifiers, all := c.cache.Attributes(slices.Compact(expressions)...); !all {
		c.needed = map[string]bool{}
		for _, identifier := range identifiers {
			c.needed[identifier] = true
		}
	}
	for _, n := range o.Nodes {
		c.nodes[n.Name] = newNode(n)
	}
	return c
}

// driversOf reports whether a claim has devices of the driver, and of others.
func driversOf(claim *resourceapi.ResourceClaim, driver string) (own, others bool) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		own, others = own || r.Driver == driver, others || r.Driver != driver
	}
	return own, others
}

// expressions are those by which a claim selects devices.
func (c *Cluster) expressions(claim *resourceapi.ResourceClaim) (all []string) {
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly == nil {
			continue // it is not predicted
		}
		selectors := slices.Clone(r.Exactly.Selectors)
		if class := c.classes[r.Exactly.DeviceClassName]; class != nil {
			selectors = append(selectors, class.Spec.Selectors...)
		}
		for _, s := range selectors {
			if s.CEL != nil {
				all = append(all, s.CEL.Expression)
			}
		}
	}
	return all
}

// AddSlice adds a ResourceSlice. It is not kept.
func (c *Cluster) AddSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.Driver != c.Driver {
		return
	}
	devices := s.Spec.Devices
	if c.needed != nil {
		devices = slices.Clone(devices)
		for i := range devices {
			some := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			for name, value := range devices[i].Attributes {
				if c.needed[identifier(name)] {
					some[name] = value
				}
			}
			devices[i].Attributes = some
		}
	}
	if _, _, err := c.slices.Add(s, devices); err != nil {
		c.problems = append(c.problems, err.Error())
	}
}

// AddPod adds a pod. It is kept only if it uses devices of the driver.
func (c *Cluster) AddPod(p *corev1.Pod) {
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return
	case p.Spec.NodeName == "":
		if len(p.Spec.ResourceClaims) > 0 {
			c.waiting++
		}
		return
	}
	if n := c.nodes[p.Spec.NodeName]; n != nil {
		n.reserve(needsOf(p, c.served), 1)
	}
	for _, claim := range c.users[p.UID] {
		if own, _ := driversOf(claim, c.Driver); own {
			p.ManagedFields = nil
			c.pods[p.UID] = p
		}
	}
}

// served reports whether an extended resource is devices of a DeviceClass.
func (c *Cluster) served(resource corev1.ResourceName) bool {
	return slices.ContainsFunc(c.Classes, func(class *resourceapi.DeviceClass) bool {
		return string(resource) == resourceapi.ResourceDeviceClassPrefix+class.Name ||
			class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == string(resource)
	})
}

// class finds a DeviceClass.
func (c *Cluster) class(name string) (*resourceapi.DeviceClass, error) {
	if class := c.classes[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

// identifier is the name of an attribute without its domain.
func identifier(name resourceapi.QualifiedName) string {
	return string(name[strings.LastIndexByte(string(name), '/')+1:])
}
