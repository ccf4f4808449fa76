// SPDX-License-Identifier: Apache-2.0

package main

import (
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

// What make build makes.
const (
	builtCleave  = "../../bin/cleave"
	builtLibrary = "../../bin/libnvidia-ml.so.1"
)

// layout lays the image out in a directory of the test.
func layout(t *testing.T) string {
	t.Helper()
	for _, built := range []string{builtCleave, builtLibrary} {
		if _, err := os.Stat(built); err != nil {
			t.Skipf("not built (make build): %v", err)
		}
	}
	dir := filepath.Join(t.TempDir(), "image")
	if err := layOut(builtCleave, "../../LICENSE", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImageRoot_Contents(t *testing.T) {
	dir := layout(t)
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
	dir := layout(t)
	if _, err := sim.Create(filepath.Join(dir, "host/driver"), "t4", sim.WithLibrary(builtLibrary), sim.WithoutDeviceNodes()); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		command := exec.Command("/"+program, args...)
		command.Dir, command.Env = "/", []string{}
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("cleave %v: %v: %s", args, err, output)
		}
		return string(output)
	}
	if got := run("--version"); !strings.Contains(got, "cleave version") {
		t.Errorf("--version says %q", got)
	}
	if got := run("slices", "--driver-root=/host/driver", "--sysfs=/host/driver/sys"); !strings.Contains(got, "Tesla T4") {
		t.Errorf("slices says %q", got)
	}
}

func TestImageRoot_MissingFiles(t *testing.T) {
	if _, err := findLibrary("libnonesuch.so.9"); err == nil || !strings.Contains(err.Error(), "libnonesuch.so.9") {
		t.Errorf("got %v", err)
	}
	if err := layOut("/nonexistent", "LICENSE", t.TempDir()); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("got %v", err)
	}
}
