// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

func TestLeaveMIGMode(t *testing.T) {
	open := func(t *testing.T, disable bool) *simBed {
		t.Helper()
		b := newSimBed(t, "hgx-h100")
		p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: &v1alpha1.MIGPolicy{DisableWhenIdle: disable}}}}
		b.SetHardware(offeredHardware{b.session, policy.Apply(p, b.session.Node(), policy.Capabilities{}).Offers}, b.specs)
		return b
	}
	wantModes := func(t *testing.T, b *simBed, on ...int) {
		t.Helper()
		b.Partitions.LeaveMIGMode(t.Context())
		equal(t, "GPUs in MIG mode", on, b.modes(), cmpopts.EquateEmpty())
	}
	t.Run("after the last partition", func(t *testing.T) {
		b := open(t, true)
		b.prepare("a", b.name(0, 19, 6))
		b.prepare("b", b.name(0, 19, 5))
		wantModes(t, b, 0)
		b.unprepare("a")
		wantModes(t, b, 0)
		b.unprepare("b")
		wantModes(t, b)
		b.prepare("c", b.name(0, 19, 6))
		wantModes(t, b, 0)
	})
	t.Run("not without the policy", func(t *testing.T) {
		b := open(t, false)
		b.prepare("a", b.name(0, 19, 6))
		b.unprepare("a")
		wantModes(t, b, 0)
	})
	t.Run("not with an unmanaged partition", func(t *testing.T) {
		b := open(t, true)
		occupy(t, b.node, 0, 14, 2, 2) // since the plugin looked last
		wantModes(t, b, 0)
		b.want(list("0 14@2"), nil, nil)
	})
	t.Run("once a client closes the GPU", func(t *testing.T) {
		b := open(t, true)
		b.prepare("a", b.name(0, 19, 6))
		must(t, b.node.Clients().Add(0, monitor))
		b.unprepare("a")
		wantModes(t, b, 0)
		must(t, b.node.Clients().Remove(0, monitor.PID))
		wantModes(t, b)
	})
}
