// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// lookEvery is the time between two looks for GPUs that were added, replaced or removed. A look that finds nothing lists
// one directory of sysfs.
const lookEvery = 10 * time.Second

// finder looks for GPUs alongside the control loop, which a GPU that hangs at its first handle would keep waiting.
type finder struct {
	// now has a value when there is a reason to look before the time, links when NVLinks are to be read again.
	now, links chan struct{}
	// found is called after the inventory of the session has changed.
	found func()
	// problem is what was logged last.
	problem string
}

func newFinder(found func()) finder {
	return finder{now: make(chan struct{}, 1), links: make(chan struct{}, 1), found: found}
}

// inventory is what a finder asks of the hardware.
type inventory interface {
	Node() *gpu.Node
	Rediscover(ctx context.Context, allocated func(pci gpu.PCIAddress) bool) (changed bool, err error)
	RereadLinks(ctx context.Context) (changed bool)
}

// run looks until ctx ends.
func (f *finder) run(ctx context.Context, in inventory, allocated func(pci gpu.PCIAddress) bool) {
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
		changed, err := in.Rediscover(ctx, allocated)
		f.report(ctx, err)
		if links && in.RereadLinks(ctx) {
			klog.FromContext(ctx).Info("NVLinks or fabrics of GPUs have changed")
			changed = true
		}
		if changed {
			f.found()
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
		klog.FromContext(ctx).Error(err, "Looking for GPUs failed; retrying", "every", lookEvery)
	}
}

// isAllocated reports whether anything of a GPU is allocated.
func isAllocated(all []*records.Record, pci gpu.PCIAddress) bool {
	return slices.ContainsFunc(all, func(r *records.Record) bool { return slices.Contains(r.GPUs(), pci.DeviceName()) })
}
