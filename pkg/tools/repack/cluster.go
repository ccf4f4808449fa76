// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Objects are those of the cluster, except ResourceSlices and pods, of which there are many.
type Objects struct {
	Driver string
	Nodes  []*corev1.Node
	// Claims of all namespaces and drivers; only allocated ones count.
	Claims  []*resourceapi.ResourceClaim
	Classes resourcepool.Classes
	Rules   []*resourceapi.DeviceTaintRule
	Budgets []*policyv1.PodDisruptionBudget
	// Volumes bind pods to nodes by their node affinity.
	Volumes []*corev1.PersistentVolume
}

// Cluster collects what advice depends on. Attributes of devices that no selector needs are left out, and equal slices of
// several nodes are one in memory.
type Cluster struct {
	Objects
	cache  *pools.Cache
	slices *resourcepool.SliceSet
	nodes  map[string]*node
	// claims by "namespace/name", and those that a pod uses, by its UID.
	claims map[string]*resourceapi.ResourceClaim
	users  map[types.UID][]*resourceapi.ResourceClaim
	pods   map[types.UID]*corev1.Pod
	// waiting counts pods that ask for devices and have no node yet.
	waiting int
	// moving are the pods that are evicted or scheduled, by name since when; tainted are the nodes with the taint of a repack.
	moving   map[string]time.Time
	tainted  []string
	problems []string
}

// NewCluster prepares for slices and pods. Problems are what could not be read.
func NewCluster(o Objects, problems ...string) *Cluster {
	c := &Cluster{
		Objects: o, problems: problems, cache: pools.NewCache(), nodes: map[string]*node{},
		claims: map[string]*resourceapi.ResourceClaim{}, users: map[types.UID][]*resourceapi.ResourceClaim{},
		pods: map[types.UID]*corev1.Pod{}, moving: map[string]time.Time{},
	}
	var own []*resourceapi.ResourceClaim
	for _, claim := range o.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		c.claims[claim.Namespace+"/"+claim.Name] = claim
		for _, user := range claim.Status.ReservedFor {
			c.users[user.UID] = append(c.users[user.UID], claim)
		}
		if driver, _ := driversOf(claim, o.Driver); driver {
			own = append(own, claim)
		}
	}
	c.slices = resourcepool.NewSliceSet(c.cache.Attributes(o.Classes.Get, own...))
	for _, n := range o.Nodes {
		c.nodes[n.Name] = newNode(c.untainted(n))
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

// AddSlice adds a ResourceSlice. It is not kept.
func (c *Cluster) AddSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.Driver != c.Driver {
		return
	}
	if _, err := c.slices.Add(s); err != nil {
		c.problems = append(c.problems, err.Error())
	}
}

// AddPod adds a pod. It is kept only if it uses devices of the driver.
func (c *Cluster) AddPod(p *corev1.Pod) {
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return
	case p.Spec.NodeName == "":
		if c.asks(p) {
			c.waiting++
			if n := c.nodes[p.Status.NominatedNodeName]; n != nil {
				n.nominated = true
			}
			if p.DeletionTimestamp == nil && !undecidable(p) {
				c.moving[p.Namespace+"/"+p.Name] = p.CreationTimestamp.Time
			}
		}
		return
	}
	if n := c.nodes[p.Spec.NodeName]; n != nil {
		n.reserve(needsOf(p, c.served), 1)
	}
	for _, claim := range c.users[p.UID] {
		if own, _ := driversOf(claim, c.Driver); own {
			p.ManagedFields = nil
			if p.DeletionTimestamp != nil && isEvicted(p) {
				c.moving[p.Namespace+"/"+p.Name] = p.DeletionTimestamp.Time
			}
			c.pods[p.UID] = p
		}
	}
}

// asks reports whether a pod asks for devices: by claims, or by extended resources, for which the scheduler creates one.
func (c *Cluster) asks(p *corev1.Pod) bool {
	return len(p.Spec.ResourceClaims) > 0 || slices.ContainsFunc(needsOf(p, func(corev1.ResourceName) bool { return false }),
		func(n need) bool { return c.served(n.resource) })
}

// served reports whether an extended resource is devices of a DeviceClass.
func (c *Cluster) served(resource corev1.ResourceName) bool {
	return slices.ContainsFunc(c.Classes, func(class *resourceapi.DeviceClass) bool {
		return string(resource) == resourceapi.ResourceDeviceClassPrefix+class.Name ||
			class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == string(resource)
	})
}
