// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// admitShares fails if a claim's shares do not fit in with those of other claims: the scheduler counts, but a limit that is
// given twice is none, so it is counted again here, where it holds also when the policy has changed. It is pure but for the
// shares of devices, in which it fills in what the node's policy decides.
//
// A claim that was known to be allocated before it is prepared was counted by the scheduler, by the policy of that time, together with
// all claims that are allocated still. It did not count those that are not and have a record: their pods were deleted by force, and
// their containers still run. So that is counted, too, unless it is known that there are none (terms.counted).
func admitShares(devices []device, v view, counted bool) error {
	for i := range devices {
		if devices[i].share != nil {
			completeShare(&devices[i], devices, v)
		}
	}
	for i := range devices {
		d := &devices[i]
		if d.share == nil || d.share.Exclusive {
			continue // a claim that has a GPU alone has all of it
		}
		others := v.others[d.gpu]
		if err := checkInterval(d, devices, others); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		known := shareBefore(v.known, d) != nil
		if shareBefore(v.have, d) != nil || known && counted {
			continue
		}
		if over := checkAmounts(d, devices, others); over != nil {
			if known {
				over.waitsForAny()
			}
			return fmt.Errorf("request %q: %w", d.request, over)
		}
	}
	return nil
}

// completeShare fills in what the node's policy says of a share and the claim does not. A claim that is prepared again keeps
// what it has, whatever the policy says by now: its containers may run.
func completeShare(d *device, devices []device, v view) {
	before := shareBefore(v.have, d)
	if d.share.Exclusive {
		return // the policy's numbers are for shares
	}
	if before != nil {
		d.share.CgroupMemory = before.CgroupMemory
		if d.share.Interval == "" {
			d.share.Interval = before.Interval
		}
		if d.share.MPS != nil && before.MPS != nil {
			d.share.MPS.ManyClients, d.share.MPS.BelowNormal = before.MPS.ManyClients, before.MPS.BelowNormal
		}
		return
	}
	byPolicy := d.offer.Sharing(d.shape).Interval
	if d.share.Kind != gpu.TimeSlice || d.share.Interval != "" || byPolicy == "" || byPolicy == string(v1alpha1.IntervalDefault) {
		return
	}
	// Where another claim asked for an interval, one that asks for none takes that, as it would without a policy.
	if other := otherInterval(d, devices, byPolicy); other != "" {
		return
	}
	if by, interval := v.others[d.gpu].paced(); len(by) == 0 || interval == byPolicy {
		d.share.Interval = byPolicy
	}
}

// shareBefore is the share that a claim's record has by the same allocation, or nil.
func shareBefore(have *records.Record, d *device) *records.Share {
	if have == nil {
		return nil
	}
	for _, h := range have.Shares(d.share.Kind) {
		if h.Device == d.name && h.Share.ID == d.share.ID {
			return h.Share
		}
	}
	return nil
}

// otherInterval is one that a claim asks for on the GPU of a device and that is not the given one; empty if there is none.
func otherInterval(d *device, devices []device, interval string) string {
	for i := range devices {
		o := &devices[i]
		if o.share != nil && o.share.Kind == gpu.TimeSlice && o.gpu == d.gpu && o.share.Interval != "" && o.share.Interval != interval {
			return o.share.Interval
		}
	}
	return ""
}

// checkInterval fails if the claim, or another one, has the GPU's time slices at another interval.
func checkInterval(d *device, devices []device, others gpuRecords) error {
	if d.share.Interval == "" {
		return nil
	}
	if other := otherInterval(d, devices, d.share.Interval); other != "" {
		return fmt.Errorf("the claim asks for time slices %s and %s on one GPU, which has one interval for all", d.share.Interval, other)
	}
	if by, interval := others.paced(); len(by) > 0 && interval != d.share.Interval {
		return blockedBy(by, fmt.Errorf("device %s has time slices %s because claim %s asked for them, or the node's policy for it, "+
			"and this claim asks for %s: ask for the same or for none",
			d.name, interval, by[0].Claim, d.share.Interval))
	}
	return nil
}

// checkAmounts says by whom a claim is blocked whose shares of a device are more than those of other claims leave; nil for nobody.
func checkAmounts(d *device, devices []device, on gpuRecords) *blockedError {
	sharing, others := d.offer.Sharing(d.shape), on.shared(d.name)
	var used amounts
	for _, o := range others {
		used.memory += o.memory
		used.cores += o.cores
	}
	for i := range devices {
		if o := &devices[i]; o.share != nil && o.name == d.name {
			used.add(o.share)
		}
	}
	for _, of := range []struct {
		name       string
		used, most int64
		has        func(sharedBy) int64
	}{
		{gpu.CapacityMemory, used.memory, sharing.Memory.Total, func(o sharedBy) int64 { return o.memory }},
		{gpu.CapacityCores, used.cores, sharing.Cores.Total, func(o sharedBy) int64 { return o.cores }},
	} {
		if of.most <= 0 || of.used <= of.most {
			continue
		}
		b := &blockedError{
			over: of.used - of.most,
			err: fmt.Errorf("the shares of %s would take %s %d of %d together: it is prepared once other shares are given back",
				d.name, of.name, of.used, of.most),
		}
		for _, o := range others {
			b.by = append(b.by, blocker{o.record, of.has(o)})
		}
		return b
	}
	return nil
}
