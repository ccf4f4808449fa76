// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A driver may wipe idle partitions when a GPU leaves MIG mode: whoever needs the whole GPU must look before.
func TestPrepare_WholeGPUWithIdleUnmanagedPartition(t *testing.T) {
	for _, tier := range []string{"", "-timeslice", "-mps"} {
		t.Run("device"+tier, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			b.use(v1alpha1.Rule{})
			must(t, b.node.Driver().SetQuirk(sim.QuirkModeWipesInstances, true))
			occupy(t, b.node, 0, 14, 2, 2) // since the plugin looked last
			err := b.tryPrepare("a", b.name(0)+tier)
			wantError(t, err, "Cleave did not create these partitions")
			b.want(list("0 14@2"), nil, nil)
		})
	}
}

// The same where a failing call hides the partitions.
func TestPrepare_WholeGPUWithPartitionsThatCannotBeListed(t *testing.T) {
	for _, call := range []string{"nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById", "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetInfo"} {
		b := newSimBed(t, "hgx-h100")
		must(t, b.node.Driver().SetQuirk(sim.QuirkModeWipesInstances, true))
		occupy(t, b.node, 0, 14, 2, 2)
		must(t, b.node.Faults().FailCall(call, sim.CodeUnknown))
		wantError(t, b.tryPrepare("a", b.name(0)))
		must(t, b.node.Faults().Clear(-1))
		b.want(list("0 14@2"), nil, nil)
	}
}

// sessionsOf is a driver whose sessions a test ends.
type sessionsOf struct {
	session string
	broken  bool
	witness map[int]string // by GPU instance
	endErr  error
}

func (s *sessionsOf) Of(string) string         { return s.session }
func (s *sessionsOf) Unbroken(string) bool     { return !s.broken }
func (s *sessionsOf) Witness(_, gi int) string { return s.witness[gi] }

func (s *sessionsOf) End() error {
	if s.endErr != nil {
		return s.endErr
	}
	s.session, s.broken = s.session+"'", true
	return nil
}

// newSessionBed is a bed that distinguishes sessions of the driver.
func newSessionBed(t *testing.T) (*simBed, *sessionsOf) {
	t.Helper()
	b, s := newSimBed(t, "hgx-h100"), &sessionsOf{session: "1", witness: map[int]string{}}
	b.Ledger.sessions = sessions{s}
	return b, s
}

// in has a plugin distinguish sessions of the driver.
func in(s *sessionsOf) func(*Options) { return func(o *Options) { o.Sessions = s } }

// release releases the driver, and uses it again after something happened.
func (b *simBed) release(s *sessionsOf, meanwhile func()) *simBed {
	b.t.Helper()
	leave(b)
	meanwhile()
	return b.restart(in(s))
}

// leave releases the driver.
func leave(b *simBed) {
	b.t.Helper()
	b.SetWaiting(gpu.ErrDriverNotLoaded)
	b.Quiesce()
	must(b.t, b.Ledger.EndSession(b.t.Context(), offeredHardware{b.session, b.offers}))
}

// A partition that someone else created anew, in the same place and with the same IDs, is never destroyed, and tainted.
func TestDriverSession_PartitionCreatedAnewByOthers(t *testing.T) {
	b, s := newSessionBed(t)
	device := b.name(0, 19, 6)
	b.prepare("a", device)
	b.prepare("ended", b.name(0, 19, 5))
	b = b.release(s, func() {
		b.unprepare("ended") // without the driver
		must(t, b.node.Hardware().ForceRemake(0))
	})
	serials := b.serials()
	err := b.tryPrepare("a", device)
	wantError(t, err, "released or reloaded")
	b.want(list("0 19@5", "0 19@6"), list("a"), list("a"))
	b.unprepare("a")
	b.Recover(t.Context())
	b.want(list("0 19@5", "0 19@6"), nil, nil)
	equal(t, "GPU instances were destroyed", serials, b.serials())
	if got := b.Partitions.Occupied(); !slices.Contains(got, device) || !slices.Contains(got, b.name(0)) {
		t.Errorf("occupied devices %v: want %s and the whole GPU", got, device)
	}
}

// serials distinguish GPU instances from those that are created in their places.
func (b *simBed) serials() []unmanaged {
	b.t.Helper()
	found, err := instancesNow(b.node)
	must(b.t, err)
	return found
}

// Where nothing lies in its place, a claim gets a partition of the new session.
func TestDriverSession_PartitionGone(t *testing.T) {
	b, s := newSessionBed(t)
	b.prepare("a", b.name(0, 19, 6))
	b = b.release(s, func() {
		must(t, b.node.Hardware().ForceReset(0))
	})
	b.prepare("a", b.name(0, 19, 6))
	b.want(list("0 19@6"), list("a"), list("a"))
	b.unprepare("a")
	b.want(nil, nil, nil)
}

// A partition that proves to be the same stays the claim's: pods on other GPUs go on while one GPU is reset.
func TestDriverSession_PartitionWithWitness(t *testing.T) {
	b, s := newSessionBed(t)
	s.witness = map[int]string{13: "w13", 12: "w12"}
	for uid, device := range map[types.UID]string{"same": b.name(0, 19, 6), "other": b.name(0, 19, 5), "ended": b.name(1, 19, 6)} {
		b.prepare(uid, device)
	}
	b = b.release(s, func() {
		b.unprepare("ended")
		s.witness[12] = "another"
	})
	b.want(list("0 19@5", "0 19@6"), list("other", "same"), list("other", "same"))
	b.prepare("same", b.name(0, 19, 6))
	b = b.restart(in(s))
	b.unprepare("same")
	b.unprepare("other")
	b.want(list("0 19@5"), nil, nil)
}

// The kubelet may call before Recover has come to a claim.
func TestDriverSession_CallsBeforeRecover(t *testing.T) {
	b, s := newSessionBed(t)
	s.witness = map[int]string{13: "w13", 12: "w12"}
	b.prepare("runs", b.name(0, 19, 6))
	b.prepare("ended", b.name(0, 19, 5))
	leave(b)
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	b.unprepare("ended")
	b.want(list("0 19@6"), list("runs"), list("runs"))
	b.prepare("runs", b.name(0, 19, 6))
	equal(t, "session in the spec", s.session, b.specs.ClaimSession("runs", b.name(0, 19, 6)))
	b.unprepare("runs")
	b.want(nil, nil, nil)
}

// A partition stays for the claims that go on sharing it, although their records are renewed later.
func TestDriverSession_SharedPartition(t *testing.T) {
	for name, end := range map[string]func(b *simBed, s *sessionsOf) *simBed{
		"without the driver": func(b *simBed, s *sessionsOf) *simBed { return b.release(s, func() { b.unprepare("a") }) },
		"before Recover": func(b *simBed, _ *sessionsOf) *simBed {
			leave(b)
			b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
			b.prepare("late", b.slice())
			b.unprepare("a")
			b.unprepare("late")
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := newSessionBed(t)
			b.use(sharedPartitions())
			s.witness = map[int]string{b.prepare("a", b.slice())[0].Partition.GI: "w"}
			b.prepare("b", b.slice())
			b = end(b, s)
			b.want(list("0 9@4"), list("b"), list("b"))
			b.unprepare("b")
			b.want(nil, nil, nil)
		})
	}
}

// Claims that shared a partition which ended with the driver share the one that the first of them gets instead.
func TestDriverSession_SharedPartitionGone(t *testing.T) {
	b, s := newSessionBed(t)
	b.use(sharedPartitions())
	b.prepare("a", b.slice())
	b.prepare("b", b.slice())
	b = b.release(s, func() { must(t, b.node.Hardware().ForceReset(0)) })
	b.prepare("a", b.slice())
	b.prepare("b", b.slice())
	b.unprepare("a")
	b.want(list("0 9@4"), list("b"), list("b"))
	b.unprepare("b")
	b.want(nil, nil, nil)
}

func TestDriverSession_LayoutCreatedAnewByOthers(t *testing.T) {
	b, s := newSessionBed(t)
	b.lay(cutInto(place(19, 5, 1), place(19, 6, 1)))
	b = b.release(s, func() {
		must(t, b.node.Hardware().ForceRemake(0))
	})
	for range 2 {
		b.lay(cutInto(place(19, 6, 1))) // the other place is no longer in the policy
		b.want(list("0 19@5", "0 19@6"), nil, nil)
	}
}

// What a layout has stays its own where it proves to be the same: another policy has it destroyed.
func TestDriverSession_LayoutWithWitness(t *testing.T) {
	all := cutInto(place(19, 5, 1), place(19, 6, 1))
	found := &policy.PartitionOffer{Mode: policy.Existing, Places: all.Places}
	again := func(b *simBed, s *sessionsOf) *simBed { return b.release(s, func() {}) }
	for name, tt := range map[string]struct {
		release func(b *simBed, s *sessionsOf) *simBed
		next    *policy.PartitionOffer
		left    []string
	}{
		"the same":   {again, policy.NoPlaces(nil), nil},
		"whole GPUs": {again, nil, nil},
		"released twice": {func(b *simBed, s *sessionsOf) *simBed {
			leave(b)
			return again(b, s)
		}, nil, nil},
		"before Recover": {func(b *simBed, _ *sessionsOf) *simBed {
			leave(b)
			b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
			b.lay(all)
			return b
		}, nil, nil},
		"used as they are": {func(b *simBed, s *sessionsOf) *simBed {
			b = again(b, s)
			b.lay(found)
			return b
		}, nil, list("0 19@5", "0 19@6")},
		"one is another": {func(b *simBed, s *sessionsOf) *simBed { return b.release(s, func() { s.witness[12] = "another" }) }, nil, list("0 19@5")},
		"GPU that has failed": {func(b *simBed, s *sessionsOf) *simBed {
			must(b.t, b.node.Faults().FailCall("nvmlDeviceGetGpuInstances", sim.CodeUnknown))
			return b.release(s, func() { must(b.t, b.node.Faults().Clear(-1)) })
		}, nil, list("0 19@5", "0 19@6")},
		"disk full": {func(b *simBed, s *sessionsOf) *simBed {
			b.disk.fail = failOp("WriteFile", errors.New("no space"))
			return b.release(s, func() { b.disk.fail = nil })
		}, nil, list("0 19@5", "0 19@6")},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := newSessionBed(t)
			s.witness = map[int]string{13: "w13", 12: "w12"}
			b.lay(all)
			b = tt.release(b, s)
			b.lay(all)
			b.Recover(t.Context())
			b.lay(tt.next)
			b.want(tt.left, nil, nil)
		})
	}
}

func TestDriverSession_CutShort(t *testing.T) {
	b, s := newSessionBed(t)
	b.prepare("a", b.name(0, 19, 6))
	r := b.Ledger.index.get("a").Clone()
	r.State, r.Devices[0].Partition.UUID, r.Devices[0].Partition.CI = records.Preparing, "", nil
	must(t, b.Ledger.store.Write(r))
	s.session, s.broken = "2", true
	b = b.restart(in(s))
	b.want(list("0 19@6"), nil, nil)
}

// A claim whose record is lost has its partition back as its own if nobody else can have created it.
func TestDriverSession_CorruptRecord(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(b *simBed, s *sessionsOf) *simBed
		left    []string
	}{
		"in the first session": {func(b *simBed, _ *sessionsOf) *simBed { return b }, nil},
		"in a later session": {func(b *simBed, s *sessionsOf) *simBed {
			s.broken = true
			return b
		}, nil},
		"in a later session, and no spec": {func(b *simBed, s *sessionsOf) *simBed {
			s.broken = true
			must(b.t, b.specs.RemoveClaim("a"))
			return b
		}, list("0 19@6")},
		"reloaded since": {func(b *simBed, s *sessionsOf) *simBed {
			s.session, s.broken = "2", true
			return b
		}, list("0 19@6")}, // it may be someone else's
		"proven to be the same since": {func(b *simBed, s *sessionsOf) *simBed {
			s.witness[13] = "w13"
			return b.release(s, func() {})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := newSessionBed(t)
			b.prepare("a", b.name(0, 19, 6))
			b = test.happens(b, s)
			spoil(t, b.dir, "a")
			b = b.restart(in(s))
			b.Reconcile(t.Context(), &fakeAPI{claims: claimList(deviceClaim("a", b.name(0, 19, 6)))})
			b.want(list("0 19@6"), list("a"), list("a"))
			b.unprepare("a")
			b.want(test.left, nil, nil)
		})
	}
}

// A session that cannot be ended on record is reported to whoever releases the driver.
func TestEndSession_Fails(t *testing.T) {
	b, s := newSessionBed(t)
	b.prepare("a", b.name(0, 19, 6))
	s.endErr = errors.New("read-only")
	if err := b.Ledger.EndSession(t.Context(), offeredHardware{b.session, b.offers}); !errors.Is(err, s.endErr) {
		t.Errorf("EndSession = %v, want %v", err, s.endErr)
	}
	s.endErr, b.disk.fail = nil, failOp("WriteFile", errors.New("no space"))
	if err := b.Ledger.EndSession(t.Context(), offeredHardware{b.session, b.offers}); err == nil || s.session != "1" {
		t.Errorf("EndSession = %v in session %s, want an error and the session to go on", err, s.session)
	}
}
