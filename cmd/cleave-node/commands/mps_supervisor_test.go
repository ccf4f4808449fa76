// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
)

func TestMPSSupervisor_UsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--dir", "here"}, "--dir"},
		{[]string{"--compute-mode", "shared"}, `--compute-mode "shared"`},
		{[]string{"--start-timeout", "0s"}, "--start-timeout"},
		{[]string{"--stop-timeout", "soon"}, "--stop-timeout"},
		{[]string{"extra"}, "extra"},
		{[]string{"status", "-o", "yaml"}, "--output"},
	} {
		got := cleaveNode(t, append([]string{"mps-supervisor"}, tt.args...)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("%q: got code %d, %q, want a usage error with %q", tt.args, got.code, got.stderr, tt.want)
		}
	}
}

func TestMPSSupervisor_Help(t *testing.T) {
	got := cleaveNode(t, "mps-supervisor", "--help")
	for _, flag := range []string{"--dir", "--driver-root", "--container-driver-root", "--nvml-library", "--compute-mode",
		"--daemon-cgroup", "--start-timeout", "--stop-timeout", "--logging-format", "status"} {
		if !strings.Contains(got.stdout, flag+" ") {
			t.Errorf("help does not list %s", flag)
		}
	}
	if strings.Contains(got.stdout, "run-daemon") {
		t.Error("help shows run-daemon")
	}
}

func TestMPSStatus_NoSupervisor(t *testing.T) {
	dir := t.TempDir()
	got := cleaveNode(t, "mps-supervisor", "status", "--dir", dir)
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, filepath.Join(dir, "supervisor.sock")+": is its DaemonSet running") {
		t.Errorf("got code %d, %q", got.code, got.stderr)
	}
}
