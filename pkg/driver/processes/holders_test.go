// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that has a file open is found by any of its paths, and until it ends.
func TestTable_Holding(t *testing.T) {
	const path = "/dev/full"
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat") // with the file as its descriptor 3
	cmd.ExtraFiles = []*os.File{held}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, other); err != nil {
		t.Fatal(err)
	}
	table := Table{proc: "/proc", self: os.Getpid()} // which has it open, too
	for _, name := range []string{path, other} {
		found, err := table.Holding(t.Context(), name)
		if len(found) != 1 || found[0].PID != cmd.Process.Pid || !strings.HasSuffix(found[0].String(), "(cat)") {
			t.Errorf("Holding(%s) = %v, %v, want process %d", name, found, err, cmd.Process.Pid)
		}
	}
	_ = in.Close()
	_ = cmd.Wait()
	if found, err := table.Holding(t.Context(), path); len(found) != 0 {
		t.Errorf("after its end: %v, %v", found, err)
	}
}

// A device node is found by its numbers, wherever the file lies.
func TestTable_HoldingDevices(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{null}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for number, want := range map[uint64]bool{unix.Mkdev(1, 3): true, unix.Mkdev(1, 5): false} {
		found, _ := Table{proc: "/proc", self: os.Getpid()}.HoldingDevices(t.Context(), unix.Mkdev(508, 1), number)
		got := slices.ContainsFunc(found, func(p Process) bool { return p.PID == cmd.Process.Pid })
		if got != want {
			t.Errorf("device %#x: found %t, want %t", number, got, want)
		}
	}
}

// A process chooses its name, and Events and logs quote it.
func TestTable_HoldingHostileName(t *testing.T) {
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(cat)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const path = "/dev/random"
	program := filepath.Join(dir, "a\nI0101\x1b[2J\xff")
	if err := os.WriteFile(program, data, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	cmd := exec.Command(program)
	cmd.ExtraFiles = []*os.File{held}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found, err := Table{proc: "/proc", self: os.Getpid()}.Holding(t.Context(), path)
	_ = in.Close()
	_ = cmd.Wait()
	if want := (Process{cmd.Process.Pid, "a?I0101?[2J?"}); !slices.Contains(found, want) { // others may read random numbers, too
		t.Errorf("got %+q, %v, want %+q", found, err, want)
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
