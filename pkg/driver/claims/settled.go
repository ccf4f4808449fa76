// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// A claim may have devices of several GPUs, and one that is lost or in use by an agent keeps its record for long. The others are Released
// meanwhile: other claims may have them, while all that goes by what the API server has allocated still finds them on the record.

// settledOf returns the devices of a record of which nothing is left to undo: whole GPUs, partitions that no longer exist or that Cleave
// did not create, and shares that are released. A partition that other claims share is not settled, as the last of them destroys it.
// kept are the devices whose share is not released.
func settledOf(r *records.Record, gone, kept []*records.Device) []*records.Device {
	var settled []*records.Device
	for i := range r.Devices {
		d := &r.Devices[i]
		// The shares of one GPU may have one interval or server, which kept has once.
		shares := d.Share != nil && slices.ContainsFunc(kept, func(k *records.Device) bool { return k.GPU == d.GPU })
		exists := d.Partition != nil && !d.Partition.Existing && !slices.Contains(gone, d)
		if !d.AdminAccess && !shares && !exists {
			settled = append(settled, d)
		}
	}
	return settled
}

// releasable returns those of the settled devices of a claim that no process of its pods can be using, although err says that the rest of
// the claim cannot be released yet. Where it is not known that the pods have ended, a partition in use may be in use by them, and so may
// everything else that the claim had, but for a partition that was destroyed; of whole GPUs, the driver has to list no process either.
func (p *Preparer) releasable(ctx context.Context, b *backend, r *records.Record, settled []*records.Device, pods podsState,
	err error) []*records.Device {
	if pods == podsEnded {
		return settled
	}
	unknown := pods == podsLeft || b.hardware == nil || errors.As(err, new(*InUseError))
	return slices.DeleteFunc(settled, func(d *records.Device) bool {
		destroyed := d.Partition != nil && !d.Partition.Existing
		return !destroyed && (unknown || p.users().checkDeviceIdle(ctx, b, r, d, true, false) != nil)
	})
}

// withReleased returns a record with these devices Released, if the claim is Releasing, or its preparation was interrupted and it has been
// unprepared since.
func withReleased(r *records.Record, settled []*records.Device) *records.Record {
	noted := r.Clone()
	for i := range noted.Devices {
		d := &noted.Devices[i]
		is := func(s *records.Device) bool { return s.Request == d.Request && s.Device == d.Device }
		ended := r.State == records.Releasing || r.State == records.Preparing && r.Unprepared
		// A partition that Cleave is still to destroy is never Released.
		if ended && (d.Partition == nil || d.Partition.Existing) && slices.ContainsFunc(settled, is) {
			d.Released = true
		}
	}
	return noted
}

// withoutPassedOn returns those of the settled devices of a claim that no other pod uses, see users.passedOn, and an error if there are
// others. The claim's record remains for these alone; it says which partitions are gone.
func (p *Preparer) withoutPassedOn(ctx context.Context, r *records.Record, gone, settled []*records.Device) ([]*records.Device, error) {
	kept, used := p.users().passedOn(ctx, r)
	if used == nil {
		return settled, nil
	}
	settled = slices.DeleteFunc(settled, func(d *records.Device) bool { return slices.Contains(kept, d) })
	return settled, errors.Join(used, writeGone(p.Ledger, r, gone))
}
