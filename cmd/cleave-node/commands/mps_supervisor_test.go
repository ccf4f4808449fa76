// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
)

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
