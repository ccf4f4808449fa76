// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// wantError fails unless an error says all of these.
func wantError(t *testing.T, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one that says %q", says)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

// wantRefused fails unless a claim is not prepared, with an error that says all of these.
func wantRefused(t *testing.T, e server, claim *resourceapi.ResourceClaim, says ...string) {
	t.Helper()
	_, err := e.Prepare(t.Context(), claim)
	wantError(t, err, says...)
}

func wantDisk(t *testing.T, b *bed, want ...string) {
	t.Helper()
	if want == nil {
		want = []string{}
	}
	equal(t, "records on disk", want, onDisk(t, b.dir))
}

func TestPrepare(t *testing.T) {
	b := newBed(t)
	got := mustPrepare(t, b.Preparer, claimOn("a", 2, 0))
	last := deviceFor("gpu", 0) // the claim's own spec names all devices of the request
	last.CDIDeviceIDs = append(last.CDIDeviceIDs, testDriver+"/claim=a-"+gpuName(0))
	equal(t, "devices", []records.Device{deviceFor("gpu", 2), last}, got)
	wantDisk(t, b, line("a", 2, 0))
}

func TestPrepare_NoDevices(t *testing.T) {
	b := newBed(t)
	if got := mustPrepare(t, b.Preparer, claimOf("a", otherDrivers("nic", 0))); len(got) != 0 {
		t.Errorf("got %v, want no devices", got)
	}
	wantDisk(t, b)
}

func TestPrepare_Repeated(t *testing.T) {
	b := newBed(t)
	first := mustPrepare(t, b.Preparer, claimOn("a", 1))
	b.disk.fail = func(op, _ string) error { return fmt.Errorf("%s must not be called", op) }
	checks := 0
	b.hardware.verify = func(context.Context, *gpu.GPU) error { checks++; return nil }
	equal(t, "second answer", first, mustPrepare(t, b.Preparer, claimOn("a", 1)))
	if checks != 1 {
		t.Errorf("the GPU was verified %d times, want once: success means that the device is there now", checks)
	}
	equal(t, "answer after a restart", first, mustPrepare(t, b.another().start().Preparer, claimOn("a", 1)))
}

func TestPrepare_RepeatedGPULost(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	b.hardware.verify = func(context.Context, *gpu.GPU) error { return gpu.ErrLost }
	_, err := b.Prepare(t.Context(), claimOn("a", 1))
	if !errors.Is(err, gpu.ErrLost) {
		t.Errorf("got %v, want %v", err, gpu.ErrLost)
	}
	wantDisk(t, b, line("a", 1)) // its pods may still run: it keeps what it has until it is unprepared
}

func TestPrepare_SeveralGPUs(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	several := claimOf("b", result("first", 0), result("main", 1), result("last", 2))
	wantRefused(t, b.Preparer, several, `request "main"`, gpuName(1), gpuUUID(1), "ns/claim-a (a)")
	mustPrepare(t, b.Preparer, claimOn("c", 0))
	mustPrepare(t, b.Preparer, claimOn("d", 2))
	wantDisk(t, b, line("a", 1), line("c", 0), line("d", 2))
}

func TestPrepare_AdminAccess(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	watch := claimOf("watch", adminResult("all", 0), adminResult("all", 1))
	if got := mustPrepare(t, b.Preparer, watch); len(got) != 2 {
		t.Errorf("got %d devices, want 2", len(got))
	}
	mustPrepare(t, b.Preparer, claimOn("b", 0))
	mustUnprepare(t, b.Preparer, watch)
	wantRefused(t, b.Preparer, claimOn("c", 1), "ns/claim-a (a)")
	wantDisk(t, b, line("a", 1), line("b", 0))
}

func TestPrepare_GPUAndAdminAccess(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOf("a", adminResult("watch", 1), result("gpu", 1)))
	wantRefused(t, b.Preparer, claimOn("b", 1), "ns/claim-a (a)")
}

func TestPrepare_CheckFails(t *testing.T) {
	replaced := errors.New("the GPU at 0000:11:00.0 is now GPU-x, not GPU-1 as published")
	unresolved := errors.New("CDI device is not in the spec")
	tests := map[string]struct {
		spoil func(b *bed)
		want  error
	}{
		"uuid changed": {func(b *bed) { b.hardware.verify = func(context.Context, *gpu.GPU) error { return replaced } }, replaced},
		"GPU lost":     {func(b *bed) { b.hardware.verify = func(context.Context, *gpu.GPU) error { return gpu.ErrLost } }, gpu.ErrLost},
		"second GPU lost": {func(b *bed) {
			b.hardware.verify = func(_ context.Context, g *gpu.GPU) error {
				if g.UUID == gpuUUID(2) {
					return gpu.ErrLost
				}
				return nil
			}
		}, gpu.ErrLost},
		"CDI unresolved": {func(b *bed) { b.specs.ensure = func([]string) error { return unresolved } }, unresolved},
		"waiting":        {func(b *bed) { b.SetWaiting(gpu.ErrLibraryNotFound) }, gpu.ErrLibraryNotFound},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			tt.spoil(b)
			got, err := b.Prepare(t.Context(), claimOn("a", 1, 2))
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, %v, want %v", got, err, tt.want)
			}
			wantDisk(t, b)
			b.hardware.verify, b.specs.ensure = nil, nil
			b.SetHardware(b.hardware, b.specs)
			mustPrepare(t, b.Preparer, claimOn("b", 1, 2)) // the GPUs stayed free
		})
	}
}

func TestPrepare_EnsuresCDIDevices(t *testing.T) {
	b := newBed(t)
	var ensured []string
	b.specs.ensure = func(ids []string) error { ensured = append(ensured, ids...); return nil }
	var returned []string
	for _, d := range mustPrepare(t, b.Preparer, claimOn("a", 3, 1)) {
		returned = append(returned, d.CDIDeviceIDs[0]) // the claim's own spec is written after it
	}
	if diff := cmp.Diff(returned, ensured); diff != "" || len(returned) != 2 {
		t.Errorf("CDI ids (-returned +ensured):\n%s", diff)
	}
}

func TestPrepare_DiskFull(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		t.Run(errno.Error(), func(t *testing.T) {
			b := newBed(t)
			b.disk.fail = func(op, path string) error {
				if op == "WriteFile" {
					return &fs.PathError{Op: "write", Path: path, Err: errno}
				}
				return nil
			}
			wantRefused(t, b.Preparer, claimOn("a", 1), "ns/claim-a (a)", "free space", b.dir)
			wantDisk(t, b)
			b.disk.fail = nil
			mustPrepare(t, b.Preparer, claimOn("b", 1))
			mustUnprepare(t, b.Preparer, claimOn("b", 1))
			mustPrepare(t, b.Preparer, claimOn("a", 1))
			wantDisk(t, b, line("a", 1))
		})
	}
}

func TestPrepare_AllocatedAnewWriteFails(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 0))
	b.disk.fail = failOp("WriteFile", syscall.EIO)
	if _, err := b.Prepare(t.Context(), claimOn("a", 1)); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v, want %v", err, syscall.EIO)
	}
	b.disk.fail = nil
	wantRefused(t, b.Preparer, claimOn("b", 0), "ns/claim-a (a)")
	mustPrepare(t, b.Preparer, claimOn("c", 1))
	wantDisk(t, b, line("a", 0), line("c", 1))
}

func TestPrepare_InvalidUID(t *testing.T) {
	b := newBed(t)
	wantRefused(t, b.Preparer, claimOn("../../x", 1), "../../x")
	mustPrepare(t, b.Preparer, claimOn("a", 1))
}

// prepareLater prepares a claim in another goroutine.
func prepareLater(ctx context.Context, e *Preparer, claim *resourceapi.ResourceClaim) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := e.Prepare(ctx, claim)
		ended <- err
	}()
	return ended
}

// blockOn makes VerifyGPU of one GPU say that it was entered and then wait.
func (b *bed) blockOn(i int) (entered, proceed chan struct{}) {
	entered, proceed = make(chan struct{}), make(chan struct{})
	b.hardware.verify = func(_ context.Context, g *gpu.GPU) error {
		if g.UUID == gpuUUID(i) {
			entered <- struct{}{}
			<-proceed
		}
		return nil
	}
	return entered, proceed
}

func TestPrepare_DifferentGPUsConcurrently(t *testing.T) {
	b := newBed(t)
	entered, proceed := b.blockOn(0)
	slow := prepareLater(t.Context(), b.Preparer, claimOn("slow", 0))
	<-entered
	mustPrepare(t, b.Preparer, claimOn("a", 1)) // would hang here
	mustUnprepare(t, b.Preparer, claimOn("a", 1))
	b.Reconcile(t.Context(), &fakeAPI{})
	close(proceed)
	if err := <-slow; err != nil {
		t.Errorf("the slow claim: %v", err)
	}
	wantDisk(t, b, line("slow", 0))
}
