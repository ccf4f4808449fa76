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

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/store"
)

// errKilled is what a process that is dead would not even see.
var errKilled = errors.New("killed")

// mortalDisk is the real disk of a process that is killed after so many steps. A write is three of them: the
// temporary file, half its content, and the rest with the rename; as store.Disk does it.
type mortalDisk struct {
	store.Disk
	left int // steps until the kill
}

// step counts one step and reports whether the process still lives.
func (d *mortalDisk) step() error {
	if d.left == 0 {
		return errKilled
	}
	d.left--
	return nil
}

func (d *mortalDisk) WriteFile(path string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".1")
	for _, content := range [][]byte{nil, data[:len(data)/2]} {
		if err := d.step(); err != nil {
			return err
		}
		if err := os.WriteFile(temporary, content, 0o600); err != nil {
			return err
		}
	}
	if err := d.step(); err != nil {
		return err
	}
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return d.step() // killed after the rename: the record is there, nobody knows
}

func (d *mortalDisk) Remove(path string) error {
	if err := d.step(); err != nil {
		return err
	}
	if err := d.Disk.Remove(path); err != nil {
		return err
	}
	return d.step()
}

func (d *mortalDisk) Rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	if err := d.Disk.Rename(from, to); err != nil {
		return err
	}
	return d.step()
}

// action is one call of the kubelet.
type action struct {
	claim     *resourceapi.ResourceClaim
	unprepare bool
}

func (a action) run(t *testing.T, e *Preparer) error {
	if a.unprepare {
		return e.Unprepare(t.Context(), refOf(a.claim))
	}
	_, err := e.Prepare(t.Context(), a.claim)
	return err
}

// history is a node's life: claims come, share, move and go.
func history() []action {
	return []action{
		{claim: claimOn("a", 0)},
		{claim: claimOn("b", 1, 2)},
		{claim: claimOf("watch", adminResult("all", 0), adminResult("all", 1))},
		{claim: claimOn("a", 0)}, // the kubelet asks again
		{claim: claimOn("a", 0), unprepare: true},
		{claim: claimOn("c", 0)},
		{claim: claimOn("b", 2, 3)}, // allocated anew
		{claim: claimOn("d", 1)},
		{claim: claimOn("b", 2, 3), unprepare: true},
		{claim: claimOf("watch"), unprepare: true},
		{claim: claimOn("e", 3, 2)},
		{claim: claimOn("c", 0), unprepare: true},
	}
}

// expected is what the records say after some actions, in the form of onDisk.
func expected(actions []action) []string {
	has := map[types.UID]string{}
	for _, a := range actions {
		if a.unprepare {
			delete(has, a.claim.UID)
			continue
		}
		has[a.claim.UID] = string(a.claim.UID) + ":"
		for _, r := range a.claim.Status.Allocation.Devices.Results {
			has[a.claim.UID] += " " + r.Device
		}
	}
	lines := []string{}
	for _, l := range has {
		lines = append(lines, l)
	}
	slices.Sort(lines)
	return lines
}

func TestCrash_BetweenAnyTwoSteps(t *testing.T) {
	actions := history()
	for kill := 0; ; kill++ {
		died, ok := killAfter(t, actions, kill)
		if !ok {
			t.Fatalf("kill after step %d: see above", kill)
		}
		if !died {
			if kill < 3*len(actions) {
				t.Errorf("the history has only %d steps: does the engine write at all?", kill)
			}
			return
		}
	}
}

// killAfter runs the actions on a fresh node, kills the plugin after so many steps of its disk, starts another and
// checks what it finds. It reports whether the plugin died before the end.
func killAfter(t *testing.T, actions []action, steps int) (died, ok bool) {
	t.Helper()
	dir := t.TempDir()
	disk := &mortalDisk{left: steps}
	victim := openBed(t, dir)
	victim.disk.FileSystem = disk
	victim.start()
	done := 0
	for _, a := range actions {
		err := a.run(t, victim.Preparer)
		if errors.Is(err, errKilled) {
			died = true
			break
		}
		if err != nil {
			t.Errorf("kill after step %d: action %d: %v", steps, done, err)
			return died, false
		}
		done++
	}
	victim.die()
	again := openBed(t, dir).start()
	found := onDisk(t, dir)
	before, after := expected(actions[:done]), expected(actions[:min(done+1, len(actions))])
	if !slices.Equal(found, before) && !slices.Equal(found, after) {
		t.Errorf("kill after step %d, in action %d: found\n%s\nwant\n%s\nor\n%s", steps, done,
			strings.Join(found, "\n"), strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	if len(again.notes) > 0 {
		t.Errorf("kill after step %d: corrupt records: %v", steps, again.notes)
	}
	// The kubelet repeats what it got no answer for and goes on.
	for i, a := range actions[min(done, len(actions)):] {
		if err := a.run(t, again.Preparer); err != nil {
			t.Errorf("kill after step %d: action %d after the restart: %v", steps, done+i, err)
		}
	}
	wantDisk(t, again, expected(actions)...)
	return died, !t.Failed()
}

// A step that fails once, in a process that lives on, must not leave anything half done either.
func TestCrash_StepFailsOnce(t *testing.T) {
	actions := history()
	for failing := 0; ; failing++ {
		b := newBed(t)
		calls, failed := 0, false
		b.disk.fail = func(op, _ string) error {
			calls++
			if calls-1 == failing {
				failed = true
				return fmt.Errorf("%s: %w", op, os.ErrPermission)
			}
			return nil
		}
		for i, a := range actions {
			err := a.run(t, b.Preparer)
			if err != nil && errors.Is(err, os.ErrPermission) {
				_ = onDisk(t, b.dir) // fails if two claims have one GPU
				err = a.run(t, b.Preparer)
			}
			if err != nil {
				t.Fatalf("call %d failed once; action %d repeated: %v", failing, i, err)
			}
		}
		wantDisk(t, b, expected(actions)...)
		if t.Failed() {
			t.Fatalf("call %d failed once: see above", failing)
		}
		if !failed {
			return
		}
	}
}
