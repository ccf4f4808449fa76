// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

func TestRetain_DropsOtherClaims(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		for _, c := range []string{"c", "a", "b"} {
			ensure(t, s, requestFor(c, 1))
		}
		device := requestFor("", 1).Device
		must(t, s.Retain(t.Context(), device, testOwner, []types.UID{"c", "unknown", "a"}))
		wantClaims(t, s, "a", "c")
		must(t, s.Retain(t.Context(), device, testOwner, nil))
		h.wantNothingLeft(t, config)
	})
}

func TestRetain_OtherOwnersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, config := newFakeHost(), testConfig(t)
		s, stop := startFake(t, config, h)
		ours, theirs, third := requestFor("a", 1), requestFor("b", 1), requestFor("c", 1)
		theirs.Owner, third.Owner = "gpu.nvidia.com", "third.example"
		for _, r := range []mps.Request{ours, theirs, third} {
			ensure(t, s, r)
		}
		stop()
		s, stop = startFake(t, config, h) // owners outlive a supervisor
		defer stop()
		claims := func() []types.UID {
			synctest.Wait()
			if st := s.Status().GPUs; len(st) == 1 {
				return st[0].Claims
			}
			return nil
		}
		for _, step := range []struct {
			owner string
			want  []types.UID
		}{{"gpu.other.example", []types.UID{"a", "b", "c"}}, {testOwner, []types.UID{"b", "c"}}, {"third.example", []types.UID{"b"}}, {"gpu.nvidia.com", nil}} {
			must(t, s.Retain(t.Context(), ours.Device, step.owner, nil))
			if diff := cmp.Diff(step.want, claims()); diff != "" {
				t.Errorf("after Retain of %q (-want +got):\n%s", step.owner, diff)
			}
		}
		h.wantNothingLeft(t, config)
	})
}
