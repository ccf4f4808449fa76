// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// InUseError reports that a claim cannot be unprepared because one of its partitions is in use.
type InUseError struct {
	// Device is the partition's device name.
	Device string
	// Named: the error names the processes.
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

// blockedError refuses a device because of other claims' devices on its GPU. All other refusals of Prepare are
// final until something outside changes; this one may resolve itself, see passes.
type blockedError struct {
	// by are the blocking claims, in order of their UIDs.
	by []blocker
	// over is the amount that must be released before the device can be prepared. If the device excludes the others,
	// each counts as one, and all must be released.
	over int64
	err  error
	// counted: claims that stay do not block the device, because the scheduler counted them.
	counted bool
}

// waitsForAny lets the device be retried as soon as any leaving claim is released; claims that stay do not block it.
func (b *blockedError) waitsForAny() {
	b.counted, b.over = true, 1
	for i := range b.by {
		b.by[i].frees = 1
	}
}

// blocker is a claim that blocks another one.
type blocker struct {
	record *records.Record
	// frees is the amount that its release frees.
	frees int64
}

func (b *blockedError) Error() string { return b.err.Error() }
func (b *blockedError) Unwrap() error { return b.err }

// Is matches ErrAllocated.
func (b *blockedError) Is(target error) bool { return target == ErrAllocated }

// blockedBy refuses a device that excludes all of these claims.
func blockedBy(holders []*records.Record, err error) *blockedError {
	b := &blockedError{over: int64(len(holders)), err: err}
	for _, r := range holders {
		b.by = append(b.by, blocker{r, 1})
	}
	return b
}

// passes reports whether the device is free once the leaving claims have been released.
func (b *blockedError) passes(leaving func(types.UID) bool) bool {
	var freed int64
	for _, other := range b.by {
		if leaving(other.record.Claim.UID) {
			freed += other.frees
		}
	}
	return freed >= b.over
}

// canPass reports whether the device would be free if all claims but those that stay were released.
func (b *blockedError) canPass(stays func(types.UID) bool) bool {
	return b.passes(func(uid types.UID) bool { return !stays(uid) })
}

// names lists the leaving claims for messages.
func (b *blockedError) names(leaving func(types.UID) bool) string {
	var names []string
	for _, other := range b.by {
		if leaving(other.record.Claim.UID) {
			names = append(names, other.record.Claim.String())
		}
	}
	const most = 5 // up to a hundred claims may share a GPU
	if more := len(names) - most; more > 0 {
		names = append(slices.Clip(names[:most]), "and others")
	}
	return strings.Join(names, ", ")
}
