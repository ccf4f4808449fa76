// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// The kubelet unprepares a claim again after it was answered, for instance as it was restarted. An agent still has the partition open:
// the answer is the same, and once the agent is gone, the next call clears what is left.
func TestUnprepare_PartitionInUseByOthersAgain(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		b.processes = &podProcesses{}
		b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
		b.unprepare("a")
		if restart {
			b = b.restart()
			b.processes = &podProcesses{}
		}
		b.unprepare("a")
		b.unprepare("a")
		wantError(t, b.tryPrepare("b", b.name(0, 19, 5)), "ns/claim-a")
		must(t, b.node.Clients().Remove(0, 4711))
		b.unprepare("a")
		b.want(nil, nil, nil)
	}
}

// The first call found no driver, whether or not the plugin sees processes. Whatever the driver says once it is back, the next call is
// answered as the first one was.
func TestUnprepare_WithoutHardwareAgain(t *testing.T) {
	for name, arrange := range map[string]func(b *simBed, d records.Device){
		"partition in use": func(b *simBed, d records.Device) { b.hold(d, 4711) },
		"driver fails": func(b *simBed, _ records.Device) {
			must(b.t, b.node.Faults().FailCall("nvmlComputeInstanceDestroy", sim.CodeUnknown))
		},
	} {
		for _, seen := range []Processes{nil, &podProcesses{}, &podProcesses{err: processes.ErrHidden}} {
			t.Run(name, func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				b.processes = seen
				arrange(b, b.prepare("a", b.name(0, 9, 4))[0])
				b.SetWaiting(gpu.ErrDriverNotLoaded)
				b.unprepare("a")
				b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
				b.unprepare("a")
				b.Recover(t.Context())
				b.unprepare("a")
				b.want(list("0 9@4"), list("a"), nil)
			})
		}
	}
}

// The claim's preparation was interrupted; its record stays as it is until it is undone.
func TestUnprepare_InterruptedAgain(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.processes = &podProcesses{}
	b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
	short := b.Ledger.Record("a").Clone()
	short.State = records.Preparing
	must(t, b.Ledger.write(short))
	b.unprepare("a")
	b.unprepare("a")
	if got := b.recordState("a"); got != records.Preparing {
		t.Errorf("the record is %q, want %q", got, records.Preparing)
	}
}

// Nobody was answered yet, and the process in the partition may be the pod's: each call fails until it has ended, also after a reconcile
// that has found the claim gone.
func TestUnprepare_PartitionInUseNeverAnswered(t *testing.T) {
	for name, seen := range map[string]Processes{"none": nil, "hidden": &podProcesses{err: processes.ErrHidden}} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.processes = seen
			b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
			check := func(step string) {
				t.Helper()
				if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); err == nil {
					t.Errorf("%s: the pod ends although process 4711 runs in its partition", step)
				}
			}
			check("first")
			check("again")
			b.Recover(t.Context())
			b.Reconcile(t.Context(), &fakeAPI{})
			check("after Reconcile")
			b = b.restart()
			b.processes = seen
			check("after a restart")
			must(t, b.node.Clients().Remove(0, 4711))
			b.unprepare("a")
			b.want(nil, nil, nil)
		})
	}
	b := newSimBed(t, "hgx-h100")
	b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
	b.Reconcile(t.Context(), &fakeAPI{}) // before the kubelet calls for the first time
	wantError(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))), "4711")
}

// A claim that is prepared anew has not been answered: what was said of its earlier pods says nothing of the next one.
func TestUnprepare_AnsweredBeforePreparedAnew(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4711)
	b.SetWaiting(gpu.ErrDriverNotLoaded)
	b.unprepare("a")
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	must(t, b.node.Clients().Remove(0, 4711))
	b.hold(b.prepare("a", b.name(0, 9, 4))[0], 4712)
	wantError(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))), "4712")
}
