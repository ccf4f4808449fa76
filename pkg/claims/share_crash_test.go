// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// shareAction is one call of the kubelet for a claim with shares; without parts it is an Unprepare.
type shareAction struct {
	uid   types.UID
	parts []part
}

func (a shareAction) run(b *bed) error {
	if a.parts == nil {
		return b.Unprepare(b.t.Context(), refOf(claimOf(a.uid)))
	}
	return b.tryPrepare(a.uid, a.parts...)
}

// shareHistory is a node's life with shares: they come, meet, move and go.
func shareHistory() []shareAction {
	does := func(uid types.UID, parts ...part) shareAction { return shareAction{uid, parts} }
	return []shareAction{
		does("a", mpsOf(0, 10, 10)),
		does("b", mpsOf(0, 10, 10)),
		does("long", sliceOf(1, 10).at("Long")),
		does("plain", sliceOf(1, 10)),
		does("same", sliceOf(1, 10).at("Long")),
		does("a", mpsOf(0, 10, 10)), // the kubelet asks again
		does("long"),
		does("a"),
		does("alone", aloneAt(2, "Short"), aloneAt(3, "Long").of("other")), // by NVIDIA's parameters
		does("alone", aloneMPS(2, `"defaultActiveThreadPercentage":50`), aloneAt(3, "Long").of("other")),
		does("alone", aloneMPS(2, `"defaultActiveThreadPercentage":50`), aloneAt(3, "Long").of("other")),
		does("alone", aloneMPS(3, "")),
		does("alone"),
		does("c", mpsOf(2, 10, 10), sliceOf(3, 10).at("Short")),
		does("b", mpsOf(2, 10, 10)), // allocated anew
		does("same", sliceOf(3, 10).at("Short")),
		does("whole", wholeOf(0)),
		does("c"),
		does("plain"),
		does("long", sliceOf(1, 10).at("Medium")),
		does("same"),
		does("b"),
	}
}

// stateAfter is what there is after some actions, in the form of shareBed.state.
func stateAfter(actions []shareAction) []string {
	has := map[types.UID][]part{}
	for _, a := range actions {
		if delete(has, a.uid); a.parts != nil {
			has[a.uid] = a.parts
		}
	}
	lines := []string{}
	for uid, parts := range has {
		lines = append(lines, "record "+string(uid))
		for _, p := range parts {
			if p.result.ShareID != nil || p.mps {
				lines = append(lines, "spec "+string(uid))
			}
			for i := range 4 {
				if p.interval != "" && strings.HasPrefix(p.result.Device, gpuName(i)) {
					lines = append(lines, fmt.Sprintf("interval %d %s", i, p.interval))
				}
				if p.result.Device == gpuName(i)+"-mps" || p.mps && p.result.Device == gpuName(i) {
					lines = append(lines, fmt.Sprintf("mps %d %s", i, uid))
				}
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

func TestCrash_SharesBetweenAnyTwoSteps(t *testing.T) {
	actions := shareHistory()
	for kill := 0; ; kill++ {
		died := killSharesAfter(t, actions, kill)
		if t.Failed() {
			t.Fatalf("kill after step %d: see above", kill)
		}
		if !died {
			if kill < 8*len(actions) {
				t.Errorf("the history has only %d steps: are all counted?", kill)
			}
			return
		}
	}
}

// killSharesAfter is killAfter with shares: each change of a record, a spec, a server or an interval is a step.
func killSharesAfter(t *testing.T, actions []shareAction, steps int) (died bool) {
	t.Helper()
	dir := t.TempDir()
	disk := &mortalDisk{left: steps}
	step := func(string) error { return disk.step() }
	victim := openBed(t, dir, as(compatibleID))
	victim.disk.FileSystem, victim.sharing.err, victim.specs.err = disk, step, step
	victim.start()
	done := 0
	for ; done < len(actions) && !died; done++ {
		err := actions[done].run(victim)
		if died = disk.left == 0; died {
			break
		}
		if err != nil {
			t.Fatalf("action %d: %v", done, err)
		}
	}
	victim.die()
	again := victim.another().start()
	found, before, after := again.state(), stateAfter(actions[:done]), stateAfter(actions[:min(done+1, len(actions))])
	gone := after
	if done < len(actions) { // a claim that moves may have nothing for a moment
		gone = stateAfter(append(slices.Clone(actions[:done]), shareAction{uid: actions[done].uid}))
	}
	if !slices.Equal(found, before) && !slices.Equal(found, after) && !slices.Equal(found, gone) {
		t.Errorf("in action %d: found\n%s\nwant\n%s\nor\n%s", done, strings.Join(found, "\n"), strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	for i, a := range actions[min(done, len(actions)):] { // the kubelet repeats what it got no answer for and goes on
		if err := a.run(again); err != nil {
			t.Errorf("action %d after the restart: %v", done+i, err)
		}
	}
	again.want(stateAfter(actions)...)
	return died
}

// A step that fails once, in a process that lives on or is started again, must not leave anything half done either.
func TestCrash_SharesStepFailsOnce(t *testing.T) {
	actions := shareHistory()
	for _, restart := range []bool{false, true} {
		for failing := 0; ; failing++ {
			b := newCompatibleBed(t)
			calls, failed := 0, ""
			fail := func(what string) error {
				if calls++; calls-1 == failing {
					failed = what
					return fmt.Errorf("%s: %w", what, os.ErrPermission)
				}
				return nil
			}
			arm := func() {
				b.disk.fail = func(op, _ string) error { return fail(op) }
				b.sharing.err, b.specs.err = fail, fail
			}
			arm()
			for i, a := range actions {
				err := a.run(b)
				if err == nil {
					continue
				}
				if restart {
					b = b.restart()
					arm()
				} else {
					b.Recover(t.Context()) // gives back what Unprepare had to leave
				}
				if err := a.run(b); err != nil {
					t.Fatalf("step %d (%s) failed once; action %d repeated: %v, before it was %v", failing, failed, i, err, err)
				}
			}
			b.Recover(t.Context())
			b.want(stateAfter(actions)...)
			if t.Failed() {
				t.Fatalf("step %d (%s) failed once: see above", failing, failed)
			}
			b.die()
			if failed == "" {
				break
			}
		}
	}
}

// A claim whose Prepare fails at any step and that the kubelet then gives up leaves nothing.
func TestCrash_SharesPrepareFailsAndUnprepared(t *testing.T) {
	parts := []part{mpsOf(0, 10, 10), sliceOf(1, 10).at("Long"), aloneMPS(3, ""), aloneAt(2, "Short").of("second")}
	for _, twice := range []bool{false, true} { // what is to undo it fails, too
		for failing := 0; ; failing++ {
			b := newCompatibleBed(t)
			calls, failed := 0, ""
			fail := func(what string) error {
				if calls++; calls-1 == failing || twice && failed != "" {
					failed = what
					return fmt.Errorf("%s: %w", what, os.ErrPermission)
				}
				return nil
			}
			b.disk.fail = func(op, _ string) error { return fail(op) }
			b.sharing.err, b.specs.err = fail, fail
			err := b.tryPrepare("a", parts...)
			b.disk.fail, b.sharing.err, b.specs.err = nil, nil, nil
			if failed == "" {
				break
			}
			if !errors.Is(err, os.ErrPermission) {
				t.Errorf("step %d (%s) failed: got %v", failing, failed, err)
			}
			b.unprepare("a")
			b.Recover(t.Context()) // takes from servers what was not on record
			b.want()
			b.prepare("other", wholeOf(0), wholeOf(1), wholeOf(2), wholeOf(3))
			if t.Failed() {
				t.Fatalf("step %d (%s) failed, all after it too: %t: see above", failing, failed, twice)
			}
		}
	}
}

// An interval that was reset is not what a later claim finds set already, though the record that asked for it is left.
func TestCrash_IntervalReset(t *testing.T) {
	tests := map[string]func(b *bed) error{
		"Unprepare":      func(b *bed) error { return b.Unprepare(b.t.Context(), refOf(claimOf("a"))) },
		"allocated anew": func(b *bed) error { return b.tryPrepare("a", sliceOf(1, 10).at("Long")) },
	}
	for name, call := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.prepare("a", sliceOf(0, 10).at("Long"))
			b.disk.fail = func(string, string) error { return os.ErrPermission }
			if err := call(b); !errors.Is(err, os.ErrPermission) {
				t.Fatalf("got %v, want %v", err, os.ErrPermission)
			}
			b.disk.fail = nil
			b.prepare("b", sliceOf(0, 10).at("Long"))
			if got := b.sharing.interval(gpuName(0)); got != "Long" {
				t.Errorf("claim b got time slices %q, want Long", got)
			}
			b.unprepare("a")
			b.want("record b", "spec b", "interval 0 Long")
		})
	}
}
