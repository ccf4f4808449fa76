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

// lookEvery is the time between two searches for GPUs that were added, replaced or removed. A search without changes lists
// one directory of sysfs.
const lookEvery = 10 * time.Second

// finder searches for GPUs alongside the control loop, which would otherwise block on a GPU that hangs on its first handle.
type finder struct {
	// now triggers an immediate search, links triggers reading NVLinks again.
	now, links chan struct{}
	// found is called after the inventory of the session has changed.
	found func()
	// problem is the last logged problem.
	problem string
}

func newFinder(found func()) finder {
	return finder{now: make(chan struct{}, 1), links: make(chan struct{}, 1), found: found}
}

// inventory is the part of the hardware that a finder uses.
type inventory interface {
	Node() *gpu.Node
	Rediscover(ctx context.Context, allocated func(pci gpu.PCIAddress) bool) (changed bool, err error)
	RereadLinks(ctx context.Context) (changed bool)
}

// run searches until ctx ends.
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
			// A pending fabric registration may be complete by now, and its cluster known.
			links = wanted || slices.ContainsFunc(in.Node().GPUs, func(g gpu.GPU) bool { return g.FabricState.Pending() })
			wanted = false
		case <-f.now:
		case <-f.links:
			wanted = true // at the next tick: partitions come and go in bursts
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

// report logs each reason why the search failed once.
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

// isAllocated reports whether any device of a GPU is allocated.
func isAllocated(all []*records.Record, pci gpu.PCIAddress) bool {
	return slices.ContainsFunc(all, func(r *records.Record) bool { return slices.Contains(r.GPUs(), pci.DeviceName()) })
}
