// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// bin is where `make build` puts the simulated node's programs. Those of the driver are linked dynamically, as NVIDIA's are.
const bin = "../../../bin"

// simulated makes a node with flags of nvml-sim create.
func simulated(t *testing.T, root string, flags ...string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(bin, "nvidia-programs")); err != nil {
		t.Skipf("the simulated programs are not built (make build): %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may make device files")
	}
	args := append([]string{"create", "--node", "a30", "--root", root}, flags...)
	if output, err := exec.CommandContext(t.Context(), filepath.Join(bin, "nvml-sim"), args...).CombinedOutput(); err != nil {
		t.Fatalf("nvml-sim %v: %v: %s", args, err, output)
	}
}

// GKE's driver has no /dev and no C library: a program cannot run with that root as its own, as releases before did.
func TestRun_RootWithoutDevAndLibc(t *testing.T) {
	host := t.TempDir()
	root := Root{Host: "/home/kubernetes/bin/nvidia", Here: filepath.Join(host, "home/kubernetes/bin/nvidia")}
	simulated(t, root.Here, "--flat", "--dev-root", host)
	if got, want := root.Devices(), (Root{Host: "/", Here: host}); got != want {
		t.Errorf("device nodes below %v, want %v", got, want)
	}
	smi, found := root.Find("nvidia-smi")
	if !found || smi != "/bin/nvidia-smi" {
		t.Fatalf("got %q, %t", smi, found)
	}
	entered := exec.CommandContext(t.Context(), smi, "-L")
	entered.SysProcAttr, entered.Dir = &syscall.SysProcAttr{Chroot: root.Here}, "/"
	if output, err := entered.CombinedOutput(); err == nil {
		t.Errorf("the simulation is kinder than GKE: nvidia-smi runs in its own root: %s", output)
	}
	if output, err := root.Run(t.Context(), smi, "-L"); err != nil || strings.Count(string(output), "UUID: GPU-") != 2 {
		t.Errorf("%v: nvidia-smi -L: %s", err, output)
	}
	// Without the driver's library the program says what it lacks.
	for dir := range strings.SplitSeq(root.LibraryPath(), ":") {
		must(t, os.Remove(filepath.Join(dir, "libnvidia-ml.so.1")))
	}
	if output, err := root.Run(t.Context(), smi, "-L"); err == nil || !strings.Contains(string(output), "couldn't find libnvidia-ml.so") {
		t.Errorf("without the library: %v: %s", err, output)
	}
}

// A driver container has both, and its programs run with its root as their own.
func TestRun_DriverContainer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "driver")
	simulated(t, dir, "--libc")
	root := Root{Host: "/run/nvidia/driver", Here: dir}
	if !root.Entered("/usr/bin/nvidia-smi") {
		t.Error("the root has a dev and a C library, and is not entered")
	}
	if output, err := root.Run(t.Context(), "/usr/bin/nvidia-smi", "-L"); err != nil || strings.Count(string(output), "UUID: GPU-") != 2 {
		t.Errorf("%v: nvidia-smi -L: %s", err, output)
	}
}
