// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// admitShares fails if a claim's shares do not fit with those of other claims. The scheduler counts them too, but a limit that is
// granted twice is no limit, so they are counted again here, which also covers policy changes. It is pure, except that it fills in
// the policy's settings in the devices' shares.
//
// If a claim was known to be allocated before it was prepared, the scheduler counted it, by the policy of that time, together with
// all claims that are still allocated. It did not count deallocated claims with a record: their pods were force-deleted, but
// their containers still run. Those are counted here unless it is known that there are none (terms.counted).
func admitShares(devices []device, v view, counted bool) error {
	for i := range devices {
		if devices[i].share != nil {
			completeShare(&devices[i], devices, v)
		}
	}
	for i := range devices {
		d := &devices[i]
		if d.share == nil || d.share.Exclusive {
			continue // an exclusive claim has the whole device
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

// completeShare fills in settings of a share that the claim leaves to the node's policy. A claim that is prepared again keeps
// its settings, whatever the current policy: its containers may be running.
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
	// If another claim requested an interval, a claim that requests none uses that one, as it would without a policy.
	if other := otherInterval(d, devices, byPolicy); other != "" {
		return
	}
	if by, interval := v.others[d.gpu].paced(); len(by) == 0 || interval == byPolicy {
		d.share.Interval = byPolicy
	}
}

// shareBefore returns the share in a claim's record for the same allocation, or nil.
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

// otherInterval returns an interval, different from the given one, that the claim requests on a device's GPU; empty if there is none.
func otherInterval(d *device, devices []device, interval string) string {
	for i := range devices {
		o := &devices[i]
		if o.share != nil && o.share.Kind == gpu.TimeSlice && o.gpu == d.gpu && o.share.Interval != "" && o.share.Interval != interval {
			return o.share.Interval
		}
	}
	return ""
}

// checkInterval fails if the claim itself, or another claim, uses a different time-slice interval on the GPU.
func checkInterval(d *device, devices []device, others gpuRecords) error {
	if d.share.Interval == "" {
		return nil
	}
	if other := otherInterval(d, devices, d.share.Interval); other != "" {
		return fmt.Errorf("the claim requests time slices %s and %s on one GPU, which has one interval for all", d.share.Interval, other)
	}
	if by, interval := others.paced(); len(by) > 0 && interval != d.share.Interval {
		return blockedBy(by, fmt.Errorf("device %s has time slices %s because claim %s requested them, or the node's policy sets them, "+
			"but this claim requests %s: request the same interval or none",
			d.name, interval, by[0].Claim, d.share.Interval))
	}
	return nil
}

// checkAmounts returns the claims that block a claim whose shares of a device exceed the remaining amounts; nil if there are none.
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
			err: fmt.Errorf("the shares of %s would take %s %d of %d together: the claim is prepared once other shares are released",
				d.name, of.name, of.used, of.most),
		}
		for _, o := range others {
			b.by = append(b.by, blocker{o.record, of.has(o)})
		}
		return b
	}
	return nil
}
