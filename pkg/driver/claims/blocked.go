// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// InUseError is why a claim cannot be unprepared: something uses a partition that it has.
type InUseError struct {
	// Device is the partition's.
	Device string
	// Named says that the error names who uses it.
	Named bool
	err   error
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
	// counted: the claims that stay do not keep the device, as the scheduler counted them.
	counted bool
}

// waitsForAny has the claim blocked by those that are leaving alone, each of them.
func (b *blockedError) waitsForAny() {
	b.counted, b.over = true, 1
	for i := range b.by {
		b.by[i].frees = 1
	}
}

// blocker is a claim that has something another one needs.
type blocker struct {
	record *records.Record
	// frees is how much its release gives back.
	frees int64
}

func (b *blockedError) Error() string { return b.err.Error() }
func (b *blockedError) Unwrap() error { return b.err }

// Is reports whether it is ErrAllocated.
func (b *blockedError) Is(target error) bool { return target == ErrAllocated }

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
