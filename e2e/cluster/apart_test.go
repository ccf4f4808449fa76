// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// apart runs a script by hack/apart and returns its lines and its exit status.
func apart(t *testing.T, script string) (lines []string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../hack/apart", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "CLEAVE_APART="+t.TempDir()) // this test may run apart
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok {
		code = exit.ExitCode()
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), code
}

// What runs apart sees no process of others, and the last one to end leaves the machine as it was.
func TestApart(t *testing.T) {
	realCluster(t)
	const panics, ours = "/proc/sys/kernel/panic", "11" // which no kubelet writes
	before := slices.DeleteFunc(readSysctls(), func(s sysctl) bool { return s.Path != panics })
	t.Cleanup(func() {
		if err := restoreSysctls(before); err != nil {
			t.Error(err)
		}
	})
	const groups = "/sys/fs/cgroup/unified"
	file := filepath.Join(t.TempDir(), "file")
	lines, code := apart(t, strings.Join([]string{
		"cat /proc/1/comm", "grep -l 'cluster[.]test' /proc/[0-9]*/cmdline", "grep -c : /proc/net/dev",
		"ls -A /var/lib/kubelet", "touch /var/lib/kubelet/x " + file, "echo " + ours + " > " + panics,
		"[ ! -w " + groups + "/cgroup.procs ] || mkdir " + groups + "/of-apart-test || exit",
		"sleep 600 & exit 3", // which ends with the first process there
	}, "\n"))
	if code != 3 {
		t.Errorf("exit status %d", code)
	}
	if diff := cmp.Diff([]string{"bash", "1"}, lines); diff != "" { // itself, and the loopback device
		t.Errorf("seen there (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file that was made there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(deviceManagerRoot, "x")); err == nil {
		t.Errorf("%s is not one of its own", deviceManagerRoot)
	}
	for _, pattern := range []string{"of-apart-test", "*/of-apart-test"} {
		if left, err := filepath.Glob(filepath.Join(groups, pattern)); err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %q, %v", left, err)
		}
	}
	// Kubelets of tests beside this one may have changed settings meanwhile.
	if slices.Contains(readSysctls(), sysctl{panics, ours}) {
		t.Errorf("%s is still %s", panics, ours)
	}
}
