// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// start is when the tests begin.
var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// lower and upper are halves of a board.
var (
	lower = &gpu.Placement{Start: 0, Size: 4}
	upper = &gpu.Placement{Start: 4, Size: 4}
)

// step is something that happens to a GPU some time after the step before, and what holds then.
type step struct {
	after time.Duration
	do    func(s *State, now time.Time)
	want  string // conditions, the worst first
}

func xid(n int) func(*State, time.Time) {
	return func(s *State, now time.Time) { s.Event(gpu.Event{Kind: gpu.XIDReported, XID: n}, nil, nil, now) }
}

// xidIn is an XID in a GPU instance that lies at a placement.
func xidIn(n int, part *gpu.Placement) func(*State, time.Time) {
	return func(s *State, now time.Time) {
		gi := 3
		s.Event(gpu.Event{Kind: gpu.XIDReported, XID: n, GI: &gi}, part, nil, now)
	}
}

func event(kind gpu.EventKind) func(*State, time.Time) {
	return func(s *State, now time.Time) { s.Event(gpu.Event{Kind: kind}, nil, nil, now) }
}

func says(action gpu.RecoveryAction) func(*State, time.Time) {
	return func(s *State, now time.Time) { s.Poll(Reading{Recovery: gpu.Recovery{Action: action}}, nil, now) }
}

// remap answers whether a row of memory could not be remapped.
func remap(failed *bool) func(*State, time.Time) {
	return func(s *State, now time.Time) { s.Poll(Reading{Recovery: gpu.Recovery{RemapFailed: failed}}, nil, now) }
}

func ptr(b bool) *bool { return &b }

func fails(err error) func(*State, time.Time) {
	return func(s *State, now time.Time) { s.Poll(Reading{Err: fmt.Errorf("ask: %w", err)}, nil, now) }
}

// What a GPU answers.
var (
	fine       = says(gpu.RecoveryNone)
	old        = says(gpu.RecoveryUnknown) // a driver that reports no recovery action
	wantsReset = says(gpu.RecoveryReset)
	isLost     = fails(gpu.ErrLost)
	errNVML    = errors.New("unknown error")
)

// names words conditions.
func names(list []Condition) string {
	var all []string
	for _, c := range list {
		all = append(all, c.String())
		if c.SparesRunning {
			all = append(all, "running programs may finish")
		}
	}
	return strings.Join(all, ", ")
}

func TestState_Conditions(t *testing.T) {
	const s = time.Second
	tests := map[string][]step{
		"a program's error is nothing": {{0, xid(13), ""}, {0, xid(31), ""}, {0, xid(43), ""}, {0, xid(45), ""}, {0, xid(68), ""},
			{0, xid(109), ""}, {0, xidIn(31, lower), ""}},
		"a change of MIG is nothing":          {{0, event(gpu.MIGChanged), ""}},
		"an error of the GPU lasts":           {{0, xid(48), "xid-48"}, {10 * s, fine, "xid-48"}, {40 * s, fine, "xid-48"}},
		"until the driver has wanted nothing": {{0, xid(48), "xid-48"}, {59 * s, fine, "xid-48"}, {s, fine, ""}},
		"counted from the last time": {
			{0, xid(48), "xid-48"}, {30 * s, xid(48), "xid-48"}, {30 * s, fine, "xid-48"}, {30 * s, fine, ""},
		},
		"or until what it wanted is done": {
			{0, xid(48), "xid-48"}, {0, wantsReset, "needs-reset, xid-48"}, {3600 * s, wantsReset, "needs-reset, xid-48"}, {s, fine, ""},
		},
		"an old driver never says that it is over": {{0, xid(48), "xid-48"}, {24 * 3600 * s, old, "xid-48"}},
		"but a GPU that was gone was reset":        {{0, xid(48), "xid-48"}, {s, isLost, "gpu-lost, xid-48"}, {s, old, ""}},
		"or had its driver reloaded":               {{0, xid(119), "xid-119"}, {s, fails(gpu.ErrDriverNotLoaded), "xid-119"}, {s, old, ""}},
		"one that failed to answer was not": {{0, xid(48), "xid-48"}, {s, fails(errNVML), "xid-48"},
			{60 * s, fails(errNVML), "gpu-unreachable, xid-48"}, {s, old, "xid-48"}},
		"a contained error passes": {{0, xid(94), "xid-94"}, {59 * s, fine, "xid-94"}, {s, fine, ""}},
		"with an old driver, too":  {{0, xid(94), "xid-94"}, {60 * s, old, ""}},
		"but not while the driver wants something": {{0, xid(94), "xid-94"}, {60 * s, wantsReset, "needs-reset, xid-94"},
			{60 * s, old, "needs-reset, xid-94"}, {s, fine, ""}},
		"nor while the GPU does not answer": {{0, xid(94), "xid-94"}, {600 * s, fails(errNVML), "xid-94"}, {s, fine, ""}},
		"an unknown XID passes":             {{0, xid(999), "xid-999"}, {60 * s, fine, ""}},
		"a contained error is its partition's": {
			{0, xidIn(94, lower), "xid-94 at 0:4"}, {30 * s, xidIn(94, upper), "xid-94 at 0:4, xid-94 at 4:4"},
			{30 * s, fine, "xid-94 at 4:4"}, {30 * s, fine, ""},
		},
		"what needs a reset is the whole GPU's": {{0, xidIn(95, lower), "xid-95"}},
		"the worst is first, then the oldest": {
			{0, xid(92), "xid-92"}, {s, xid(94), "xid-92, xid-94"}, {s, xid(79), "xid-79, xid-92, xid-94"},
			{s, xid(74), "xid-79, xid-74, xid-92, xid-94"},
			{s, wantsReset, "needs-reset, xid-79, xid-74, xid-92, xid-94"}, {s, isLost, "gpu-lost, needs-reset, xid-79, xid-74, xid-92, xid-94"},
		},
		"something lesser makes nothing better": {{0, xid(79), "xid-79"}, {0, xid(13), "xid-79"},
			{0, xid(94), "xid-79, xid-94"}, {60 * s, old, "xid-79"}},
		"the driver wants something else": {
			{0, wantsReset, "needs-reset"}, {s, says(gpu.RecoveryDrainP2P), "needs-p2p-drain"},
			{s, says(gpu.RecoveryDrainAndReset), "needs-drain-and-reset, running programs may finish"},
			{s, says(gpu.RecoveryBusReset), "needs-bus-reset"}, {s, says(gpu.RecoveryReboot), "needs-reboot"},
			{s, says(gpu.RecoverySystemReboot), "needs-reboot"},
			{s, says(gpu.RecoveryIMEXDomain), "needs-imex-recovery, running programs may finish"}, {s, says(42), "needs-recovery"}, {s, fine, ""},
		},
		"a row that could not be remapped": {{0, xid(64), "xid-64"}, {0, remap(ptr(true)), "xid-64, row-remap-failed, running programs may finish"},
			{60 * s, remap(ptr(true)), "row-remap-failed, running programs may finish"},
			{s, fine, "row-remap-failed, running programs may finish"}, // in MIG mode the driver says nothing
			{s, isLost, "gpu-lost, row-remap-failed, running programs may finish"},
			{s, remap(ptr(true)), "row-remap-failed, running programs may finish"}, {s, remap(ptr(false)), ""}},
		"another board has its own": {{0, remap(ptr(true)), "row-remap-failed, running programs may finish"},
			{s, fails(gpu.ErrReplaced), "gpu-replaced"}, {s, fine, ""}},
		"a driver that was silent once is believed still": {{0, wantsReset, "needs-reset"}, {s, old, "needs-reset"}},
		"a lost GPU is back":                              {{0, isLost, "gpu-lost"}, {3600 * s, isLost, "gpu-lost"}, {s, fine, ""}},
		"and needs something": {{0, xid(79), "xid-79"}, {0, isLost, "gpu-lost, xid-79"},
			{s, wantsReset, "needs-reset, xid-79"}, {s, fine, ""}},
		"it answers with another UUID": {{0, fails(gpu.ErrReplaced), "gpu-replaced"}, {s, fine, ""}},
		"it answers that it needs a reset": {{0, xid(48), "xid-48"},
			{0, fails(gpu.ErrResetRequired), "needs-reset, xid-48"}, {s, old, ""}},
		"a passing failure of the driver is nothing": {{0, fails(errNVML), ""}, {29 * s, fails(errNVML), ""}, {s, fine, ""},
			{s, fails(errNVML), ""}, {29 * s, fails(errNVML), ""}},
		"a lasting one is something": {{0, fails(errNVML), ""}, {30 * s, fails(errNVML), "gpu-unreachable"}, {s, fine, ""}},
		"double-bit errors, by their own event": {{0, event(gpu.DoubleBitECC), "double-bit-ecc"},
			{s, xid(48), "double-bit-ecc, xid-48"}, {60 * s, fine, ""}},
		"the driver calls it unavailable": {{0, event(gpu.GPUUnavailable), "gpu-unavailable"},
			{60 * s, old, "gpu-unavailable"}, {s, fine, ""}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			state, now := NewState(), start
			for i, st := range steps {
				now = now.Add(st.after)
				st.do(state, now)
				if got := names(state.Conditions()); got != st.want {
					t.Fatalf("step %d: got %q, want %q", i, got, st.want)
				}
			}
		})
	}
}

func TestState_IgnoredXIDs(t *testing.T) {
	s := NewState()
	for _, n := range []int{48, 79} {
		s.Event(gpu.Event{Kind: gpu.XIDReported, XID: n}, nil, []int{79}, start)
	}
	s.Event(gpu.Event{Kind: gpu.DoubleBitECC}, nil, []int{48}, start) // the event of XID 48
	if got := names(s.Conditions()); got != "xid-48" {
		t.Errorf("got %q, want xid-48 alone", got)
	}
	s.Poll(Reading{Recovery: gpu.Recovery{RemapFailed: ptr(true)}}, nil, start)
	if got := names(s.Conditions()); got != "xid-48, row-remap-failed, running programs may finish" {
		t.Errorf("got %q, want xid-48 and a failed remapping", got)
	}
	for range 2 { // it ends, and does not begin again
		s.Poll(Reading{Recovery: gpu.Recovery{RemapFailed: ptr(true)}}, []int{64}, start)
	}
	s.Poll(Reading{Err: gpu.ErrLost}, []int{48}, start)
	if got := names(s.Conditions()); got != "gpu-lost" {
		t.Errorf("got %q after the policy has changed, want gpu-lost: a policy cannot bring a GPU back", got)
	}
}

// A reset does not bring a row of memory back, and in MIG mode the driver does not report it.
func TestWatched_Forget(t *testing.T) {
	w := &watched{State: NewState()}
	xidIn(94, lower)(w.State, start)
	w.Poll(Reading{Recovery: gpu.Recovery{RemapFailed: ptr(true)}}, nil, start)
	w.forget()
	w.Poll(Reading{}, nil, start.Add(time.Minute))
	if got := names(w.Conditions()); got != "row-remap-failed, running programs may finish" {
		t.Errorf("got %q, want the failed remapping alone", got)
	}
}

func TestState_ConditionFields(t *testing.T) {
	s := NewState()
	xidIn(94, lower)(s, start)
	xidIn(94, lower)(s, start.Add(10*time.Second))
	isLost(s, start.Add(20*time.Second))
	type said struct {
		Reason, Message string
		Since           time.Duration
		Part            *gpu.Placement
	}
	var got []said
	for _, c := range s.Conditions() {
		got = append(got, said{c.Reason, c.Message, c.Since.Sub(start), c.Part})
	}
	want := []said{
		{"gpu-lost", "the GPU no longer answers: ask: GPU is lost", 20 * time.Second, nil},
		{"xid-94", "XID 94: contained memory error", 0, lower},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

func TestCondition_Covers(t *testing.T) {
	g := &gpu.GPU{}
	shapes := map[string]gpu.Shape{
		"whole": g.Whole(), "shared": {GPU: g, Share: gpu.TimeSlice},
		"lower": {GPU: g, Profile: &gpu.Profile{}, Placement: *lower}, "upper": {GPU: g, Profile: &gpu.Profile{}, Placement: *upper},
		"inside": {GPU: g, Profile: &gpu.Profile{}, Placement: gpu.Placement{Start: 3, Size: 1}},
	}
	for name, want := range map[string]bool{"whole": true, "shared": true, "lower": true, "inside": true, "upper": false} {
		if got := (Condition{Part: lower}).Covers(shapes[name]); got != want {
			t.Errorf("a condition of the lower half covers %s: got %t, want %t", name, got, want)
		}
		if !(Condition{}).Covers(shapes[name]) {
			t.Errorf("a condition of the whole GPU does not cover %s", name)
		}
	}
}

// Whatever is reported, and in whatever order, nothing but an answer of the GPU ends a condition, and a GPU that answers
// that it is well for long enough is well.
func TestState_FailedPolls(t *testing.T) {
	parts := []*gpu.Placement{nil, lower, upper}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		s, now := NewState(), start
		answers := []func(*State, time.Time){fine, wantsReset, says(gpu.RecoveryReboot), isLost, fails(errNVML), fails(gpu.ErrReplaced)}
		for range 40 {
			now = now.Add(time.Duration(rnd.IntN(90)) * time.Second)
			before := s.Conditions()
			switch rnd.IntN(4) {
			case 0:
				answers[rnd.IntN(len(answers))](s, now)
				continue
			case 1:
				event(gpu.EventKind(1+rnd.IntN(5)))(s, now)
			default:
				xidIn(rnd.IntN(175), parts[rnd.IntN(len(parts))])(s, now)
			}
			if ended := without(before, s.Conditions()); len(ended) > 0 {
				t.Fatalf("seed %d: a report has ended %s", seed, names(ended))
			}
		}
		fine(s, now)
		fine(s, now.Add(Probation))
		if !s.Healthy() {
			t.Fatalf("seed %d: a GPU that answered for %s still has %s", seed, Probation, names(s.Conditions()))
		}
	}
}
