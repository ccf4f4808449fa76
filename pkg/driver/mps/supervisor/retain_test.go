// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

func TestRetain(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		for _, claim := range []string{"c", "a", "d", "b", "e"} {
			r := requestFor(claim, 1)
			r.Owner = cmp.Or(map[string]string{"d": "gpu.nvidia.com", "e": "third.example"}[claim], testOwner)
			ensure(t, s, r)
		}
		s = h.start(t, config) // owners outlive a supervisor
		for _, tt := range []struct {
			owner      string
			keep, want []types.UID
		}{
			{"gpu.other.example", nil, []types.UID{"a", "b", "c", "d", "e"}},
			{testOwner, []types.UID{"c", "unknown", "a"}, []types.UID{"a", "c", "d", "e"}},
			{testOwner, nil, []types.UID{"d", "e"}},
			{"third.example", nil, []types.UID{"d"}},
			{"gpu.nvidia.com", nil, nil},
		} {
			must(t, s.Retain(t.Context(), requestFor("", 1).Device, tt.owner, tt.keep))
			synctest.Wait()
			wantClaims(t, s, tt.want...)
		}
		h.wantNothingLeft(t, config)
	})
}
