// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Reasons of Events about conflicts with other drivers that offer the node's GPUs.
const (
	reasonConflict         = "GPUConflict"         // another driver or a device plugin offers the node's GPUs, too: they are not published
	reasonConflictResolved = "GPUConflictResolved" // no other driver or device plugin offers the node's GPUs any more
)

// maxNamed limits the devices that an Event about a conflict names: a partitioned GPU has many.
const maxNamed = 8

// considerConflicts checks whether other drivers offer the node's GPUs, or may still allocate them: if so, nothing new is
// published. A conflict is reported when it is new, and periodically.
func (p *Plan) considerConflicts(o *Observed) {
	others := slices.DeleteFunc(slices.Clone(o.Cluster.Others), o.isName)
	conflict := conflictOf(p.Offer, o.Cluster.Node.PluginResources, others)
	// A plugin that replaces another Cleave plugin reports ready: the old one exits only then.
	p.Status.Conflict = conflict
	if hold := o.hold(); conflict == nil && hold != "" {
		conflict = errors.New(hold)
	}
	was := p.Memory.Conflict
	p.Memory.Conflict = text(conflict)
	withdrawals{p}.hide(o)
	if conflict == nil {
		if was != "" {
			const message = "No other driver or device plugin offers the node's GPUs any more: they are published"
			p.report(Report{Log: message, Reason: reasonConflictResolved, Message: message})
		}
		return
	}
	r := Report{Warning: true, Reason: reasonConflict, Message: "The node's GPUs are not published: " + conflict.Error()}
	news := was != conflict.Error()
	if news {
		r.Log, r.Err = "The node's GPUs are not published", conflict
	}
	if news || o.Changed.Has(Periodic) {
		p.report(r)
	}
}

// conflictOf finds other drivers that offer GPUs which the policy does not leave to them: two drivers advertising the same GPUs can
// allocate one GPU twice. The error names the driver and the remedy; nil without a conflict.
//
// Extended resources that a DeviceClass serves are not in a node's capacity: those listed there come from a device plugin. It does
// not report which GPUs it has, so only a policy that leaves it all of them avoids a conflict.
func conflictOf(node *policy.Node, resources []cluster.PluginResource, others []cluster.Device) error {
	ours := map[gpu.PCIAddress]bool{}
	for i := range node.GPUs {
		if g := &node.GPUs[i]; !node.Offer(g).Excluded {
			ours[g.PCI] = true
		}
	}
	if len(ours) == 0 {
		return nil
	}
	if len(resources) > 0 {
		var named []string
		for _, r := range resources {
			named = append(named, r.Name+": "+r.Quantity)
		}
		return fmt.Errorf("a device plugin offers GPUs of this node (status.capacity has %s): remove it from the node, for example with the "+
			"node selector of its DaemonSet, "+
			"or leave all GPUs of the node to it through a policy with exclude: true. The kubelet forgets a device plugin's resources five "+
			"minutes after it is gone", strings.Join(named, ", "))
	}
	var named []string
	for _, d := range others {
		if ours[d.PCI] {
			named = append(named, fmt.Sprintf("driver %s has GPU %s as device %s", d.Driver, d.PCI, d.Name))
		}
	}
	if len(named) == 0 {
		return nil
	}
	if more := len(named) - maxNamed; more > 0 {
		named = append(named[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("another DRA driver publishes GPUs of this node: %s. Remove it from the node, or leave those GPUs to it through a "+
		"policy with exclude: true", strings.Join(named, ", "))
}

// publishedInConflict returns the inventory published during a conflict: only GPUs with allocations, or possible ones, and tainted,
// because the scheduler forgets the consumption of devices that are no longer published.
func publishedInConflict(node *policy.Node, allocated func(g *gpu.GPU) bool) (*policy.Node, []nodeslices.Taint) {
	inventory := *node.Node
	inventory.GPUs = nil
	left := &policy.Node{Node: &inventory, Offers: []policy.Offer{}}
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if !allocated(g) {
			continue
		}
		left.GPUs, left.Offers = append(left.GPUs, *g), append(left.Offers, *node.Offer(g))
		taints = append(taints, taintAll(node, g, nodeslices.TaintConflict)...)
	}
	return left, taints
}
