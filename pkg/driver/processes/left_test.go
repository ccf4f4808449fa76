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
	must(t, err)
	must(t, cmd.Start())
	pid, table := cmd.Process.Pid, Host()
	defer func() { _ = cmd.Wait() }()
	if _, err := ended.Read(make([]byte, 1)); err == nil {
		t.Fatal("true prints something")
	}
	for !table.ended(pid) { // its files are closed just before
	}
	proc := tree(t, map[string]string{strconv.Itoa(pid) + "/cgroup": "0::/kubepods/pod1234/c\n"})
	for _, f := range []string{"mountinfo", "stat", "task"} {
		must(t, os.Symlink(filepath.Join("/proc", strconv.Itoa(pid), f), filepath.Join(proc, strconv.Itoa(pid), f)))
	}
	p := newPods(Table{proc: proc, self: 2}, t.TempDir(), "")
	if pids, err := p.OfClaim(t.Context(), "ns", "claim"); err != nil || len(pids) > 0 {
		t.Errorf("got %v, %v, want none", pids, err)
	}
}

// With version 1 the first thread of a process has ended, and another one hangs in the driver: cgroup.procs does not have it.
func TestOfPods_ThreadLeftInVersion1(t *testing.T) {
	mount := tree(t, map[string]string{
		"cpu/kubepods/podown/c/cgroup.procs": "2\n", "cpu/kubepods/podown/c/tasks": "2\n",
		"cpu/kubepods/podpod/c/cgroup.procs": "", "cpu/kubepods/podpod/c/tasks": "4712\n",
	})
	p := newPods(Table{proc: t.TempDir(), self: 2}, mount, "own")
	if pids, err := p.OfPods(t.Context(), []types.UID{"pod"}); err != nil || !slices.Equal(pids, []int{4712}) {
		t.Errorf("got %v, %v, want 4712", pids, err)
	}
}
