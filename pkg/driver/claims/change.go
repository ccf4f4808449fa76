// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// change is the fourth step: it changes the hardware as the devices need. It waits for clients of a GPU until the
// deadline.
func (a *preparation) change(ctx context.Context) error {
	waiting, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	for i := range a.devices {
		d := &a.devices[i]
		if d.partition == nil && d.shape.IsShare() {
			d.partition = partitionOf(a.devices[:i], d.name) // a claim may have several shares of one partition
		}
		if err := a.Partitions.create(waiting, a.backend, d, a.devices[:i], a.view.others[d.gpu]); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
	}
	if !slices.ContainsFunc(a.devices, func(d device) bool { return d.share != nil }) {
		return nil
	}
	return a.Shares.start(ctx, a.backend, a.toRecord(), a.view.others)
}

// partitionOf returns the partition of the first device of a name that has one, or nil.
func partitionOf(devices []device, name string) *gpu.Partition {
	for i := range devices {
		if p := devices[i].partition; p != nil && devices[i].name == name {
			copied := *p
			return &copied
		}
	}
	return nil
}
