// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// gpuRecords are the records of claims with devices of one GPU, in order of claim UID, as indexed at one moment.
type gpuRecords struct {
	gpu string
	all []*records.Record
}

// taking lists the records of claims whose devices overlap with a device.
func (o gpuRecords) taking(want extent) []*records.Record {
	return o.where(func(r *records.Record) bool { return takes(r, want) })
}

func (o gpuRecords) where(test func(*records.Record) bool) []*records.Record {
	var found []*records.Record
	for _, r := range o.all {
		if test(r) {
			found = append(found, r)
		}
	}
	return found
}

// unfinished lists the records of claims that share the partition of a device while it is being created
// or destroyed: until that is complete, no one else can have a share of it.
func (o gpuRecords) unfinished(want extent) []*records.Record {
	if want.place == nil {
		return nil
	}
	all := o.where(func(r *records.Record) bool { return hasShare(r, want) })
	if slices.ContainsFunc(all, func(r *records.Record) bool { return r.State == records.Prepared }) {
		return nil
	}
	return all
}

// releasing reports whether a claim that is not completely released still overlaps with a device.
func (o gpuRecords) releasing(want extent) bool {
	isReleasing := func(r *records.Record) bool { return r.State == records.Releasing }
	return slices.ContainsFunc(o.taking(want), isReleasing) || slices.ContainsFunc(o.unfinished(want), isReleasing)
}

// watchedBy reports whether a pod has admin access to the GPU.
func (o gpuRecords) watchedBy(pod types.UID) bool {
	return slices.ContainsFunc(o.all, func(r *records.Record) bool {
		return slices.Contains(r.Pods, pod) &&
			slices.ContainsFunc(r.Devices, func(d records.Device) bool { return d.GPU == o.gpu && d.AdminAccess })
	})
}

// partition returns the partition of a shape that a claim has, either its own or one that existed before the claim; or nil.
func (o gpuRecords) partition(s gpu.Shape, owned func(d *records.Device) bool) *gpu.Partition {
	for _, r := range o.all {
		for _, d := range r.Partitions() {
			if d.Device == s.Name() && r.State == records.Prepared && (d.Partition.Existing || owned(d)) {
				p := *d.Partition
				return &p // placements of claims overlap only for shares of one partition, so there is at most one
			}
		}
	}
	return nil
}

// sharesPartition reports whether another claim has the partition of a device, either its own or one that existed before the claim.
func (o gpuRecords) sharesPartition(d *records.Device, owned func(d *records.Device) bool) bool {
	return slices.ContainsFunc(o.all, func(r *records.Record) bool {
		return slices.ContainsFunc(r.Partitions(), func(other *records.Device) bool {
			return !other.Released && other.Device == d.Device && samePlace(*other.Partition, *d.Partition) &&
				(other.Partition.Existing || owned(other))
		})
	})
}

func (o gpuRecords) partitions(owned func(d *records.Device) bool) []gpu.Partition {
	var all []gpu.Partition
	for _, r := range o.all {
		for _, d := range r.Partitions() {
			if d.GPU == o.gpu && owned(d) {
				all = append(all, *d.Partition)
			}
		}
	}
	return all
}

// partitionsOf lists the partitions of a GPU that were created for claims in the driver's current session.
func (l *Ledger) partitionsOf(gpuDevice string) []gpu.Partition {
	return l.index.on(gpuDevice, "").partitions(l.sessions.owns)
}

// amounts are the total amounts of shares of a device.
type amounts struct {
	memory, cores int64
}

func (a *amounts) add(s *records.Share) {
	a.memory += s.Memory
	a.cores += s.Cores
}

// sharedBy is the amounts of one claim on a shared device.
type sharedBy struct {
	record *records.Record
	amounts
}

// shared returns the amounts of each claim on a shared device. A Releasing claim whose pods have ended counts no more. While its
// pods may have left processes it does, although the scheduler has already given its share to others.
func (o gpuRecords) shared(device string) []sharedBy {
	var all []sharedBy
	for _, r := range o.all {
		if r.State == records.Releasing && len(r.Pods) == 0 && !r.OtherConsumers {
			continue
		}
		by := sharedBy{record: r}
		for i := range r.Devices {
			if d := &r.Devices[i]; d.Device == device && d.Share != nil && !d.Released {
				by.add(d.Share)
			}
		}
		all = append(all, by)
	}
	return all
}

// paced lists the records of claims that requested an interval of the GPU's time slices, and the interval. All requested the
// same: others are refused.
func (o gpuRecords) paced() (by []*records.Record, interval string) {
	by = o.where(func(r *records.Record) bool { return r.State == records.Prepared && intervalOn(r, o.gpu) != "" })
	if len(by) > 0 {
		interval = intervalOn(by[0], o.gpu)
	}
	return by, interval
}

// intervalOn returns the interval that a claim requested on a GPU; empty for none.
func intervalOn(r *records.Record, gpuDevice string) string {
	for _, d := range r.Shares(gpu.TimeSlice) {
		if d.GPU == gpuDevice && d.Share.Interval != "" {
			return d.Share.Interval
		}
	}
	return ""
}

// served lists the claims of an MPS server, which serves a GPU or a partition.
func (o gpuRecords) served(server string) []types.UID {
	var uids []types.UID
	for _, r := range o.all {
		if r.State != records.Releasing && slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool {
			return d.Server() == server && !d.Released
		}) {
			uids = append(uids, r.Claim.UID)
		}
	}
	return uids
}

// sharing reports whether claims whose pods may be running share the GPU in the given way.
func (o gpuRecords) sharing(kind gpu.Share) bool {
	return slices.ContainsFunc(o.all, func(r *records.Record) bool { return r.State == records.Prepared && o.shares(r, kind) })
}

func (o gpuRecords) shares(r *records.Record, kind gpu.Share) bool {
	return slices.ContainsFunc(r.Shares(kind), func(d *records.Device) bool { return d.GPU == o.gpu })
}
