// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// monitor is a process that has a whole GPU open, as a monitoring agent does.
var monitor = sim.Client{PID: 4711, Name: "dcgm", GPUInstance: -1, ComputeInstance: -1}

// Clients of a GPU are waited for, but not longer than the kubelet waits, also where the driver looks for them only when the first GPU
// instance is created.
func TestMIGMode_Client(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, ends := range []bool{true, false} {
			t.Run(fmt.Sprintf("late %t, ends %t", late, ends), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newSimBed(t, "hgx-h100")
					must(t, b.node.Driver().SetQuirk(sim.QuirkFirstInstanceInUse, late))
					must(t, b.node.Clients().Add(0, monitor))
					if ends {
						defer after(20*time.Second, func() { must(t, b.node.Clients().Remove(0, monitor.PID)) })()
						b.prepare("a", b.name(0, 19, 6), b.name(0, 19, 5))
						b.want(list("0 19@5", "0 19@6"), list("a"), list("a"))
						return
					}
					ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second) // the kubelet's
					defer cancel()
					_, err := b.Prepare(ctx, deviceClaim("a", b.name(1, 9, 4), b.name(0, 19, 6)))
					if wantError(t, err, "4711"); ctx.Err() != nil {
						t.Error("the error is not in time")
					}
					b.want(nil, nil, nil)
					if got := b.modes(); slices.Contains(got, 0) != late || !slices.Contains(got, 1) {
						t.Errorf("GPUs in MIG mode: %v", got)
					}
				})
			})
		}
	}
}

func TestMIGMode_PrepareGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Clients().Add(0, monitor))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.Prepare(ctx, deviceClaim("a", b.name(0, 19, 6)))
		wantError(t, err)
		b.want(nil, nil, nil)
		// A partition that exists spares other claims the wait: the mode is on already.
		must(t, b.node.Clients().Remove(0, monitor.PID))
		b.prepare("a", b.name(0, 19, 6))
		must(t, b.node.Clients().Add(0, monitor))
		b.prepare("b", b.name(0, 19, 5))
	})
}

func TestPrepare_WholeGPUAfterMIGAwaitsFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "gb200-nvl72", func(n *sim.Node) {
			must(t, n.Driver().SetQuirk(sim.QuirkFabricAfterMIG, true))
		})
		b.prepare("a", b.name(0, 19, 6))
		b.unprepare("a")
		b.prepare("b", b.session.Node().GPUs[0].PCI.DeviceName())
		info, err := b.node.Device(0).Links().Fabric()
		if err != nil || info.State != sim.FabricCompleted {
			t.Errorf("Prepare succeeded while the fabric is in state %d (%v), want %d", info.State, err, sim.FabricCompleted)
		}
	})
}
