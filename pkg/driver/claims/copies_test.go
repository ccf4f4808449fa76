// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

// A claim whose record is corrupt is treated as one whose record is not: its copy says all that the record did, also where the API server
// does not know the claim any more, as that of a pod that was deleted by force.
func TestCopy_ReleasesClaim(t *testing.T) {
	for name, release := range map[string]func(b *simBed){
		"unprepared": func(b *simBed) { b.unprepare("a") },
		"reconciled": func(b *simBed) {
			b.Reconcile(b.t.Context(), b.api)
			b.Recover(b.t.Context())
		},
		"unprepared by the plugin before": func(b *simBed) {
			newer := openSimBed(b.t, b.dir, b.node)
			newer.api = b.api
			b.unprepare("a")
			newer.Reconcile(b.t.Context(), b.api)
			newer.Recover(b.t.Context())
		},
		"allocated anew": func(b *simBed) {
			b.prepare("a", b.name(3, 9, 0))
			b.unprepare("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPartBed(t)
			b.prepare("a", b.mps(), b.name(1, 19, 2))
			b.prepare("b", b.mps()) // in the same partition
			spoilFirst(t, b.dir, "a")
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

// A claim that was released while its pods had processes has no spec any more, and its record may become corrupt as well.
func TestCopy_Releasing(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.processes, b.api = &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}, &fakeAPI{}
	b.prepare("a", b.name(0, 9, 4))
	b.Reconcile(t.Context(), b.api) // deleted by force, and its container does not end
	b.want(list("0 9@4"), list("a"), nil)
	if !slices.Contains(b.Partitions.Occupied(), b.name(0, 9, 4)) {
		t.Error("the partition is not tainted while a process of its pod runs")
	}
	spoilFirst(t, b.dir, "a")
	b = b.restart()
	b.Recover(t.Context())
	b.want(nil, nil, nil)
}

// Nobody gets the GPU under the pods of a claim whose record is corrupt, from the first moment on.
func TestCopy_PodsRun(t *testing.T) {
	for name, release := range map[string]func(b *bed){
		"at once":    func(*bed) {},
		"unprepared": func(b *bed) { _ = b.Unprepare(b.t.Context(), refOf(claimOn("a", 1))) },
		"reconciled": func(b *bed) { b.Reconcile(b.t.Context(), b.api) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // Unprepare waits for processes
				b := newBed(t)
				mustPrepare(t, b.Preparer, claimOn("a", 1))
				spoilFirst(t, b.dir, "a")
				b = b.restart()
				b.processes, b.api = &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}, &fakeAPI{}
				release(b)
				b.Recover(t.Context())
				_, err := b.Named(testDriver).prepare(t.Context(), claimOn("b", 1), terms{})
				wantError(t, err, "ns/claim-a (a)")
			})
		})
	}
}

// It is reported, and the record is written again.
func TestCopy_Repaired(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 9, 4))
	want, err := os.ReadFile(recordPath(b.dir, "a"))
	must(t, err)
	spoilFirst(t, b.dir, "a")
	b = b.restart()
	if len(b.notes) != 1 || !strings.Contains(b.notes[0], "its copy is used") {
		t.Errorf("got notes %q, want one", b.notes)
	}
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(deviceClaim("a", b.name(0, 9, 4)))})
	got, err := os.ReadFile(recordPath(b.dir, "a"))
	must(t, err)
	equal(t, "record", string(want), string(got))
	must(t, os.Remove(copyPath(b.dir, "a")))
	b = b.restart()
	b.want(list("0 9@4"), list("a"), list("a"))
	if len(b.notes) > 0 {
		t.Errorf("got notes %q, want none", b.notes)
	}
}
