// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// apart runs a script by hack/apart and returns its lines and its exit status.
func apart(t *testing.T, script string) (lines []string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../hack/apart", "sh", "-c", script)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if ok {
		code = exit.ExitCode()
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), code
}

// What runs apart sees no process of others, and nothing that a kubelet changes reaches the machine.
func TestApart(t *testing.T) {
	realCluster(t)
	before, kubeletDir := readSysctls(), func() bool { _, err := os.Stat(deviceManagerRoot); return err == nil }
	found := kubeletDir()
	file := filepath.Join(t.TempDir(), "file")
	script := "cat /proc/1/comm; grep -l 'cluster[.]test' /proc/[0-9]*/cmdline; grep -c : /proc/net/dev; ls -A /var/lib/kubelet; touch /var/lib/kubelet/x " + file
	for _, s := range before {
		script += "; echo 12345 > " + s.Path + " && cat " + s.Path
	}
	lines, code := apart(t, script+"; sleep 600 & exit 3") // which ends with the first process there
	if code != 3 {
		t.Errorf("exit status %d", code)
	}
	want := []string{"bash", "1"} // itself, and the loopback device
	for range before {
		want = append(want, "12345")
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("seen there (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, readSysctls()); diff != "" {
		t.Errorf("settings of the kernel (-before +after):\n%s", diff)
	}
	if kubeletDir() != found {
		t.Errorf("%s: was there: %t, is: %t", deviceManagerRoot, found, !found)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file that was made there: %v", err)
	}
}
