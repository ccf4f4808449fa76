// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/sim/killtest"
)

// What the test binary is when it starts itself.
const (
	runDaemon  = "run-daemon" // first argument: call Enter
	supervises = "supervisor" // a worker
)

// simulator is the simulated driver's program, built once; empty if the test does not run as root.
var simulator string

// TestMain becomes what a test started, or runs tests without what the code logs: that is not under test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == runDaemon {
		fmt.Fprintln(os.Stderr, Enter())
		os.Exit(1)
	}
	if os.Getenv("CLEAVE_MPS_TEST_LOG") == "" {
		klog.SetLogger(klog.Logger{})
	}
	killtest.Main(map[string]func(*killtest.Life) error{supervises: worker})
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Getuid() == 0 {
		dir, err := os.MkdirTemp("", "nvml-sim")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		simulator = filepath.Join(dir, "nvml-sim")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", simulator, "../../../../cmd/nvml-sim") // as `make sim` does
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build nvml-sim: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}
