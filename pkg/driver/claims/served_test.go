// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// serve registers claims at the MPS server of a GPU as a plugin of another name, or of none, does.
func (b *bed) serve(owner string, i int, uids ...types.UID) {
	b.t.Helper()
	defer func(before string) { b.sharing.owner = before }(b.sharing.owner)
	b.sharing.owner = owner
	for _, uid := range uids {
		_, _, err := b.sharing.StartMPS(b.t.Context(), uid, b.hardware.node.GPUs[i].Whole(), b.hardware.node.GPUs[i].UUID, &b.hardware.node.Offers[i], nil)
		must(b.t, err)
	}
}

// What the supervisor has of claims that no record knows goes, wherever it is, and never what is another driver name's.
func TestRecover_ServedWithoutRecord(t *testing.T) {
	b := newBed(t)
	b.prepare("a", mpsOf(0, 10, 10))
	b.serve(testDriver, 0, "stray")
	b.serve(testDriver, 1, "stray")
	b.serve("gpu.nvidia.com", 0, "theirs")
	b.serve("gpu.nvidia.com", 2, "theirs")
	b.serve("", 0, "earlier")
	for i := range b.hardware.node.GPUs {
		b.hardware.node.Offers[i].MPS = nil // the policy shares no GPU by MPS any more
	}
	b.Recover(t.Context())
	b.want("record a", "spec a", "mps 0 a", "mps 0 theirs", "mps 2 theirs", "mps 0 earlier")
	now := sharedNode() // GPU 1 is gone
	now.GPUs, now.Offers = slices.Delete(now.GPUs, 1, 2), slices.Delete(now.Offers, 1, 2)
	now.Offers[1].MPS, now.Offers[2].MPS = nil, nil
	*b.hardware.node = *now
	b.serve(testDriver, 1, "stray")
	b.Recover(t.Context())
	for _, uid := range b.sharing.served(gpuName(1)) {
		t.Errorf("GPU 1 still serves %s", uid)
	}
}

// Claims of a name that has no plugin here any more go with their object in the API server, and not before.
func TestReconcile_ServedByNobody(t *testing.T) {
	b := newBed(t)
	b.prepare("a", mpsOf(0, 10, 10))
	b.serve("gpu.nvidia.com", 0, "alive", "gone", "deallocated")
	b.serve("", 1, "earlier-alive", "earlier-gone")
	api := &fakeAPI{err: errDown, claims: claimList(
		b.claim("a", mpsOf(0, 10, 10)), b.claim("alive", mpsOf(0, 10, 10)), deallocated(b.claim("deallocated", mpsOf(0, 10, 10))),
		b.claim("earlier-alive", mpsOf(1, 10, 10)),
	)}
	b.Reconcile(t.Context(), api)
	all := []string{"record a", "spec a", "mps 0 a", "mps 0 alive", "mps 1 earlier-alive"}
	b.want(append(all, "mps 0 gone", "mps 0 deallocated", "mps 1 earlier-gone")...)
	api.err = nil
	b.Reconcile(t.Context(), api)
	b.want(all...)
}

// All claims of the cluster are listed without the lock of the GPU, for which the kubelet's calls wait.
func TestReconcile_ServedByNobodyHoldsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.serve("gpu.nvidia.com", 0, "deallocated", "gone")
		api := &fakeAPI{claims: claimList(deallocated(b.claim("deallocated", mpsOf(0, 10, 10))))}
		api.meanwhile = func(ctx context.Context, method string) error {
			if method != "ClaimByUID" {
				return nil
			}
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		done := make(chan struct{})
		go func() { defer close(done); b.Reconcile(t.Context(), api) }()
		for reconciled := false; !reconciled; {
			start := time.Now()
			mustAcquire(t, b.Ledger.locks, gpuName(0)).Release()
			if took := time.Since(start); took > 0 {
				t.Errorf("waited %s for the lock of a GPU", took)
			}
			select {
			case <-done:
				reconciled = true
			case <-time.After(time.Second):
			}
		}
		b.want()
	})
}

// Unprepare of a claim whose record is gone or corrupt takes it from its server at once: no later step knows of it.
func TestUnprepare_ServedWithoutRecord(t *testing.T) {
	tests := map[string]func(b *bed, path string) error{
		"record removed": func(_ *bed, path string) error { return os.Remove(path) },
		"record corrupt": func(b *bed, _ string) error { spoil(b.t, b.dir, "a"); return nil },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.prepare("a", mpsOf(0, 10, 10))
			b.prepare("b", mpsOf(0, 10, 10))
			b.die()
			must(t, spoil(b, filepath.Join(b.dir, "claims", "a.json")))
			again := b.another()
			again.load()
			again.unprepare("a") // no driver yet
			again.want("record b", "spec b", "mps 0 b")
		})
	}
}

// A claim with a corrupt record keeps its server as long as it may have pods, and loses it when it has none.
func TestReconcile_CorruptRecordOfAnMPSShare(t *testing.T) {
	b := newBed(t)
	b.prepare("a", mpsOf(0, 10, 10))
	b.die()
	spoil(t, b.dir, "a")
	b = b.another().start()
	b.want("spec a", "mps 0 a")
	b.Reconcile(t.Context(), &fakeAPI{})
	b.want()
}
