// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// halfGone is said of a partition whose GPU was lost while it was destroyed.
const halfGone = " with 0 compute instances"

// lose has the i-th GPU lost to whoever destroys its partitions.
func (b *simBed) lose(i int) {
	b.t.Helper()
	_, err := b.node.Faults().Inject(sim.Fault{GPU: i, Call: "nvmlGpuInstanceDestroy", Code: sim.CodeGPUIsLost})
	must(b.t, err)
}

// run puts a process on the i-th GPU, or into a partition of it.
func (b *simBed) run(i, pid int, in *gpu.Partition) {
	b.t.Helper()
	c := sim.Client{PID: pid, Name: "train", GPUInstance: -1, ComputeInstance: -1}
	if in != nil {
		c.GPUInstance, c.ComputeInstance = in.GI, *in.CI
	}
	must(b.t, b.node.Clients().Add(i, c))
}

// wantTaken fails unless the first GPU is refused to the next claim because of claim a, and tainted.
func (b *simBed) wantTaken(step string) {
	b.t.Helper()
	if err := b.tryPrepare("next", b.name(0)); err == nil || !strings.Contains(err.Error(), "ns/claim-a") {
		b.t.Errorf("%s: Prepare of GPU 0: %v, want a refusal because of claim a", step, err)
	}
	if !slices.Contains(b.Partitions.Occupied(), b.name(0)) {
		b.t.Errorf("%s: GPU 0 is not occupied", step)
	}
}

// A GPU of a claim is lost. The claim's other GPUs are others' at once, and what those do there is left alone when the claim is released.
func TestUnprepare_OtherGPUsAreFree(t *testing.T) {
	for _, first := range [][]int{nil, {19, 0}} { // whole, partition
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(first, restart), func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				b.prepare("a", b.name(0, first...), b.name(1, 14, 4))
				b.lose(1)
				b.unprepare("a")
				if restart {
					b = b.restart()
				}
				for _, name := range b.Partitions.Occupied() {
					if !strings.HasPrefix(name, b.name(1)) {
						t.Errorf("%s is occupied", name)
					}
				}
				part := b.prepare("b", b.name(0, first...))[0].Partition
				wantError(t, b.tryPrepare("c", b.name(1)), "ns/claim-a")
				b.run(0, 4711, part)
				b.onRelease = func(claim records.Claim, err error) {
					if errors.Is(err, gpu.ErrInUse) {
						t.Errorf("claim %s: %v", claim, err)
					}
				}
				instances, specs := []string(nil), []string(nil)
				if first != nil {
					instances, specs = list("0 19@0"), list("b")
				}
				b.unprepare("a")
				b.Recover(t.Context())
				b.Reconcile(t.Context(), &fakeAPI{claims: claimList(deviceClaim("b", b.name(0, first...)))})
				b.want(append(list("1 14@4"+halfGone), instances...), list("a", "b"), specs)
				must(t, b.node.Faults().Clear(-1))
				b.Recover(t.Context())
				b.want(instances, list("b"), specs)
				wantError(t, b.tryPrepare("c", b.name(0, first...)), "ns/claim-b")
			})
		}
	}
}

// The same where an agent has the partition open, or did by the time that the driver was back.
func TestUnprepare_OtherGPUsAreFreeOfAgents(t *testing.T) {
	for _, away := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		b.processes = &podProcesses{}
		b.run(1, 4711, b.prepare("a", b.name(0), b.name(1, 14, 4))[1].Partition)
		if away {
			b.SetWaiting(gpu.ErrDriverNotLoaded)
		}
		b.unprepare("a")
		b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
		b.prepare("b", b.name(0))
		wantError(t, b.tryPrepare("c", b.name(1)), "ns/claim-a")
		must(t, b.node.Clients().Remove(1, 4711))
		b.Recover(t.Context())
		b.want(nil, list("b"), nil)
	}
}

// A process of the claim's pod is left: it may use all of the claim's GPUs.
func TestUnprepare_OtherGPUsOfPodThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		seen := &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}
		b.processes = seen
		b.prepare("a", b.name(0), b.name(1, 14, 4))
		b.lose(1)
		b.unprepare("a")
		b.wantTaken("after Unprepare")
		b.unprepare("a")
		b.wantTaken("unprepared again")
		b.Recover(t.Context())
		b.wantTaken("after Recover")
		delete(seen.pids, "pod-uid")
		b.Recover(t.Context())
		b.prepare("b", b.name(0))
	})
}

// hiddenProcesses are those of pods that the plugin cannot see.
type hiddenProcesses struct{}

func (hiddenProcesses) OfPods(_ context.Context, pods []types.UID) ([]int, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	return nil, processes.ErrHidden
}

func (hiddenProcesses) OfClaim(context.Context, string, string) ([]int, error) {
	return nil, processes.ErrHidden
}

// The remedy for a lost GPU is a reset. Those who have the claim's other GPUs meanwhile do not wait for it.
func TestRecover_OtherGPUsAreFreeDuringReset(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0), b.name(1, 14, 4))
	b.lose(1)
	b.unprepare("a")
	b.Ledger.changing.Store(b.name(1), true)
	held, err := b.Ledger.lockFor(t.Context(), "", list(b.name(1)))
	must(t, err)
	defer held.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b.Recover(ctx)
	b.Reconcile(ctx, &fakeAPI{})
	must(t, b.Unprepare(ctx, refOf(deviceClaim("a")))) // as before
	must(t, ctx.Err())
	unanswered := b.Ledger.Record("a").Clone()
	unanswered.Unprepared = false
	must(t, b.Ledger.write(unanswered))
	wantError(t, b.Unprepare(ctx, refOf(deviceClaim("a"))), "is being reset")
}

// Processes of pods are not seen. One in a partition of the claim may be its pod's, which may then use the claim's other GPUs, too; so may
// one that the driver lists there.
func TestUnprepare_OtherGPUsMayBeInUse(t *testing.T) {
	inPartition := func(b *simBed, devices []records.Device) { b.run(2, 4711, devices[2].Partition) }
	onGPU := func(b *simBed, _ []records.Device) { b.run(0, 4711, nil) }
	for name, tt := range map[string]struct {
		seen Processes
		run  func(b *simBed, devices []records.Device)
	}{
		"in a partition":         {nil, inPartition},
		"on the GPU":             {nil, onGPU},
		"hidden, in a partition": {hiddenProcesses{}, inPartition},
		"hidden, on the GPU":     {hiddenProcesses{}, onGPU},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.processes = tt.seen
			tt.run(b, b.prepare("a", b.name(0), b.name(1, 14, 4), b.name(2, 14, 4)))
			b.lose(1)
			b.unprepare("a")
			b.wantTaken("after Unprepare")
			b.unprepare("a")
			b.Recover(t.Context())
			b.Reconcile(t.Context(), &fakeAPI{})
			b.wantTaken("after Reconcile")
			b = b.restart()
			b.wantTaken("after a restart")
			for i := range 3 {
				_ = b.node.Clients().Remove(i, 4711)
			}
			b.Recover(t.Context())
			b.prepare("b", b.name(0))
		})
	}
}

// The kubelet was not answered: its pod has not ended, so nobody else gets what the claim has.
func TestUnprepare_OtherGPUsNeverAnswered(t *testing.T) {
	for _, seen := range []Processes{nil, &podProcesses{}} {
		b := newSimBed(t, "hgx-h100")
		b.processes = seen
		part := b.prepare("a", b.name(0), b.name(1, 14, 4))[1].Partition
		if seen == nil {
			b.run(1, 4711, part) // which may be the pod's
		} else {
			_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: "nvmlComputeInstanceDestroy", Code: sim.CodeUnknown})
			must(t, err)
		}
		for range 2 {
			wantError(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))))
			b.Recover(t.Context())
			b.wantTaken("after Unprepare")
		}
		_ = b.node.Clients().Remove(1, 4711)
		must(t, b.node.Faults().Clear(-1))
		b.unprepare("a")
		b.prepare("b", b.name(0))
	}
}

// The claim's preparation was interrupted, for instance as the GPU was lost.
func TestUnprepare_OtherGPUsOfInterrupted(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0), b.name(1, 14, 4), b.name(2, 14, 4))
	b.lose(1)
	short := b.Ledger.Record("a").Clone()
	short.State = records.Preparing
	must(t, b.Ledger.write(short))
	b.Recover(t.Context())
	wantError(t, b.tryPrepare("b", b.name(0)), "ns/claim-a") // which is prepared again or unprepared
	b.unprepare("a")
	b.prepare("b", b.name(0))
	b.prepare("c", b.name(2, 14, 4))
	b.unprepare("a")
	b.Recover(t.Context())
	b.want(list("1 14@4"+halfGone, "2 14@4"), list("a", "b", "c"), list("c"))
	wantError(t, b.tryPrepare("d", b.name(1)), "ns/claim-a")
}

// A record that the release before has left says of no device that others may have it.
func TestRecover_ReleasingRecordOfEarlierRelease(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0), b.name(1, 14, 4))
	b.lose(1)
	before := b.Ledger.Record("a").Clone()
	before.State, before.Pods = records.Releasing, nil
	must(t, b.Ledger.write(before))
	b = b.restart()
	b.Recover(t.Context())
	b.wantTaken("after Recover")
	b.unprepare("a") // the kubelet says that its pods have ended
	b.prepare("b", b.name(0))
}

// What is free again is still allocated as long as the API server has it allocated: no layout takes its place.
func TestUnprepare_FreeGPUsStayAllocated(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	claim := deviceClaim("a", b.name(0, 19, 0), b.name(1, 14, 4))
	follower := NewFollower(b.Ledger, &fakeAPI{claims: []*resourceapi.ResourceClaim{claim}}, func() *gpu.Node { return b.session.Node() })
	mustPrepare(t, b.Preparer, claim)
	b.lose(1)
	b.unprepare("a")
	must(t, follower.List(t.Context()))
	_, err := follower.Follow(t.Context(), time.Now())
	must(t, err)
	for i, at := range []gpu.Place{place(19, 0, 1), place(14, 4, 2)} {
		has := records.AllocatedOf(b.Ledger.Allocations())(&b.session.Node().GPUs[i])
		if !slices.Contains(has.Places, at) || !(takenPlaces{b.Ledger}).allocatedAt(b.name(i), at) {
			t.Errorf("GPU %d: %+v is not allocated, though the API server has it allocated: %+v", i, at, has.Places)
		}
	}
}

// The partition of a layout is given to the next claim as it is.
func TestUnprepare_LayoutPartitionIsFree(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.processes = &podProcesses{}
	b.offer(0, cutInto(place(14, 4, 2)))
	b.kept()
	before := b.prepare("a", b.name(0, 14, 4), b.name(1, 14, 4))[0].Partition.UUID
	b.lose(1)
	b.unprepare("a")
	after := b.prepare("b", b.name(0, 14, 4))[0].Partition.UUID
	equal(t, "UUID", before, after)
	b.Recover(t.Context())
	b.want(list("0 14@4", "1 14@4"+halfGone), list("a", "b"), list("b"))
}

// The last share of a partition ends with it. The next claim's share is of a partition of its own, which goes with that claim.
func TestUnprepare_SharedPartitionIsFree(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.use(sharedPartitions())
	share := func(i int) string { return b.name(i, 9, 4) + "-timeslice" }
	b.prepare("beside", share(0))
	b.prepare("a", share(0), share(1))
	b.lose(1)
	b.unprepare("a")
	b.want(list("0 9@4", "1 9@4"+halfGone), list("a", "beside"), list("beside"))
	b.unprepare("beside")
	b.Recover(t.Context())
	b.want(list("1 9@4"+halfGone), list("a"), nil)
	b.prepare("b", share(0))
	b.Recover(t.Context())
	b.want(list("0 9@4", "1 9@4"+halfGone), list("a", "b"), list("b"))
	b.unprepare("b")
	b.want(list("1 9@4"+halfGone), list("a"), nil)
}

// stuckSharing is a supervisor that does not release the shares of one server.
type stuckSharing struct {
	*sharingDir
	server string
}

func (s stuckSharing) StopMPS(ctx context.Context, uid types.UID, server string) error {
	if server == s.server {
		return errors.New("the server does not end")
	}
	return s.sharingDir.StopMPS(ctx, uid, server)
}

// A share of one GPU has ended, and that of another has not.
func TestUnprepare_ShareIsFree(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	for i := range 2 {
		b.offers[i] = sharesByMPS()
		b.offers[i].Whole = true
	}
	b.prepare("a", b.name(0)+"-mps", b.name(1)+"-mps")
	b.Shares.sharing = stuckSharing{b.sharing, b.name(1)}
	b.unprepare("a")
	b.prepare("b", b.name(0))
	wantError(t, b.tryPrepare("c", b.name(1)), "ns/claim-a")
	b.Shares.sharing = b.sharing
	b.Recover(t.Context())
	b.want(nil, list("b"), nil)
}
