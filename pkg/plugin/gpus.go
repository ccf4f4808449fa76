// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// lookEvery is the time between two looks for GPUs that were added, replaced or taken out. A look that finds nothing lists
// one directory of sysfs.
const lookEvery = 10 * time.Second

// finder looks for GPUs beside the control loop, which a GPU that hangs at its first handle would keep waiting.
type finder struct {
	// now has a value when there is a reason to look before the time, links when NVLinks are to be read again.
	now, links chan struct{}
	// found has a value after the inventory of the session has changed.
	found chan struct{}
	// problem is what was logged last.
	problem string
}

func newFinder() finder {
	return finder{now: make(chan struct{}, 1), links: make(chan struct{}, 1), found: make(chan struct{}, 1)}
}

// inventory is what a finder asks of the hardware.
type inventory interface {
	Node() *gpu.Node
	Rediscover(ctx context.Context, held func(pci gpu.PCIAddress) bool) (changed bool, err error)
	RereadLinks(ctx context.Context) (changed bool)
}

// run looks until ctx ends.
func (f *finder) run(ctx context.Context, in inventory, held func(pci gpu.PCIAddress) bool) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	wanted := false
	for {
		links := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A registration that was pending may be completed by now, and its cluster be known.
			links = wanted || slices.ContainsFunc(in.Node().GPUs, func(g gpu.GPU) bool { return g.FabricState.Pending() })
			wanted = false
		case <-f.now:
		case <-f.links:
			wanted = true // with the next tick: partitions come and go in bursts
			continue
		}
		changed, err := in.Rediscover(ctx, held)
		f.report(ctx, err)
		if links && in.RereadLinks(ctx) {
			klog.FromContext(ctx).Info("NVLinks or fabrics of GPUs have changed")
			changed = true
		}
		if changed {
			signal(f.found)
		}
	}
}

// report logs why GPUs could not be looked for, once each.
func (f *finder) report(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		f.problem = ""
		return
	}
	if err.Error() != f.problem {
		f.problem = err.Error()
		klog.FromContext(ctx).Error(err, "Could not look for GPUs; it is tried again", "every", lookEvery)
	}
}

// holds reports whether claims have anything of a GPU.
func holds(all []*records.Record, pci gpu.PCIAddress) bool {
	return slices.ContainsFunc(all, func(r *records.Record) bool { return slices.Contains(r.GPUs(), pci.DeviceName()) })
}

// takeIn publishes an inventory that has changed.
func (s *service) takeIn(ctx context.Context, hw *hardware, p *publisher) {
	before := hw.Node()
	limits, err := s.memoryLimits(ctx, hw.Session)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Memory of time slices on GPUs that were added is not limited")
	} else {
		hw.limits = limits
	}
	hw.offer(s.supervisor.noMPS())
	s.tellGPUs(ctx, before.Node, hw.Node().Node)
	if err := s.sessions.Begin(deviceNames(hw.Node().Node)); err != nil {
		// Without it partitions on record are not taken for the plugin's own, which leaves them alone.
		klog.FromContext(ctx).Error(err, "Could not note the driver's session of GPUs that have changed")
	}
	if err := s.spec.Refresh(ctx, hw.Session.Node()); err != nil { // tried again by keepSpec
		klog.FromContext(ctx).Error(err, "Could not write the CDI spec for GPUs that have changed")
	}
	s.recover(ctx, hw, p)
}

// tellGPUs says which GPUs came and went.
func (s *service) tellGPUs(ctx context.Context, before, now *gpu.Node) {
	logger := klog.FromContext(ctx)
	for i := range now.GPUs {
		g := &now.GPUs[i]
		switch was := before.Find(g.PCI.DeviceName()); {
		case was == nil:
			logger.Info("A GPU was found", "gpu", g.PCI.DeviceName(), "uuid", g.UUID, "product", g.ProductName)
			s.events.note("GPUAdded", nameOf(g)+" was found")
		case was.UUID != g.UUID:
			logger.Info("A GPU was replaced", "gpu", g.PCI.DeviceName(), "uuid", g.UUID, "before", was.UUID)
			s.events.note("GPUReplaced", nameOf(g)+" was found in the place of "+was.UUID)
		}
	}
	for i := range before.GPUs {
		g := &before.GPUs[i]
		if now.Find(g.PCI.DeviceName()) == nil {
			logger.Info("A GPU was taken out", "gpu", g.PCI.DeviceName(), "uuid", g.UUID)
			s.events.warn("GPURemoved", nameOf(g)+" was taken out")
			s.health.set(g.PCI, nil)
			s.metrics.healthy.DeleteLabelValues(g.PCI.DeviceName())
		}
	}
	s.tellProblems(ctx, now)
	s.metrics.gpus.Set(float64(len(now.GPUs)))
}

// tellProblems says which GPUs cannot be read, when that is another answer than before.
func (s *service) tellProblems(ctx context.Context, node *gpu.Node) {
	for _, problem := range node.Problems {
		if slices.Contains(s.unreadable, problem.Err.Error()) {
			continue
		}
		klog.FromContext(ctx).Error(problem.Err, "A GPU cannot be read; it is tried again", "index", problem.Index)
		s.events.warn("UnreadableGPU", problem.Err.Error())
	}
	s.unreadable = nil
	for _, problem := range node.Problems {
		s.unreadable = append(s.unreadable, problem.Err.Error())
	}
}

// VerifyGPU has GPUs looked for at once where the inventory is found to be wrong.
func (h *hardware) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	err := h.Session.VerifyGPU(ctx, g)
	if h.look != nil && (errors.Is(err, gpu.ErrReplaced) || errors.Is(err, gpu.ErrMinorChanged)) {
		signal(h.look)
	}
	return err
}
