// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A pod that is deleted by force takes its claim along before the kubelet has that unprepared: what the API server does not know, the
// copy of the record does.
func TestLostRecord_ClaimIsGone(t *testing.T) {
	for name, release := range map[string]func(b *simBed){
		"unprepared": func(b *simBed) { b.unprepare("a") },
		"reconciled": func(b *simBed) {
			b.Reconcile(b.t.Context(), b.api)
			b.Recover(b.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPartBed(t)
			b.prepare("a", b.mps(), b.name(1, 19, 2))
			b.prepare("b", b.mps()) // in the same partition
			spoil(t, b.dir, "a")
			b = b.restart()
			b.api = &fakeAPI{claims: claimList(deviceClaim("b", b.mps()))}
			release(b)
			b.want(list("0 9@4"), list("b"), list("b"))
			b.unprepare("b")
			b.want(nil, nil, nil)
			b.wantServed()
		})
	}
}

// Nothing is destroyed in which pods may run that the copy names.
func TestLostRecord_PodsRun(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	mustPrepare(t, b.Preparer, deviceClaim("a", b.name(0, 9, 4)))
	spoil(t, b.dir, "a")
	b = b.restart()
	pods := &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
	b.processes, b.api = pods, &fakeAPI{}
	for range 2 {
		b.Reconcile(t.Context(), b.api)
		b.Recover(t.Context())
	}
	b.want(list("0 9@4"), list("a"), nil)
	pods.pids = nil
	b.Recover(t.Context())
	b.want(nil, nil, nil)
}

// The copy is of no use in another session of the driver, or in another boot: what lies there may be someone else's.
func TestLostRecord_SessionEnded(t *testing.T) {
	b, s := newSessionBed(t)
	b.prepare("a", b.name(0, 19, 6))
	spoil(t, b.dir, "a")
	s.session, s.broken = "2", true
	b = b.restart(in(s))
	b.api = &fakeAPI{}
	b.unprepare("a")
	b.want(list("0 19@6"), nil, nil)
}

// Every write that fails leaves the claim to be released later.
func TestLostRecord_DiskFails(t *testing.T) {
	for failing := range 4 {
		b := newSimBed(t, "hgx-h100")
		b.prepare("a", b.name(0, 9, 4))
		spoil(t, b.dir, "a")
		b = b.restart()
		b.api = &fakeAPI{}
		b.disk.fail = (&failingSteps{left: failing, all: true}).writes
		_ = b.Unprepare(t.Context(), refOf(claimOf("a")))
		b.disk.fail = nil
		b = b.restart()
		b.Reconcile(t.Context(), &fakeAPI{})
		b.Recover(t.Context())
		b.want(nil, nil, nil)
	}
}
