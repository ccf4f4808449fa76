// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A zombie in any pod has mounts that cannot be read (EINVAL), which says nothing of a claim.
func TestOfClaim_Zombie(t *testing.T) {
	cmd := exec.Command("true")
	ended, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, table := cmd.Process.Pid, Host()
	defer func() { _ = cmd.Wait() }()
	if _, err := ended.Read(make([]byte, 1)); err == nil {
		t.Fatal("true prints something")
	}
	for !table.ended(pid) { // its files are closed just before
	}
	proc := t.TempDir()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod1234/c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"mountinfo", "stat", "task"} {
		if err := os.Symlink(filepath.Join("/proc", strconv.Itoa(pid), f), filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	p := newPods(Table{proc: proc, self: 2}, t.TempDir(), "")
	if pids, err := p.OfClaim(t.Context(), "ns", "claim"); err != nil || len(pids) > 0 {
		t.Errorf("got %v, %v, want none", pids, err)
	}
}

// With version 1 the first thread of a process has ended, and another one hangs in the driver: cgroup.procs does not have it.
func TestOfPods_ThreadLeftInVersion1(t *testing.T) {
	mount := t.TempDir()
	for uid, files := range map[string][2]string{"own": {"2\n", "2\n"}, "pod": {"", "4712\n"}} {
		dir := filepath.Join(mount, "cpu", "kubepods", "pod"+uid, "c")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{processesFile, tasksFile} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(files[i]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := newPods(Table{proc: t.TempDir(), self: 2}, mount, "own")
	if pids, err := p.OfPods(t.Context(), []types.UID{"pod"}); err != nil || !slices.Equal(pids, []int{4712}) {
		t.Errorf("got %v, %v, want 4712", pids, err)
	}
}
