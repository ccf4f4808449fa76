// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// Reasons of Events about others who hand out the node's GPUs.
const (
	reasonConflict     = "GPUConflict"
	reasonConflictOver = "GPUConflictOver"
)

// lookBeside looks whether others hand out GPUs of the node, and tells whether that is another answer than before. A
// conflict is told when it is new, and again where that is asked for.
func (s *service) lookBeside(ctx context.Context, hw *hardware, again bool) (changed bool) {
	was := s.conflict
	s.conflict = conflictOf(hw.Node(), s.around.facts().pluginResources, slices.DeleteFunc(s.around.otherDevices(), s.names.isName))
	s.metrics.conflict.Set(number(s.conflict != nil))
	// A plugin that takes over from another of Cleave's is ready: the other one ends once it is.
	s.ready.beside(s.conflict)
	if s.conflict == nil {
		s.conflict = s.names.holding()
	}
	if s.conflict == nil {
		if was == nil {
			return false
		}
		klog.FromContext(ctx).Info("Nobody else hands out the node's GPUs any more")
		s.events.note(reasonConflictOver, "Nobody else hands out the node's GPUs any more: they are published")
		return true
	}
	news := text(was) != text(s.conflict)
	if news {
		klog.FromContext(ctx).Error(s.conflict, "The node's GPUs are not published")
	}
	if news || again {
		s.events.warn(reasonConflict, "The node's GPUs are not published: "+s.conflict.Error())
	}
	return was == nil
}

// conflictOf looks for others who hand out GPUs that the policy does not leave to them: two who do not know of each other would
// give one GPU to two pods. The error says who it is and what to do; nil if there is nobody. It is pure.
//
// Extended resources that a DeviceClass serves are not in a node's capacity: what is there comes from a device plugin. It
// does not say which GPUs it has, so there is no conflict only where the policy leaves all of them to it.
func conflictOf(node *policy.Node, resources []pluginResource, others []otherDevice) error {
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
			named = append(named, r.name+": "+r.quantity)
		}
		return fmt.Errorf("a device plugin hands out GPUs of this node (status.capacity has %s): take it off the node, for instance by the node selector of its DaemonSet, "+
			"or leave all GPUs of the node to it by a policy with exclude: true. The kubelet forgets a device plugin's resources five minutes after it is gone", strings.Join(named, ", "))
	}
	var named []string
	for _, d := range others {
		if ours[d.pci] {
			named = append(named, fmt.Sprintf("driver %s has GPU %s as device %s", d.driver, d.pci, d.name))
		}
	}
	if len(named) == 0 {
		return nil
	}
	const most = 8 // a partitioned GPU is many devices
	if more := len(named) - most; more > 0 {
		named = append(named[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("another DRA driver publishes GPUs of this node: %s. Take it off the node, or leave those GPUs to it by a policy with exclude: true", strings.Join(named, ", "))
}

// besideOthers is what is published of a node while somebody else hands out its GPUs: nothing but those GPUs of which claims
// hold something, tainted, as the scheduler forgets what devices consume that are gone.
func besideOthers(node *policy.Node, held func(g *gpu.GPU) gpu.Held) (*policy.Node, []publish.Taint) {
	inventory := *node.Node
	inventory.GPUs = nil
	left := &policy.Node{Node: &inventory}
	var taints []publish.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if has := held(g); has.Tiers == (gpu.Tiers{}) && len(has.Places) == 0 {
			continue
		}
		left.GPUs, left.Offers = append(left.GPUs, *g), append(left.Offers, *node.Offer(g))
		for _, s := range node.Shapes(g) {
			taints = append(taints, publish.Taint{Device: s.Name(), Key: publish.TaintConflict})
		}
	}
	return left, taints
}
