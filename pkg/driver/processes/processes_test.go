// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

const (
	podA types.UID = "0f2a9c1e-0000-4000-8000-00000000000a"
	podB types.UID = "0f2a9c1e-0000-4000-8000-00000000000b"
)

// Marks of processes that have ended and are not reaped, the second while another of its threads runs.
const (
	zombie       = "zombie"
	zombieLeader = "zombie with threads"
)

// write makes processes with these cgroups, and one of the marks.
func write(t *testing.T, cgroups map[string]string) Table {
	t.Helper()
	files := map[string]string{}
	for pid, cgroup := range cgroups {
		if cgroup == "" {
			files[pid+"/comm"] = "" // it has just ended
			continue
		}
		state := "S"
		cgroup, zombie := strings.CutSuffix(cgroup, zombie)
		cgroup, leader := strings.CutSuffix(cgroup, zombieLeader)
		if zombie || leader {
			state = "Z"
		}
		if leader {
			files[pid+"/task/"+pid+"1/comm"] = ""
		}
		files[pid+"/task/"+pid+"/comm"], files[pid+"/cgroup"], files[pid+"/stat"] = "", cgroup, pid+" (a) S (b)) "+state+" 1 1\n"
	}
	return Table{proc: tree(t, files), self: 4}
}

func TestOfPods(t *testing.T) {
	table := write(t, map[string]string{
		"1":    "0::/init.scope\n",
		"4":    "0::/\n",
		"71":   "0::/../../kubepods-burstable-pod0f2a9c1e_0000_4000_8000_00000000000a.slice/cri-containerd-1.scope\n",
		"700":  "12:devices:/kubepods/pod0f2a9c1e-0000-4000-8000-00000000000a/2\n1:name=systemd:/kubepods/x\n",
		"8":    "0::/kubepods/besteffort/pod0f2a9c1e-0000-4000-8000-00000000000b/3\n",
		"9":    "",
		"90":   "0::/kubepods/pod0f2a9c1e-0000-4000-8000-00000000000a/2 (deleted)\n" + zombie,
		"91":   "0::/kubepods/pod0f2a9c1e-0000-4000-8000-00000000000a/2\n" + zombieLeader,
		"self": "0::/kubepods/pod0f2a9c1e-0000-4000-8000-00000000000a/2\n",
	})
	for _, test := range []struct {
		pods []types.UID
		want []int
	}{
		{nil, nil}, {[]types.UID{""}, nil}, {[]types.UID{podA}, []int{71, 91, 700}}, {[]types.UID{podB, podA}, []int{8, 71, 91, 700}},
		{[]types.UID{"another"}, nil},
	} {
		got, err := table.OfPods(t.Context(), test.pods)
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("OfPods(%v): %v (-want +got):\n%s", test.pods, err, diff)
		}
	}
}

func TestOfPods_Hidden(t *testing.T) {
	table := write(t, nil)
	table.self = 1
	if _, err := table.OfPods(t.Context(), []types.UID{podA}); !errors.Is(err, ErrHidden) {
		t.Errorf("got %v, want %v", err, ErrHidden)
	}
	if _, err := (Table{proc: filepath.Join(t.TempDir(), "none"), self: 4}).OfPods(t.Context(), []types.UID{podA}); err == nil {
		t.Error("no procfs: got no error")
	}
	table = write(t, map[string]string{"7": "0::/\n"})
	if err := os.MkdirAll(filepath.Join(table.proc, "8", "cgroup"), 0o700); err != nil { // cannot be read
		t.Fatal(err)
	}
	if got, err := table.OfPods(t.Context(), []types.UID{podA}); err == nil {
		t.Errorf("a process that cannot be told from the pod's: got %v and no error", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := table.OfPods(ctx, []types.UID{podA}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// This process is of no pod; that it is found at all shows that the host's table can be read.
func TestOfPods_Host(t *testing.T) {
	if os.Getpid() == 1 {
		t.Skip("in a PID namespace of its own")
	}
	if got, err := Host().OfPods(t.Context(), []types.UID{podA}); err != nil || len(got) > 0 {
		t.Errorf("OfPods = %v, %v, want none", got, err)
	}
}
