// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// monitor is a process that has a whole GPU open, as a monitoring agent does.
var monitor = sim.Client{PID: 4711, Name: "dcgm", GPUInstance: -1, ComputeInstance: -1}

// monitorEnds ends it after a while.
func (b *simBed) monitorEnds() {
	go func() {
		<-time.After(20 * time.Second)
		if err := b.node.Clients().Remove(0, monitor.PID); err != nil {
			b.t.Error(err)
		}
	}()
}

// givesUp checks that devices are not prepared, by an error in time that names the monitor.
func (b *simBed) givesUp(devices ...string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 45*time.Second)
	defer cancel()
	_, err := b.Prepare(ctx, deviceClaim("a", devices...))
	if err == nil || !strings.Contains(err.Error(), "4711") || ctx.Err() != nil {
		b.t.Errorf("got %v (the kubelet's timeout: %v), want an error in time that names process 4711", err, ctx.Err())
	}
	b.want(nil, nil, nil)
}

func TestMIGMode_WaitsForClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Clients().Add(0, monitor))
		b.monitorEnds()
		b.prepare("a", b.name(0, 19, 6))
		b.want(list("0 19@6"), list("a"), list("a"))
	})
}

func TestMIGMode_GivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Clients().Add(0, monitor))
		b.givesUp(b.name(1, 9, 4), b.name(0, 19, 6))
		equal(t, "GPUs in MIG mode", []int{1}, b.modes())
	})
}

func TestMIGMode_PrepareGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Clients().Add(0, monitor))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Prepare(ctx, deviceClaim("a", b.name(0, 19, 6))); err == nil {
			t.Error("Prepare said success")
		}
		b.want(nil, nil, nil)
		// A partition that exists spares other claims the wait: the mode is on already.
		must(t, b.node.Clients().Remove(0, monitor.PID))
		b.prepare("a", b.name(0, 19, 6))
		must(t, b.node.Clients().Add(0, monitor))
		b.prepare("b", b.name(0, 19, 5))
	})
}

func TestMIGMode_UnmanagedPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		occupy(t, b.node, 0, 19, 6, 1)
		err := b.tryPrepare("a", b.name(0))
		wantError(t, err, "did not create")
		b.want(list("0 19@6"), nil, nil)
	})
}
