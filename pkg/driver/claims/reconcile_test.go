// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func claimList(claims ...*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim { return claims }

// otherUID is a claim of the same name that is not the same claim.
func otherUID(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	c.UID = "another"
	return c
}

func deallocated(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	c.Status.Allocation = nil
	return c
}

func inPool(c *resourceapi.ResourceClaim, pool string) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].Pool = pool
	}
	return c
}

func unreserved(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	c.Status.ReservedFor = nil
	return c
}

func TestReconcile_ClaimGoneAndIdle(t *testing.T) {
	prepared := claimOn("a", 1, 2)
	api := errors.New("connection refused")
	running := func(pod types.UID) func(b *bed) {
		return func(b *bed) { b.processes = &podProcesses{pids: map[types.UID][]int{pod: {7}}} }
	}
	driverSays := func(err error, pids ...int) func(b *bed) {
		return func(b *bed) {
			b.processes = &podProcesses{}
			b.hardware.pids[gpuName(1)], b.hardware.processesErr = pids, err
		}
	}
	tests := map[string]struct {
		claims []*resourceapi.ResourceClaim
		err    error
		spoil  func(b *bed)
		kept   bool
	}{
		"still allocated":               {claims: claimList(prepared), kept: true},
		"still allocated, not reserved": {claims: claimList(unreserved(prepared)), kept: true},
		"gone":                          {},
		"gone, in use": {
			spoil: func(b *bed) { b.hardware.pids[gpuName(2)] = []int{4711} }, kept: true,
		},
		"gone, in use elsewhere": {spoil: func(b *bed) { b.hardware.pids[gpuName(3)] = []int{4711} }},
		"gone, use unknown":      {spoil: func(b *bed) { b.hardware.processesErr = gpu.ErrLost }, kept: true},
		"gone, no driver":        {spoil: func(b *bed) { b.SetWaiting(gpu.ErrDriverNotLoaded) }, kept: true},
		"API server away":        {err: api, kept: true},
		"API error with a claim": {claims: claimList(otherUID(prepared)), err: api, kept: true},
		"another of its name":    {claims: claimList(otherUID(prepared))},
		"another, in use": {
			claims: claimList(otherUID(prepared)), spoil: func(b *bed) { b.hardware.pids[gpuName(1)] = []int{1} }, kept: true,
		},
		"gone, pods between contexts":       {spoil: running("pod-uid"), kept: true},
		"gone, pods ended":                  {spoil: running("another")},
		"gone, pods not to be seen":         {spoil: func(b *bed) { b.processes = &podProcesses{err: errors.New("hidden")} }, kept: true},
		"gone, pods ended, driver lists 1":  {spoil: driverSays(nil, 9), kept: true},
		"gone, pods ended, driver has none": {spoil: driverSays(gpu.ErrNotSupported)},
		"gone, pods ended, driver fails":    {spoil: driverSays(gpu.ErrLost), kept: true},
		"gone, pods run, driver has none": {
			spoil: func(b *bed) { running("pod-uid")(b); b.hardware.processesErr = gpu.ErrNotSupported }, kept: true,
		},
		"gone, GPU unreadable": {spoil: func(b *bed) { b.without(1) }, kept: true},
		"gone, GPU taken out":  {spoil: func(b *bed) { b.without(1); b.hardware.absent = list(gpuName(1)) }},
		"gone, GPU replaced": {
			spoil: func(b *bed) { b.hardware.node.GPUs[1].UUID = "GPU-other"; b.hardware.pids[gpuName(1)] = []int{7} },
		},
		"gone, GPU in a new slot": {spoil: func(b *bed) {
			b.without(1)
			b.hardware.absent = list(gpuName(1))
			b.hardware.node.GPUs = append(b.hardware.node.GPUs, gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x80}, UUID: gpuUUID(1)})
			b.hardware.node.Offers = append(b.hardware.node.Offers, b.hardware.node.Offers[0])
		}},
		"deallocated":                 {claims: claimList(deallocated(prepared))},
		"allocated to other GPUs":     {claims: claimList(claimOn("a", 1, 3))},
		"allocated to another node":   {claims: claimList(inPool(prepared, "node-2"))},
		"allocated to fewer GPUs":     {claims: claimList(claimOn("a", 1))},
		"allocated to another driver": {claims: claimList(forDriver("other.example.com", prepared.DeepCopy()))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			mustPrepare(t, b.Preparer, prepared)
			mustPrepare(t, b.Preparer, claimOn("bystander", 3))
			if tt.spoil != nil {
				tt.spoil(b)
			}
			b.Reconcile(t.Context(), &fakeAPI{claims: append(claimList(claimOn("bystander", 3)), tt.claims...), err: tt.err})
			want := []string{line("bystander", 3)}
			if tt.kept {
				want = []string{line("a", 1, 2), line("bystander", 3)}
			}
			wantDisk(t, b, want...)
			if b.hardware.node.Find(gpuName(1)) == nil {
				return
			}
			b.SetHardware(b.hardware, b.specs)
			_, err := b.Prepare(t.Context(), claimOn("next", 1))
			if refused := err != nil; refused != tt.kept {
				t.Errorf("Prepare of the next claim: got error %v, want it refused: %t", err, tt.kept)
			}
		})
	}
}

func TestReconcile_OneClaimFails(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a-busy", 0))
	mustPrepare(t, b.Preparer, claimOn("b-gone", 1))
	var reported []string
	b.onRelease = func(claim records.Claim, err error) {
		reported = append(reported, fmt.Sprintf("%s in use %t, released %t", claim.UID, errors.Is(err, gpu.ErrInUse), err == nil))
	}
	b.hardware.pids[gpuName(0)] = []int{1}
	b.Reconcile(t.Context(), &fakeAPI{err: errors.New("connection refused")}) // which is not the claims'
	b.Reconcile(t.Context(), &fakeAPI{})
	wantDisk(t, b, line("a-busy", 0))
	delete(b.hardware.pids, gpuName(0))
	b.Reconcile(t.Context(), &fakeAPI{})
	wantDisk(t, b)
	want := []string{"a-busy in use true, released false", "b-gone in use false, released true", "a-busy in use false, released true"}
	equal(t, "reported", want, reported)
}

func TestReconcile_AdminAccessOnGPUInUse(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	mustPrepare(t, b.Preparer, claimOf("watch", adminResult("all", 1)))
	b.hardware.pids[gpuName(1)] = []int{1}
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimOn("a", 1))})
	wantDisk(t, b, line("a", 1))
}

func TestReconcile_ClaimChangedMeanwhile(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	api := &fakeAPI{}
	api.meanwhile = func(context.Context, string) error {
		api.meanwhile = nil // once
		mustUnprepare(t, b.Preparer, claimOn("a", 1))
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		api.claims = claimList(claimOn("a", 1))
		return nil
	}
	b.Reconcile(t.Context(), api)
	wantDisk(t, b, line("a", 1))
}

func TestReconcile_ContextEnds(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.Reconcile(ctx, &fakeAPI{})
	wantDisk(t, b, line("a", 1))
}

func TestReconcile_CorruptRecord(t *testing.T) {
	prepared := claimOn("a", 1)
	unreachable := errors.New("connection refused")
	tests := map[string]struct {
		claims []*resourceapi.ResourceClaim
		err    error
		want   []string
		again  bool // asked once more at the next reconcile
	}{
		"still reserved":             {claims: claimList(prepared), want: []string{line("a", 1)}},
		"allocated, not reserved":    {claims: claimList(unreserved(prepared))},
		"reserved, not allocated":    {claims: claimList(deallocated(prepared))},
		"gone":                       {},
		"API server away":            {claims: claimList(prepared), err: unreachable, again: true},
		"on another node":            {claims: claimList(inPool(prepared, "node-2"))},
		"only of another driver now": {claims: claimList(claimOf("a", otherDrivers("nic", 1)))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := newBed(t)
			mustPrepare(t, before.Preparer, prepared)
			spoil(t, before.dir, "a")
			b := before.another().start()
			api := &fakeAPI{claims: tt.claims, err: tt.err}
			b.Reconcile(t.Context(), api)
			wantDisk(t, b, tt.want...)

			api.lists = 0
			b.Reconcile(t.Context(), api)
			if asked := api.lists > 0; asked != tt.again {
				t.Errorf("the next Reconcile listed all claims of the cluster: %t, want %t", asked, tt.again)
			}
		})
	}
}

// Until the record is made again, nothing says that the claim's containers have the GPU but the driver, also where the corrupt record
// cannot be moved.
func TestPrepare_GPUInUseByCorruptRecord(t *testing.T) {
	for name, fail := range map[string]func(op, path string) error{"moved": nil, "in its place": failOp("Rename", syscall.EIO)} {
		t.Run(name, func(t *testing.T) {
			before := newBed(t)
			mustPrepare(t, before.Preparer, claimOn("a", 1))
			mustPrepare(t, before.Preparer, claimOn("good", 2))
			spoil(t, before.dir, "a")
			b := before.another()
			b.disk.fail = fail
			b.start()
			mustPrepare(t, b.Preparer, claimOn("good", 2))
			mustPrepare(t, b.Preparer, claimOn("next", 3))
			b.hardware.pids[gpuName(1)] = []int{4711} // the pod of claim a
			wantRefused(t, b.Preparer, claimOn("b", 1), "4711")
			b.disk.fail = nil
			mustUnprepare(t, b.Preparer, claimOn("a", 1))
		})
	}
}

// A claim is looked for again with its GPU locked, for which the kubelet's calls wait.
func TestReconcile_APIServerStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := 0
		go b.Reconcile(ctx, &fakeAPI{meanwhile: func(ctx context.Context, _ string) error { // answers once
			if asked++; asked == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}})
		synctest.Wait()
		start := time.Now()
		mustUnprepare(t, b.Preparer, claimOn("a", 1))
		if took := time.Since(start); took > askLimit {
			t.Errorf("Unprepare waited %s for the lock of its GPU, want %s at most", took, askLimit)
		}
	})
}
