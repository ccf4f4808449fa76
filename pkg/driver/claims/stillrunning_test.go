// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A restarted kubelet prepares the claim of a running pod again. A partition of it is gone and cannot be created again, so that
// fails. The pod still runs on the whole GPU of the claim, and nobody else may get that before the pod's processes have ended.
func TestPrepare_RunningPodKeepsRecord(t *testing.T) {
	for _, again := range []bool{false, true} { // false is the control: it passes
		b := newSimBed(t, "hgx-h100")
		seen := &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
		b.processes = seen
		claim := deviceClaim("a", b.name(0), b.name(1, 14, 4))
		mustPrepare(t, b.Preparer, claim)
		must(t, b.session.DestroyPartition(t.Context(), b.session.Node().GPUs[1].PCI, *b.Ledger.Record("a").Devices[1].Partition))
		if again {
			_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: "nvmlDeviceCreateGpuInstanceWithPlacement", Code: sim.CodeUnknown})
			must(t, err)
			wantRefused(t, b.Preparer, claim)
		}
		// The pod is deleted by force; the kubelet unprepares the claim while the container is still ending.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.Unprepare(ctx, refOf(claim))
		wantError(t, b.tryPrepare("b", b.name(0)), "ns/claim-a") // process 4711 of the first pod runs on it
	}
}

// A record cannot be read at the start, and its copy can. Its pod was deleted by force and still runs, so the API server knows nothing
// of the claim.
func TestLoad_RecordUnreadable(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENFILE} {
		b := newBed(t)
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		b.die()
		again := b.another()
		again.disk.fail = failAt("ReadFile", recordPath(b.dir, "a"), cause)
		again.processes = &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
		again.start()
		again.disk.fail = nil // also if it was for a moment only
		_, err := os.Stat(copyPath(b.dir, "a"))
		must(t, err) // it is good
		again.Reconcile(t.Context(), &fakeAPI{})
		wantRefused(t, again.Preparer, claimOn("b", 1)) // process 4711 of the first pod runs
	}
}

// The same for a layout: its partitions stay Cleave's, and go with the policy.
func TestLoad_LayoutUnreadable(t *testing.T) {
	for _, cause := range []error{nil, syscall.EIO} { // nil is the control: it passes
		t.Run(fmt.Sprint(cause), func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.lay(balanced)
			b.die()
			p, o := openPlugin(t, b.dir)
			again := &simBed{plugin: p, node: b.node, session: b.session, offers: b.offers}
			again.Preparer = New(o)
			p.disk.fail = failAt("ReadFile", b.dir+"/layouts/"+b.name(0)+".json", cause)
			again.load()
			again.SetHardware(offeredHardware{again.session, again.offers}, again.specs)
			again.Recover(t.Context())
			again.keep()
			p.disk.fail = nil
			again.lay(nil)
			again.want(nil, nil, nil)
		})
	}
}

// A claim is released in part, and the API server still has it allocated: its devices stay published, and are nobody else's, until
// it has not.
func TestUnprepare_PartlyIsAllocated(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	claim := deviceClaim("a", b.name(0, 19, 0), b.name(1, 14, 4))
	follower := NewFollower(b.Ledger, &fakeAPI{claims: []*resourceapi.ResourceClaim{claim}}, func() *gpu.Node { return b.session.Node() })
	mustPrepare(t, b.Preparer, claim)
	d := b.Ledger.Record("a").Devices[1]
	must(t, b.node.Clients().Add(1, sim.Client{PID: 4711, Name: "train", GPUInstance: d.Partition.GI, ComputeInstance: *d.Partition.CI}))
	wantError(t, b.Unprepare(t.Context(), refOf(claim)), "4711")
	must(t, follower.List(t.Context()))
	_, err := follower.Follow(t.Context(), time.Now())
	must(t, err)
	for i, at := range []gpu.Place{place(19, 0, 1), place(14, 4, 2)} {
		if has := records.AllocatedOf(b.Ledger.Allocations())(&b.session.Node().GPUs[i]); !slices.Contains(has.Places, at) {
			t.Errorf("GPU %d: %+v is not among the allocated places %+v, though the API server has it allocated", i, at, has.Places)
		}
	}
}
