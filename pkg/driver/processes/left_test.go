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

// A zombie has mounts that cannot be read (EINVAL), and so has a process that ends, before it is one. That says nothing of a claim, unless
// another thread is left.
func TestOfClaim_Ending(t *testing.T) {
	cmd := exec.Command("true")
	ended, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	child := cmd.Process.Pid
	defer func() { _ = cmd.Wait() }()
	if _, err := ended.Read(make([]byte, 1)); err == nil {
		t.Fatal("true prints something")
	}
	for !Host().ended(child) { // its files are closed just before
	}
	const in, mount = "0::/kubepods/pod1234/c\n", "32 30 0:26 /cdi/gpu.cleave.dev-metadata/ns_claim/gpu/metadata.json /m ro - tmpfs tmpfs rw\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  []int
	}{
		"zombie":               {map[string]string{"7/stat": "7 (a) Z 1 1\n", "7/task/7/comm": ""}, nil},
		"not yet a zombie":     {map[string]string{"7/stat": "7 (a) R 1 1\n", "7/task/7/comm": ""}, nil},
		"its first thread":     {map[string]string{"7/stat": "7 (a) Z 1 1\n", "7/task/7/comm": "", "7/task/8/mountinfo": mount}, []int{7}},
		"its threads, in turn": {map[string]string{"7/stat": "7 (a) R 1 1\n", "7/task/7/comm": "", "7/task/8/comm": ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.files["7/cgroup"] = in
			proc := tree(t, test.files)
			for _, file := range []string{"7/mountinfo", "7/task/7/mountinfo"} {
				must(t, os.Symlink(filepath.Join("/proc", strconv.Itoa(child), "mountinfo"), filepath.Join(proc, file)))
			}
			p := newPods(Table{proc: proc, self: 2}, t.TempDir(), "")
			if pids, err := p.OfClaim(t.Context(), "ns", "claim"); err != nil || !slices.Equal(pids, test.want) {
				t.Errorf("got %v, %v, want %v", pids, err, test.want)
			}
		})
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
