// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// What make build and make scheduler make.
const (
	builtNode      = "../../bin/cleave-node"
	builtCleave    = "../../bin/cleave"
	builtScheduler = "../../bin/cleave-scheduler"
	builtLibrary   = "../../bin/libnvidia-ml.so.1"
)

// program is the path of cleave-node in its image.
const program = programs + "/cleave-node"

// layout lays an image out in a directory of the test.
func layout(t *testing.T, of string, others ...string) string {
	t.Helper()
	for _, built := range append(others, of) {
		if _, err := os.Stat(built); err != nil {
			t.Skipf("not built (make build scheduler): %v", err)
		}
	}
	dir := filepath.Join(t.TempDir(), "image")
	if err := layOut(of, []string{"../../LICENSE"}, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImageRoot_Contents(t *testing.T) {
	dir := layout(t, builtNode)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		base := filepath.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir():
		case name == program, name == "licenses/LICENSE", hostLinks[name] != "":
		case strings.HasPrefix(base, "ld-linux-"), base == "libc.so.6", slices.Contains(nvmlNeeds, base):
		default:
			t.Errorf("the image has %s", name)
		}
		if info, err := d.Info(); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s is %s", name, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"libc.so.6"}, nvmlNeeds...) {
		if found, _ := filepath.Glob(filepath.Join(dir, "*", "*", name)); len(found) != 1 {
			t.Errorf("%s is in the image at %v, want it once", name, found)
		}
	}
}

// The program has to run in the image, and to load the driver's library there from a driver root that is mounted.
func TestImageRoot_LoadsNVML(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	dir := layout(t, builtNode, builtLibrary)
	if _, err := sim.Create(filepath.Join(dir, "host/driver"), "t4", sim.WithLibrary(builtLibrary), sim.WithoutDeviceNodes()); err != nil {
		t.Fatal(err)
	}
	if got := runIn(t, dir, program, "--version"); !strings.Contains(got, "cleave-node version") {
		t.Errorf("--version says %q", got)
	}
	if got := runIn(t, dir, program, "inspect", "--driver-root=/host/driver", "--sysfs=/host/driver/sys"); !strings.Contains(got, "Tesla T4") {
		t.Errorf("inspect says %q", got)
	}
}

// runIn runs a program of an image as if that was all there is.
func runIn(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	command := exec.Command("/"+program, args...)
	command.Dir, command.Env = "/", []string{}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, output)
	}
	return string(output)
}

// The dashboard's image has the C library alone: models are read without NVML.
func TestImageRoot_Dashboard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	dir := layout(t, builtCleave)
	if got := runIn(t, dir, programs+"/cleave", "slices", "--node-model=t4"); !strings.Contains(got, "Tesla T4") {
		t.Errorf("slices says %q", got)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "host")); len(found) > 0 {
		t.Errorf("the image has %v", found)
	}
}

func TestImageRoot_Scheduler(t *testing.T) {
	dir := layout(t, builtScheduler)
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			files = append(files, name)
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"licenses/LICENSE", "usr/bin/cleave-scheduler", "usr/bin/kube-scheduler"}) {
		t.Errorf("the image has %v: %v", files, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	for _, program := range []string{"cleave-scheduler", "kube-scheduler"} {
		if got := runIn(t, dir, "usr/bin/"+program, "--version"); !strings.HasPrefix(got, "Kubernetes v1.") {
			t.Errorf("%s --version says %q", program, got)
		}
	}
}

func TestImageRoot_MissingFiles(t *testing.T) {
	b := &binary{machine: elf.EM_X86_64}
	if _, _, err := b.findLibrary("libnonesuch.so.9"); err == nil || !strings.Contains(err.Error(), "libnonesuch.so.9") {
		t.Errorf("got %v", err)
	}
	for _, of := range []string{"/nonexistent/cleave", "/bin/nobody"} {
		if err := layOut(of, []string{"LICENSE"}, t.TempDir()); err == nil || !strings.Contains(err.Error(), of) {
			t.Errorf("got %v, want an error that names %s", err, of)
		}
	}
}
