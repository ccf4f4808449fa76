// SPDX-License-Identifier: Apache-2.0

package resourcegen

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A finding is repeated by its seed.
func TestObject_SameSeed(t *testing.T) {
	classes := []string{"a", "b"}
	for seed := range int64(100) {
		if diff := cmp.Diff(Object(seed), Object(seed)); diff != "" {
			t.Errorf("object %d differs from itself:\n%s", seed, diff)
		}
		if diff := cmp.Diff(ClaimSpec(seed, classes), ClaimSpec(seed, classes)); diff != "" {
			t.Errorf("claim %d differs from itself:\n%s", seed, diff)
		}
	}
}
