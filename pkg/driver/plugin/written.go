// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// sliceWrites records when writing slices last failed.
type sliceWrites struct {
	failed atomic.Pointer[time.Time]
	// dropped is called after a slice was written but lost fields.
	dropped func()
}

// lastFailure returns when a write failed, unless one is known to have succeeded since; zero for never.
func (w *sliceWrites) lastFailure() time.Time {
	if at := w.failed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// note notes the outcome of a write. A nil error only means that the helper is about to write.
func (w *sliceWrites) note(err error) {
	dropped := (*resourceslice.DroppedFieldsError)(nil)
	switch {
	case err == nil:
	case errors.As(err, &dropped):
		w.failed.Store(nil)
		w.dropped()
	default:
		now := time.Now()
		w.failed.Store(&now)
	}
}
