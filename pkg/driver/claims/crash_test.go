// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// errKilled stands for the end of a process: it unwinds the stack, and nothing after it is done.
var errKilled = errors.New("killed")

// dies reports whether something was killed.
func dies(do func()) (dead bool) {
	defer func() {
		if r := recover(); r != nil {
			if err, ok := r.(error); !ok || !errors.Is(err, errKilled) {
				panic(r)
			}
			dead = true
		}
	}()
	do()
	return false
}

// tornDisk can also be killed when it has written half of a file, as store.Disk does.
type tornDisk struct{ hookedDisk }

func (d tornDisk) WriteFile(path string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".1")
	if err := os.WriteFile(temporary, data[:len(data)/2], 0o600); err != nil {
		return err
	}
	d.step("half of the record is written")
	return errors.Join(os.Remove(temporary), d.hookedDisk.WriteFile(path, data))
}

func (d tornDisk) WriteDurable(path string, data []byte) error { return d.WriteFile(path, data) }

// failingSteps fails one step of a process that lives on, after so many others, or that one and all after it.
type failingSteps struct {
	left   int
	all    bool
	failed string // what failed last; empty if nothing did
}

func (f *failingSteps) step(what string) error {
	if f.left--; f.left == -1 || f.all && f.left < 0 {
		f.failed = what
		return fmt.Errorf("%s: %w", what, os.ErrPermission)
	}
	return nil
}

// arm has all steps of a bed count.
func (f *failingSteps) arm(b *bed) {
	b.disk.fail = func(op, _ string) error { return f.step(op) }
	b.sharing.err, b.specs.err = f.step, f.step
}

// writes counts the writes of a disk only.
func (f *failingSteps) writes(op, _ string) error {
	if op != "WriteFile" {
		return nil
	}
	return f.step(op)
}

// action is one call of the kubelet; without parts it is an Unprepare.
type action struct {
	uid   types.UID
	parts []part
}

func (a action) run(b *bed) error {
	if a.parts == nil {
		return b.Unprepare(b.t.Context(), refOf(claimOf(a.uid)))
	}
	return b.tryPrepare(a.uid, a.parts...)
}

func does(uid types.UID, parts ...part) action { return action{uid, parts} }

// adminOf looks at the i-th GPU.
func adminOf(i int) part { return part{result: adminResult("all", i)} }

// histories are lives of nodes: claims come, meet, share, move and go.
var histories = map[string][]action{
	"whole GPUs": {
		does("a", wholeOf(0)),
		does("b", wholeOf(1), wholeOf(2)),
		does("watch", adminOf(0), adminOf(1)),
		does("a", wholeOf(0)), // the kubelet asks again
		does("a"),
		does("c", wholeOf(0)),
		does("b", wholeOf(2), wholeOf(3)), // allocated anew
		does("d", wholeOf(1)),
		does("b"),
		does("watch"),
		does("e", wholeOf(3), wholeOf(2)),
		does("c"),
	},
	"shares": {
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
		does("long", sliceOf(1, 10).at("Short")),
		does("long", mpsOf(1, 10, 10)),
		does("long", wholeOf(1)),
		does("same"),
		does("b"),
	},
}

// stateAfter is what there is after some actions, in the form of bed.state and onDisk.
func stateAfter(actions []action) []string {
	has := map[types.UID][]part{}
	for _, a := range actions {
		if delete(has, a.uid); a.parts != nil {
			has[a.uid] = a.parts
		}
	}
	lines := []string{}
	for uid, parts := range has {
		gpus := string(uid) + ":"
		for at, p := range parts {
			i := slices.IndexFunc(sharedNode().GPUs, func(g gpu.GPU) bool { return strings.HasPrefix(p.result.Device, g.PCI.DeviceName()) })
			gpus += " " + gpuName(i)
			again := slices.ContainsFunc(parts[:at], func(o part) bool { return o.result.Request == p.result.Request })
			if p.result.ShareID != nil || p.mps || again {
				lines = append(lines, "spec "+string(uid))
			}
			if p.interval != "" {
				lines = append(lines, fmt.Sprintf("interval %d %s", i, p.interval))
			}
			if p.result.Device == gpuName(i)+"-mps" || p.mps {
				lines = append(lines, fmt.Sprintf("mps %d %s", i, uid))
			}
		}
		lines = append(lines, "record "+string(uid), gpus)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// wholeState is all that there is, with the GPUs that are on record.
func wholeState(b *bed) []string {
	b.t.Helper()
	lines := append(b.state(), onDisk(b.t, b.dir)...)
	slices.Sort(lines)
	return lines
}

func TestCrash_BetweenAnyTwoSteps(t *testing.T) {
	for name, least := range map[string]int{"whole GPUs": 70, "shares": 290} {
		t.Run(name, func(t *testing.T) {
			actions := histories[name]
			for kill := 0; ; kill++ {
				died := killAfter(t, actions, kill)
				if t.Failed() {
					t.Fatalf("kill after step %d: see above", kill)
				}
				if !died {
					if kill < least {
						t.Errorf("the history has only %d steps: are all counted?", kill)
					}
					return
				}
			}
		})
	}
}

// killAfter runs the actions on a fresh node, kills the plugin after so many steps, starts another and checks what it finds. Each
// change of a record, a spec, a server or an interval is a step. It reports whether the plugin died before the end.
func killAfter(t *testing.T, actions []action, steps int) (died bool) {
	t.Helper()
	step := func(string) {
		if steps--; steps < 0 {
			panic(errKilled)
		}
	}
	victim := newCompatibleBed(t)
	victim.disk.FileSystem, victim.sharing.step, victim.specs.step = tornDisk{hookedDisk{store.Disk{}, step}}, step, step
	done := 0
	for ; done < len(actions); done++ {
		var err error
		if died = dies(func() { err = actions[done].run(victim) }); died {
			break
		}
		if err != nil {
			t.Fatalf("action %d: %v", done, err)
		}
	}
	again := victim.restart()
	found, before, after := wholeState(again), stateAfter(actions[:done]), stateAfter(actions[:min(done+1, len(actions))])
	gone := after
	if done < len(actions) { // a claim that moves may have nothing for a moment
		gone = stateAfter(append(slices.Clone(actions[:done]), does(actions[done].uid)))
	}
	if !slices.Equal(found, before) && !slices.Equal(found, after) && !slices.Equal(found, gone) {
		t.Errorf("in action %d: found\n%s\nwant\n%s\nor\n%s", done, strings.Join(found, "\n"), strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	if len(again.notes) > 0 {
		t.Errorf("corrupt records: %v", again.notes)
	}
	for i, a := range actions[min(done, len(actions)):] { // the kubelet repeats what it got no answer for and goes on
		if err := a.run(again); err != nil {
			t.Errorf("action %d after the restart: %v", done+i, err)
		}
	}
	equal(t, "state", stateAfter(actions), wholeState(again))
	return died
}

// A step that fails once, in a process that lives on or is started again, must not leave anything half done either.
func TestCrash_StepFailsOnce(t *testing.T) {
	for name, actions := range histories {
		for how, restart := range map[string]bool{"lives on": false, "restarts": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				for failing := 0; failOnce(t, actions, failing, restart); failing++ {
					if t.Failed() {
						t.Fatalf("step %d failed once: see above", failing)
					}
				}
			})
		}
	}
}

// failOnce runs the actions on a fresh node, and repeats the one of which a step fails. It reports whether there was such a step.
func failOnce(t *testing.T, actions []action, failing int, restart bool) bool {
	t.Helper()
	b := newCompatibleBed(t)
	steps := &failingSteps{left: failing}
	steps.arm(b)
	for i, a := range actions {
		err := a.run(b)
		if err == nil {
			continue
		}
		_ = onDisk(t, b.dir) // fails if two claims have one GPU
		if restart {
			b = b.restart()
			steps.arm(b)
		} else {
			b.Recover(t.Context()) // gives back what Unprepare had to leave
		}
		if repeated := a.run(b); repeated != nil {
			t.Fatalf("step %d (%s) failed once; action %d repeated: %v, before it was %v", failing, steps.failed, i, repeated, err)
		}
	}
	b.Recover(t.Context())
	equal(t, "state", stateAfter(actions), wholeState(b))
	b.die()
	return steps.failed != ""
}

// A claim whose Prepare fails at any step and that the kubelet then gives up leaves nothing.
func TestCrash_SharesPrepareFailsAndUnprepared(t *testing.T) {
	parts := []part{mpsOf(0, 10, 10), sliceOf(1, 10).at("Long"), aloneMPS(3, ""), aloneAt(2, "Short").of("second")}
	for _, twice := range []bool{false, true} { // what is to undo it fails, too
		for failing := 0; ; failing++ {
			b := newCompatibleBed(t)
			steps := &failingSteps{left: failing, all: twice}
			steps.arm(b)
			err := b.tryPrepare("a", parts...)
			b.disk.fail, b.sharing.err, b.specs.err = nil, nil, nil
			if steps.failed == "" {
				break
			}
			if !errors.Is(err, os.ErrPermission) {
				t.Errorf("step %d (%s) failed: got %v", failing, steps.failed, err)
			}
			b.unprepare("a")
			b.Recover(t.Context()) // takes from servers what was not on record
			b.want()
			b.prepare("other", wholeOf(0), wholeOf(1), wholeOf(2), wholeOf(3))
			if t.Failed() {
				t.Fatalf("step %d (%s) failed, all after it too: %t: see above", failing, steps.failed, twice)
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
