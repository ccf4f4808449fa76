// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestOwners(t *testing.T) {
	const uid = "0d5a1c5e-0001-4a8e-9a57-6b1b0a7a5a01"
	files := map[string]string{"uptime": "100.00 200.00\n"}
	for pid, cgroup := range map[string]string{
		"11": "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d5a1c5e_0001_4a8e_9a57_6b1b0a7a5a01.slice/cri-containerd-1.scope\n",
		"12": "0::/kubepods/pod" + uid + "/abc/kubepods/pod11111111-0001-4a8e-9a57-6b1b0a7a5a01/def\n",
		"13": "0::/system.slice/podman-nvidia.service\n",
		"14": "12:cpu:/kubepods/besteffort/pod0123456789abcdef0123456789abcdef/c\n",
	} {
		files[pid+"/cgroup"], files[pid+"/stat"] = cgroup, "1 (a) S 1 (b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9900 1 2 3\n"
	}
	proc := tree(t, files)
	table := Table{proc: proc, self: 2}
	got, err := table.Owners(t.Context(), []int{11, 12, 13, 14, 15})
	must(t, err)
	for pid, want := range map[int]types.UID{11: uid, 12: uid, 13: "", 14: "0123456789abcdef0123456789abcdef"} {
		o, ok := got[pid]
		if !ok || o.Pod != want || o.Name != "a) S 1 (b" || time.Since(o.Started).Round(100*time.Millisecond) != time.Second {
			t.Errorf("process %d: got %+v, %t, want pod %q, begun a second ago", pid, o, ok, want)
		}
	}
	if _, ok := got[15]; ok {
		t.Error("an ended process has an owner")
	}
	must(t, os.WriteFile(filepath.Join(proc, "11/stat"), []byte("no stat"), 0o600))
	if _, err := table.Owners(t.Context(), []int{11}); err == nil {
		t.Error("what cannot be read has an owner")
	}
	if _, err := (Table{proc: proc, self: 1}).Owners(t.Context(), []int{13}); !errors.Is(err, ErrHidden) {
		t.Errorf("got %v, want %v", err, ErrHidden)
	}
}

// The kernel agrees on the time at which a process began.
func TestOwners_Started(t *testing.T) {
	before := time.Now()
	cmd := exec.Command("sleep", "60")
	must(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	after := time.Now()
	owners, err := Table{proc: "/proc", self: os.Getpid()}.Owners(t.Context(), []int{cmd.Process.Pid})
	must(t, err)
	got := owners[cmd.Process.Pid].Started
	if got.Before(before.Add(-time.Second)) || got.After(after.Add(time.Second)) {
		t.Errorf("began at %v, want %v to %v", got, before, after)
	}
}
