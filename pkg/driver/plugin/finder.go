// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	// healthy is that of the metrics, missing are the GPUs that the last search has set there.
	healthy *prometheus.GaugeVec
	missing []gpu.PCIAddress
	// problem is the last logged problem.
	problem string
}

func newFinder(found func(), healthy *prometheus.GaugeVec) finder {
	return finder{now: make(chan struct{}, 1), links: make(chan struct{}, 1), found: found, healthy: healthy}
}

// inventory is the part of the hardware that a finder uses.
type inventory interface {
	Node() *gpu.Node
	Rediscover(ctx context.Context, allocated func(pci gpu.PCIAddress) bool) (changed bool, err error)
	Missing() []gpu.PCIAddress
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
		f.noteMissing(in)
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

// noteMissing counts GPUs that the driver does not read as unhealthy: the health monitor knows those of the inventory only, and a GPU that
// was lost before the plugin's start is not among them.
func (f *finder) noteMissing(in inventory) {
	missing, node := in.Missing(), in.Node()
	for _, pci := range missing {
		f.healthy.WithLabelValues(pci.DeviceName()).Set(0)
	}
	for _, pci := range f.missing {
		if !slices.Contains(missing, pci) && node.Find(pci.DeviceName()) == nil { // the monitor has what was found
			f.healthy.DeleteLabelValues(pci.DeviceName())
		}
	}
	f.missing = missing
}

// isAllocated reports whether any device of a GPU is allocated.
func isAllocated(all []*records.Record, pci gpu.PCIAddress) bool {
	return slices.ContainsFunc(all, func(r *records.Record) bool { return slices.Contains(r.GPUs(), pci.DeviceName()) })
}
