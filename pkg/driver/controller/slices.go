// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// View is the input of a node's slices.
type View struct {
	Node     *policy.Node
	Taints   []nodeslices.Taint
	Existing []Existing
	Lists    bool
	// Order is the names of the whole GPUs and of shared devices, ordered by allocation.
	Order []string
}

// publish decides which slices to publish.
func (p *Plan) publish(o *Observed) {
	if !o.Ready || o.Unlisted || p.ObserveAgain && !p.publishFirst(o) {
		return
	}
	node, view := p.view(o)
	now := &View{Node: node, Taints: view.Taints, Existing: o.Existing, Lists: view.Lists,
		Order: slices.Concat(view.WholeGPUs(node), view.Shared(node))}
	if before := p.Memory.Published; before != nil && reflect.DeepEqual(before, now) {
		return
	}
	p.Memory.Published = now
	p.Slices = nodeslices.Of(node, view)
	for _, existing := range o.Existing {
		nodeslices.NameExisting(p.Slices, existing.Device, existing.UUID)
	}
}

// publishFirst reports whether the first publication may precede the second observation of the node. Without a GPU in MIG mode
// there are no partitions to find first, and publishing takes a second. Otherwise slices follow the first recovery, so that a
// restart does not remove taints and restore them.
func (p *Plan) publishFirst(o *Observed) bool {
	return p.Memory.Published == nil && !slices.ContainsFunc(o.Inventory.GPUs, func(g gpu.GPU) bool { return g.MIG.Enabled })
}

// view returns the published inventory and the rest of the published state.
func (p *Plan) view(o *Observed) (*policy.Node, nodeslices.View) {
	node := p.Offer
	taints := slices.Concat(p.mpsTaints(node), p.releaseTaints(node), machine{p}.taints(node),
		HealthTaints(node, o.Conditions), SpecTaints(node, o.Incomplete),
		modes{p}.taints(node, o))
	for _, device := range o.Occupied {
		taints = append(taints, nodeslices.Taint{Device: device, Key: nodeslices.TaintOccupied})
	}
	if p.Memory.Conflict != "" {
		allocated := records.AllocatedOf(o.Records)
		left, conflicts := publishedInConflict(node, func(g *gpu.GPU) bool {
			has := allocated(g)
			return !p.Memory.Hidden || !has.IsEmpty()
		})
		node, taints = left, append(taints, conflicts...)
	}
	return node, nodeslices.View{
		Taints: taints, Free: freeGPUs(o.Allocations), Claims: shareClaims(o.Allocations), Lists: o.Lists, Compatible: o.Compatible,
	}
}

func taintAll(node *policy.Node, g *gpu.GPU, key string) []nodeslices.Taint {
	var taints []nodeslices.Taint
	for _, s := range node.Shapes(g) {
		taints = append(taints, nodeslices.Taint{Device: s.Name(), Key: key})
	}
	return taints
}

// mpsTaints are on devices that need the MPS supervisor while it is unavailable.
func (p *Plan) mpsTaints(node *policy.Node) []nodeslices.Taint {
	var taints []nodeslices.Taint
	if !p.Memory.MPSAway {
		return nil
	}
	for i := range node.GPUs {
		for _, s := range node.Shapes(&node.GPUs[i]) {
			if s.Share == gpu.MPS {
				taints = append(taints, nodeslices.Taint{Device: s.Name(), Key: nodeslices.TaintNoMPS})
			}
		}
	}
	return taints
}

// releaseTaints are on all devices while the driver is being released.
func (p *Plan) releaseTaints(node *policy.Node) []nodeslices.Taint {
	if p.Release == nil {
		return nil
	}
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		taints = append(taints, taintAll(node, &node.GPUs[i], nodeslices.TaintDraining)...)
	}
	return taints
}

// HealthTaints are on devices that include unhealthy parts of a GPU: one each, for the worst condition. It evicts nobody if all conditions
// of a device spare running programs.
func HealthTaints(node *policy.Node, all map[gpu.PCIAddress][]health.Condition) []nodeslices.Taint {
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		conditions := all[g.PCI]
		if len(conditions) == 0 {
			continue
		}
		effect := resourceapi.DeviceTaintEffect(node.Offer(g).Health.Effect)
		for _, s := range node.Shapes(g) {
			i := slices.IndexFunc(conditions, func(c health.Condition) bool { return c.Covers(s) })
			if i < 0 {
				continue
			}
			t := nodeslices.Taint{Device: s.Name(), Key: nodeslices.TaintUnhealthy, Value: conditions[i].Reason, Effect: effect}
			harmful := slices.ContainsFunc(conditions, func(c health.Condition) bool { return c.Covers(s) && !c.SparesRunning })
			if effect == resourceapi.DeviceTaintEffectNoExecute && !harmful {
				t.Effect = resourceapi.DeviceTaintEffectNoSchedule
			}
			taints = append(taints, t)
		}
	}
	return taints
}

// SpecTaints are on the devices of GPUs that cannot be injected into containers.
func SpecTaints(node *policy.Node, incomplete map[string]error) []nodeslices.Taint {
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		if g := &node.GPUs[i]; incomplete[g.PCI.DeviceName()] != nil {
			taints = append(taints, taintAll(node, g, nodeslices.TaintIncomplete)...)
		}
	}
	return taints
}

// freeGPUs reports whether no device of a GPU is allocated. Admin access is no allocation, nor is a device that is Released.
func freeGPUs(all []*records.Record) func(g *gpu.GPU) bool {
	allocated := map[string]bool{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess && !d.Released {
				allocated[d.GPU] = true
			}
		}
	}
	return func(g *gpu.GPU) bool { return !allocated[g.PCI.DeviceName()] }
}

// shareClaims is the number of claims that have a share of a shared GPU or partition.
func shareClaims(all []*records.Record) func(gpu.Shape) int {
	claims := map[string]int{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess && !d.Released && d.IsShared() {
				claims[d.Device]++
			}
		}
	}
	return func(s gpu.Shape) int { return claims[s.Name()] }
}
