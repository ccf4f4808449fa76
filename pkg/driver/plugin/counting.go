// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Reasons of Events about resources that the cluster does not count: GPUs then offer fewer tiers than their policy contains.
const (
	reasonNotCounted = "TiersNotCounted" // the cluster does not count what tiers need: GPUs offer fewer than their policy contains
	reasonCounted    = "TiersCounted"    // the cluster counts all tiers of the policy
)

// counting tracks and reports which resources the cluster counts.
type counting struct {
	*cluster.Counting
	metrics *metrics
	events  *cluster.Events
	changed func()
	// missing: the cluster was reported not to count all resources.
	missing bool
}

// report reports resources that the cluster does not count, and once it counts all again.
func (c *counting) report(ctx context.Context) {
	counted, all := c.Counted(), true
	report := func(what string, why error) {
		gauge := c.metrics.notCounted.WithLabelValues(what)
		gauge.Set(0)
		if why == nil {
			return
		}
		gauge.Set(1)
		all = false
		klog.FromContext(ctx).Info("GPUs offer fewer tiers than their policy contains", "reason", why.Error())
		c.events.Warn(reasonNotCounted, why.Error())
	}
	report("counters", counted.Counters)
	report("shares", cmp.Or(counted.Shares, counted.SharesBeside))
	if c.missing && all {
		const message = "The cluster counts all tiers: GPUs offer all tiers of their policy"
		klog.FromContext(ctx).Info(message)
		c.events.Note(reasonCounted, message)
	}
	c.missing = !all
}

// follow tracks which resources the cluster counts until ctx ends.
func (c *counting) follow(ctx context.Context, every time.Duration) {
	c.Follow(ctx, every, func() {
		c.report(ctx)
		c.changed()
	})
}
