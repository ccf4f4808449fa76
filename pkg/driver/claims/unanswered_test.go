// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// sharesByMPS is what a GPU offers that is shared by MPS.
func sharesByMPS() policy.Offer {
	return policy.Offer{MPS: sharedNode().Offers[0].MPS}
}

// The supervisor does not answer. No pod waits for it, neither one that also has a partition of a layout.
func TestUnprepare_LayoutPartitionKeepsNoPod(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	for _, i := range []int{0, 2, 3} {
		b.offers[i] = sharesByMPS()
	}
	b.offer(1, cutInto(place(14, 4, 2)))
	b.kept()
	b.prepare("alone", b.name(2)+"-mps")
	b.prepare("own", b.name(3)+"-mps", b.name(4, 14, 4))
	b.prepare("a", b.name(0)+"-mps", b.name(1, 14, 4))
	b.sharing.err = failing("before StopMPS", errors.New("the supervisor does not answer"))
	b.unprepare("alone") // control
	b.unprepare("own")   // control
	if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); err != nil {
		t.Errorf("the pod stays: %v", err)
	}
}

// A claim's share of one GPU cannot be released. Its time-sliced partition of another GPU needs no server and is destroyed.
func TestUnprepare_PartitionOfOtherGPU(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.use(sharedPartitions())
	b.offers[0] = sharesByMPS()
	b.prepare("a", b.name(0)+"-mps", b.name(1, 9, 4)+"-timeslice")
	b.sharing.err = failing("before StopMPS", errors.New("the supervisor does not answer"))
	b.unprepare("a")
	b.Recover(t.Context())
	b.want(nil, list("a"), nil)
}

// The supervisor is frozen: each call of it takes 30 s. The kubelet waits 45 s for Unprepare, again and again.
func TestUnprepare_SupervisorFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		b.offers[0], b.offers[1], b.offers[2] = sharesByMPS(), sharesByMPS(), sharesByMPS()
		b.prepare("one", b.name(0)+"-mps")
		b.prepare("two", b.name(1)+"-mps", b.name(2)+"-mps")
		b.Shares.sharing = frozenSharing{b.sharing}
		for _, uid := range []types.UID{"one", "two"} {
			least := time.Hour
			for range 3 {
				began := time.Now()
				_ = b.Unprepare(t.Context(), refOf(deviceClaim(uid)))
				least = min(least, time.Since(began))
			}
			if least > 45*time.Second {
				t.Errorf("claim %s: each Unprepare takes at least %s, longer than the kubelet waits: its pod stays", uid, least)
			}
		}
	})
}

// Both the call without an answer and those that are not made for that reason tell so.
func TestShares_SilentError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shares{sharing: frozenSharing{}}
		for attempt := range 3 {
			err := s.ask(t.Context(), "a", func() error { return s.sharing.StopMPS(t.Context(), "uid", "a") })
			if silent := (*SilentError)(nil); !errors.As(err, &silent) {
				t.Errorf("attempt %d: got %v, want a SilentError", attempt, err)
			}
		}
	})
}

// The supervisor takes long for some GPUs, whose servers hang in the driver. It serves the others, and no pod waits for long.
func TestShares_ServersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		b.offers[0], b.offers[1], b.offers[2] = sharesByMPS(), sharesByMPS(), sharesByMPS()
		b.prepare("a", b.name(0)+"-mps", b.name(1)+"-mps")
		b.Shares.sharing = hangingSharing{b.sharing, b.name(2)}
		for tries := 1; b.recordState("a") != records.Releasing; tries++ {
			ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
			_ = b.Unprepare(ctx, refOf(deviceClaim("a")))
			cancel()
			if tries > 3 {
				t.Fatal("the pod stays")
			}
		}
		b.prepare("b", b.name(2)+"-mps")
		b.unprepare("b")
		if b.Ledger.Record("b") != nil {
			t.Error("the claim on GPU 2 was not released")
		}
	})
}

// hangingSharing is a supervisor that releases no shares but those of one GPU.
type hangingSharing struct {
	*sharingDir
	but string
}

func (h hangingSharing) StopMPS(ctx context.Context, uid types.UID, server string) error {
	if server != h.but {
		return frozen(ctx)
	}
	return h.sharingDir.StopMPS(ctx, uid, server)
}

// Another plugin process, which was killed while one of its threads hangs in the driver, still has the lock of one GPU: the kernel
// releases it when the thread returns. Claims of other GPUs are recovered.
func TestRecover_ForeignLock(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 19, 0))
	b.prepare("b", b.name(1, 19, 0))
	must(t, b.node.Faults().FailCall("nvmlGpuInstanceDestroy", sim.CodeGPUIsLost))
	b.unprepare("a")
	b.unprepare("b")
	must(t, b.node.Faults().Clear(-1))
	locks, err := OpenLocks(b.dir + "/locks")
	must(t, err)
	held, err := locks.Acquire(t.Context(), []string{b.name(0)})
	must(t, err)
	defer held.Release()
	b.Ledger.locks.foreign = time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b.Recover(ctx)
	if ctx.Err() != nil {
		t.Error("Recover waits for the lock of GPU 0 for as long as it may")
	}
	if b.Ledger.Record("b") != nil {
		t.Error("the claim on GPU 1 was not recovered")
	}
}

// frozenSharing is a supervisor that accepts calls and does not answer: each takes as long as the client waits.
type frozenSharing struct{ *sharingDir }

func frozen(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second): // callTimeout of pkg/driver/mps
	}
	return errors.New("the MPS supervisor did not answer in time")
}

func (frozenSharing) StartMPS(ctx context.Context, _ types.UID, _ gpu.Shape, _ string, _ *policy.Offer, _ *records.MPS) (pipeDir, shmDir string, err error) {
	return "", "", frozen(ctx)
}
func (frozenSharing) StopMPS(ctx context.Context, _ types.UID, _ string) error { return frozen(ctx) }
func (frozenSharing) RetainMPS(ctx context.Context, _ string, _ []types.UID) error {
	return frozen(ctx)
}
func (frozenSharing) ServedMPS(ctx context.Context) ([]records.Served, error) {
	return nil, frozen(ctx)
}

// The supervisor freezes, which has the loop recover at once. Neither do the claims of other GPUs wait for that, nor those that the
// kubelet unprepares meanwhile.
func TestRecover_SupervisorFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100")
		uids := []types.UID{"a", "b", "c", "d", "e", "f"}
		for i, uid := range uids {
			b.offers[i%2] = sharesByMPS()
			b.prepare(uid, b.name(i%2)+"-mps")
		}
		b.Shares.sharing = frozenSharing{b.sharing}
		ended := make(chan time.Duration, 1)
		began := time.Now()
		go func() {
			b.Recover(t.Context())
			ended <- time.Since(began)
		}()
		<-time.After(time.Second)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
		defer cancel()
		_ = b.Unprepare(ctx, refOf(deviceClaim("e")))
		if took := time.Since(start); took >= 45*time.Second {
			t.Errorf("Unprepare of a claim with one share took %s: the kubelet gives up after 45 s, and its pod stays", took)
		}
		if took := <-ended; took > time.Minute {
			t.Errorf("Recover of six claims took %s", took)
		}
	})
}

// The first to wait for the lock of that process gives up early, as its caller has no time left. The next one waits for no longer than
// for the lock itself.
func TestAcquire_ForeignAfterAnotherGaveUp(t *testing.T) {
	dir := t.TempDir()
	one, two := openLocks(t, dir), openLocks(t, dir)
	defer mustAcquire(t, two, "a").Release()
	one.foreign = time.Second
	if _, err := one.Acquire(endsAfter(t.Context(), 1), []string{"a"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := one.Acquire(ctx, []string{"a"}); !errors.Is(err, errForeign) {
		t.Errorf("got %v, want %v: a caller without a deadline waits for as long as the process has the lock", err, errForeign)
	}
}
