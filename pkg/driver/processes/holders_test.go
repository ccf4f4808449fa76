// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// hold runs a program that reads from a pipe, with a file as its descriptor 3, until it is ended. This process has the file open, too.
func hold(t *testing.T, program, path string) (pid int, end func()) {
	t.Helper()
	held, err := os.Open(path)
	must(t, err)
	cmd := exec.Command(program)
	cmd.ExtraFiles = []*os.File{held}
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	end = sync.OnceFunc(func() { _, _, _ = in.Close(), cmd.Wait(), held.Close() })
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// A process that has a file open is found by any of its paths, and until it ends.
func TestTable_Holding(t *testing.T) {
	const path = "/dev/full"
	pid, end := hold(t, "cat", path)
	other := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(path, other))
	table := Table{proc: "/proc", self: os.Getpid()}
	for _, name := range []string{path, other} {
		found, err := table.Holding(t.Context(), name)
		if len(found) != 1 || found[0].PID != pid || !strings.HasSuffix(found[0].String(), "(cat)") {
			t.Errorf("Holding(%s) = %v, %v, want process %d", name, found, err, pid)
		}
	}
	end()
	if found, err := table.Holding(t.Context(), path); len(found) != 0 {
		t.Errorf("after its end: %v, %v", found, err)
	}
}

// A device node is found by its numbers, wherever the file lies.
func TestTable_HoldingDevices(t *testing.T) {
	pid, _ := hold(t, "cat", "/dev/null")
	for number, want := range map[uint64]bool{unix.Mkdev(1, 3): true, unix.Mkdev(1, 5): false} {
		found, _ := Table{proc: "/proc", self: os.Getpid()}.HoldingDevices(t.Context(), unix.Mkdev(508, 1), number)
		got := slices.ContainsFunc(found, func(p Process) bool { return p.PID == pid })
		if got != want {
			t.Errorf("device %#x: found %t, want %t", number, got, want)
		}
	}
}

// A process chooses its name, and Events and logs quote it.
func TestTable_HoldingHostileName(t *testing.T) {
	cat, err := exec.LookPath("cat")
	must(t, err)
	data, err := os.ReadFile(cat)
	must(t, err)
	const path = "/dev/random"
	program := filepath.Join(t.TempDir(), "a\nI0101\x1b[2J\xff")
	must(t, os.WriteFile(program, data, 0o700))
	pid, _ := hold(t, program, path)
	found, err := Table{proc: "/proc", self: os.Getpid()}.Holding(t.Context(), path)
	if want := (Process{PID: pid, Name: "a?I0101?[2J?"}); !slices.Contains(found, want) { // others may read random numbers, too
		t.Errorf("got %+q, %v, want %+q", found, err, want)
	}
}

// budget is a context that ends after so many questions.
type budget struct {
	context.Context
	left int
}

func (b *budget) Err() error {
	if b.left--; b.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A process can have any number of files open: whoever has given up waiting does not list them all.
func TestTable_HoldingManyFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "7", "fd")
	must(t, os.MkdirAll(dir, 0o700))
	for i := range 3000 {
		must(t, os.Symlink("/tmp", filepath.Join(dir, strconv.Itoa(i))))
	}
	table := Table{proc: filepath.Dir(filepath.Dir(dir)), self: 4}
	for left, want := range map[int]error{3: context.DeadlineExceeded, 100: nil} {
		if found, err := table.HoldingDevices(&budget{t.Context(), left}, unix.Mkdev(1, 3)); len(found) > 0 || !errors.Is(err, want) {
			t.Errorf("got %v, %v, want %v", found, err, want)
		}
	}
}

func TestTable_HoldingHidden(t *testing.T) {
	if _, err := (Table{proc: "/proc", self: 1}).Holding(t.Context(), "/dev/null"); err == nil {
		t.Error("a container with its own process table lists processes")
	}
	if _, err := (Table{proc: "/proc", self: os.Getpid()}).Holding(t.Context(), "/dev/no-such-file"); err == nil {
		t.Error("a missing device file has users")
	}
}
