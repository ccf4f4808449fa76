// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := &reporter{to: &out}
	went := []bool{
		r.check("a", "good", func() (string, error) { return "fine", nil }),
		r.check("a", "bad", func() (string, error) { return "seen", errors.New("broken\nin two lines") }),
		r.check("a", "passed over", func() (string, error) { return "", fmt.Errorf("wrapped: %w", skipf("no %s", "GPU")) }),
	}
	r.note("a", "fact", func() (string, error) { return "is so", nil })
	r.finish()
	if fmt.Sprint(went) != "[true false false]" {
		t.Errorf("what comes after can build on %v", went)
	}
	for status, want := range map[Status]int{Pass: 1, Fail: 1, Skip: 1, Note: 1} {
		if got := r.report.Count(status); got != want {
			t.Errorf("%d %s, want %d", got, status, want)
		}
	}
	for _, want := range []string{"good                   PASS", "FAIL     0.0s  seen; broken in two lines", "wrapped: no GPU",
		"1 PASS, 1 FAIL, 1 SKIP, 1 NOTE", "failed: a bad: seen; broken"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, out.String())
		}
	}
}

func TestDifferences(t *testing.T) {
	if err := differences(nil); err != nil {
		t.Error(err)
	}
	err := differences([]string{"1", "2", "3", "4", "5", "6", "7"})
	if err == nil || err.Error() != "1; 2; 3; 4; 5; and 2 more" {
		t.Error(err)
	}
}

func TestFindLibrary(t *testing.T) {
	root, stray := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)))
	}
	if path, _ := findLibrary(root, "libfoo.so.1"); path != "" {
		t.Errorf("found %s in an empty root", path)
	}
	library := filepath.Join(root, "usr/lib/x86_64-linux-gnu/libfoo.so.1")
	write(library)
	if path, isStray := findLibrary(root, "libfoo.so.1"); path != library || isStray {
		t.Errorf("found %q, stray %t", path, isStray)
	}
	t.Setenv("LD_LIBRARY_PATH", "relative:"+stray)
	library = filepath.Join(stray, "libfoo.so.1")
	write(library)
	if path, isStray := findLibrary("/", "libfoo.so.1"); path != library || !isStray {
		t.Errorf("found %q, stray %t", path, isStray)
	}
	if path, _ := findLibrary(t.TempDir(), "libfoo.so.1"); path != "" {
		t.Errorf("another root's driver is this machine's: %s", path)
	}
}

func TestCheckFiles(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string {
		path := filepath.Join(root, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)))
		return path
	}
	spec := func() *specs.Spec {
		return &specs.Spec{
			ContainerEdits: specs.ContainerEdits{
				DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidiactl", HostPath: at("dev/nvidiactl")}, {Path: "/dev/nvidia-uvm", HostPath: at("dev/nvidia-uvm")}},
				Mounts:      []*specs.Mount{{HostPath: at("lib/libcuda.so.580"), ContainerPath: "/lib/libcuda.so.580"}},
				Hooks:       []*specs.Hook{{Path: at("hook")}},
			},
			Devices: []specs.Device{{ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: at("dev/nvidia0")}}}}},
		}
	}
	detail, err := checkFiles(spec(), root)
	if err != nil || detail != "3 device nodes, 1 mounts and 1 hooks are there" {
		t.Errorf("%s: %v", detail, err)
	}
	for name, c := range map[string]struct {
		spoil func(*specs.Spec)
		want  string
	}{
		"node":  {func(s *specs.Spec) { s.Devices[0].ContainerEdits.DeviceNodes[0].Path = "/gone" }, "/gone"},
		"mount": {func(s *specs.Spec) { s.ContainerEdits.Mounts[0].HostPath = "/gone/libcuda.so.1" }, "/gone"},
		"hook":  {func(s *specs.Spec) { s.ContainerEdits.Hooks[0].Path = "/gone" }, "/gone"},
		"cuda":  {func(s *specs.Spec) { s.ContainerEdits.Mounts = nil }, "no libcuda"},
		"uvm":   {func(s *specs.Spec) { s.ContainerEdits.DeviceNodes = s.ContainerEdits.DeviceNodes[:1] }, "no /dev/nvidia-uvm"},
	} {
		s := spec()
		c.spoil(s)
		if _, err := checkFiles(s, root); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
