// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// InUseError is why a claim cannot be unprepared: something uses a partition that it has.
type InUseError struct {
	// Device is the partition's.
	Device string
	err    error
}

func (e *InUseError) Error() string {
	if e.err == nil {
		return "partition " + e.Device + " is in use"
	}
	return e.err.Error()
}

func (e *InUseError) Unwrap() error { return e.err }

// blockedError refuses a device because of what other claims have of its GPU. Everything else that Prepare refuses is
// final until something changes outside; this may pass by itself, see passes.
type blockedError struct {
	// by are the claims in the way, in order of their UIDs.
	by []blocker
	// over is how much of what they have must be free before the device can be prepared. Where a device excludes others,
	// each of them counts one, and all must go.
	over int64
	err  error
}

// blocker is a claim that has something another one needs.
type blocker struct {
	record *records.Record
	// frees is how much its release gives back.
	frees int64
}

func (b *blockedError) Error() string { return b.err.Error() }
func (b *blockedError) Unwrap() error { return b.err }

// blockedBy is the refusal of a device that excludes all of these claims.
func blockedBy(holders []*records.Record, err error) *blockedError {
	b := &blockedError{over: int64(len(holders)), err: err}
	for _, r := range holders {
		b.by = append(b.by, blocker{r, 1})
	}
	return b
}

// passes reports whether the device is free once the claims that are leaving have given back what they have.
func (b *blockedError) passes(leaving func(types.UID) bool) bool {
	var freed int64
	for _, other := range b.by {
		if leaving(other.record.Claim.UID) {
			freed += other.frees
		}
	}
	return freed >= b.over
}

// canPass reports whether it could pass if none but some of the claims stayed.
func (b *blockedError) canPass(stays func(types.UID) bool) bool {
	return b.passes(func(uid types.UID) bool { return !stays(uid) })
}

// names lists the claims that are leaving, for people.
func (b *blockedError) names(leaving func(types.UID) bool) string {
	var names []string
	for _, other := range b.by {
		if leaving(other.record.Claim.UID) {
			names = append(names, other.record.Claim.String())
		}
	}
	const most = 5 // a GPU may be shared by a hundred
	if more := len(names) - most; more > 0 {
		names = append(slices.Clip(names[:most]), "and others")
	}
	return strings.Join(names, ", ")
}

// checkAmounts fails if the claim's shares of a GPU are more than those of other claims leave.
func (e *Engine) checkAmounts(want *records.Record, d *records.Device, sharing *policy.Sharing) error {
	others := e.index.shared(d.GPU, want.Claim.UID)
	var used amounts
	for _, o := range others {
		used.memory += o.memory
		used.cores += o.cores
	}
	for i := range want.Devices {
		if s := want.Devices[i].Share; s != nil && want.Devices[i].GPU == d.GPU {
			used.add(s)
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
			err:  fmt.Errorf("the shares of %s would take %s %d of %d together: it is prepared once other shares are given back", d.Device, of.name, of.used, of.most),
		}
		for _, o := range others {
			b.by = append(b.by, blocker{o.record, of.has(o)})
		}
		return b
	}
	return nil
}

// checkFree fails if another claim, or somebody else's partition, is where this claim's devices are to be.
func (e *Engine) checkFree(b *backend, want *records.Record, adopt bool) error {
	for i := range want.Devices {
		d := &want.Devices[i]
		if d.AdminAccess {
			continue
		}
		if others := e.index.holders(d, want.Claim.UID); len(others) > 0 {
			return blockedBy(others, fmt.Errorf("request %q: device %s of GPU %s is held by claim %s: it is exclusive, and free once that claim's pods have ended and it is unprepared",
				d.Request, d.Device, d.UUID, others[0].Claim))
		}
		if err := e.checkOtherNames(d); err != nil {
			return err
		}
		if other := e.occupant(b.hardware.Node(), d); other != nil && !adopt && !has(e.index.get(want.Claim.UID), d.GPU, other.Place()) {
			return fmt.Errorf("request %q: device %s of GPU %s is occupied by %s", d.Request, d.Device, d.UUID, e.describe(d.GPU, other))
		}
	}
	return nil
}

// has tells whether a claim's record has the partition at a place: it keeps it when the policy has it no more.
func has(r *records.Record, gpuDevice string, at gpu.Place) bool {
	return r != nil && slices.ContainsFunc(r.Partitions(), func(d *records.Device) bool { return d.GPU == gpuDevice && d.Partition.Place() == at })
}
