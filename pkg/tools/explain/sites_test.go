// SPDX-License-Identifier: Apache-2.0

package explain

import "testing"

// A pool of more slices than they say is none for the scheduler.
func TestExplain_TooManySlices(t *testing.T) {
	b := newBed(t, "hgx-h100")
	for i := range b.slices {
		b.slices[i].Spec.Pool.ResourceSliceCount = 1
	}
	checkGolden(t, "too-many-slices", b.explain(AboutClaim(whole(1))))
}
