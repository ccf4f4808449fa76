// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Reasons of Events about the node's GPUs.
const (
	reasonAdded      = "GPUAdded"          // a GPU was found
	reasonReplaced   = "GPUReplaced"       // another GPU was found in the place of one
	reasonRemoved    = "GPURemoved"        // a GPU is gone
	reasonNeedsReset = "MIGModeNeedsReset" // the driver changes the MIG mode of a GPU only with a reset, so that it stays as it is
	reasonUnreadable = "UnreadableGPU"     // a GPU cannot be read; retried
)

// compareInventory reports which GPUs were added, replaced and removed, and which cannot be read.
func (p *Plan) compareInventory(o *Observed) {
	before, now := o.Memory.Inventory, o.Inventory
	p.Status.GPUs = len(now.GPUs)
	p.Memory.Inventory = now
	if before != nil && !before.SameGPUs(now) {
		p.NewInventory = true
		reportAdded(p, before, now)
		reportRemoved(p, before, now)
	}
	reportUnreadable(p, now, o.Now)
}

func reportAdded(p *Plan, before, now *gpu.Node) {
	for i := range now.GPUs {
		g := &now.GPUs[i]
		switch was := before.Find(g.PCI.DeviceName()); {
		case was == nil:
			p.report(Report{
				Log: "GPU added", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID, "product", g.ProductName},
				Reason: reasonAdded, Message: Describe(g) + " was found",
			})
		case was.UUID != g.UUID:
			p.report(Report{
				Log: "GPU replaced", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID, "before", was.UUID},
				Reason: reasonReplaced, Message: Describe(g) + " replaced " + was.UUID,
			})
		case g.MIG.NeedsReset && !was.MIG.NeedsReset:
			p.report(Report{
				Log: "The driver changes the MIG mode of a GPU only with a reset", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID,
					"enabled", g.MIG.Enabled},
				Warning: true, Reason: reasonNeedsReset, Message: fmt.Sprintf("%s: the driver changes its MIG mode only with a reset, "+
					"which its model needs nowhere else. The mode stays %s. To change it: %s", Describe(g),
					modeWords(g.MIG.Enabled, "on", "off"), gpu.SwitchMIG(g, g.PCI.String(), !g.MIG.Enabled)),
			})
		case !was.MIG.SameMode(g.MIG):
			modes{p}.reportChanged(g)
		}
	}
}

func reportRemoved(p *Plan, before, now *gpu.Node) {
	for i := range before.GPUs {
		g := &before.GPUs[i]
		if now.Find(g.PCI.DeviceName()) != nil {
			continue
		}
		p.Removed = append(p.Removed, g.PCI)
		p.report(Report{
			Log: "GPU removed", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID},
			Warning: true, Reason: reasonRemoved, Message: Describe(g) + " was removed",
		})
	}
}

// reportUnreadable reports each problem of unreadable GPUs once, and all again while any lasts.
func reportUnreadable(p *Plan, now *gpu.Node, at time.Time) {
	var all []string
	again := len(now.Problems) > 0 && at.Sub(p.Memory.UnreadableAt) >= cluster.RepeatAfter
	if again {
		p.Memory.UnreadableAt = at
	}
	for _, problem := range now.Problems {
		message := problem.Err.Error()
		all = append(all, message)
		if again || !slices.Contains(p.Memory.Unreadable, message) {
			p.report(Report{
				Log: "GPU cannot be read; retrying", Err: problem.Err, Values: []any{"index", problem.Index},
				Warning: true, Reason: reasonUnreadable, Message: message,
			})
		}
	}
	p.Memory.Unreadable = all
}

// Describe names a GPU in Events.
func Describe(g *gpu.GPU) string {
	return fmt.Sprintf("GPU %s (%s, %s)", g.PCI.DeviceName(), g.UUID, g.ProductName)
}
