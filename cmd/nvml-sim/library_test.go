// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// buildLibrary builds libnvidia-ml.so.1 as "make sim" does.
func buildLibrary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("building the library takes a while")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no C compiler")
	}
	script, err := filepath.Abs("libnvidia-ml/exports.map")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	build := exec.Command("go", "build", "-tags", "nvmlsim", "-buildmode=c-shared", "-o", out,
		"-ldflags", "-s -w -extldflags '-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="+script+"'", "./libnvidia-ml")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-I"+filepath.Dir(headerPath(t)))
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	return out
}

// headerPath finds nvml.h in the module that the product uses.
func headerPath(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "pkg", "nvml", "nvml.h")
}

// headerSymbols lists the functions of nvml.h, written so that it shares nothing with the generator: a name before a
// parenthesis, on a line that declares something.
func headerSymbols(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(headerPath(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, " DECLDIR ") || strings.Contains(line, "#define") {
			continue
		}
		before, _, _ := strings.Cut(line, "(")
		if strings.HasPrefix(line, "DEPRECATED(") {
			_, after, _ := strings.Cut(line, ")")
			before, _, _ = strings.Cut(after, "(")
		}
		words := strings.Fields(before)
		names = append(names, words[len(words)-1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestLibrary_Exports(t *testing.T) {
	f, err := elf.Open(buildLibrary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	soname, err := f.DynString(elf.DT_SONAME)
	if diff := cmp.Diff([]string{"libnvidia-ml.so.1"}, soname); diff != "" || err != nil {
		t.Errorf("SONAME, %v (-want +got):\n%s", err, diff)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]bool{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		exported[s.Name] = true
		if !strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("%s is seen from outside", s.Name)
		}
	}
	names := headerSymbols(t)
	if len(names) < 400 {
		t.Fatalf("only %d functions found in nvml.h", len(names))
	}
	for _, name := range append(names, "nvmlInit", "nvmlDeviceGetCount", "nvmlGetBlacklistDeviceCount", "nvmlDeviceGetDriverModel") {
		if !exported[name] {
			t.Errorf("%s is not exported", name)
		}
	}
}

// What a program gets that sets memory limits and compute modes through the library, and what show makes of it.
func TestLibrary_MemoryLimits(t *testing.T) {
	library := buildLibrary(t)
	program := filepath.Join(t.TempDir(), "limits")
	build := exec.Command("gcc", "-Wall", "-Werror", "-I"+filepath.Dir(headerPath(t)), "-o", program, "testdata/limits.c", "-ldl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cgroup := t.TempDir()
	for driver, want := range map[string]string{
		"615.10": "get 6 0 0 7\nset 2\nset 17\nset 2\nset 0\nget 0 1073741824 2147483648 0\nset 3\nget 3 0 0 7\n",
		"590.10": "get 3 0 0 7\nset 3\nset 3\nset 2\nset 3\nget 3 0 0 7\nset 3\nget 3 0 0 7\n",
	} {
		root := filepath.Join(t.TempDir(), "root")
		ok(t, "create", "--node", "hgx-h100", "--root", root, "--library", library, "--no-device-nodes", "--driver-version", driver)
		ok(t, "mig", "mode", "--root", root, "--gpu", "1", "on")
		ok(t, "mig", "create", "--root", root, "--gpu", "1", "--profile", "1g.10gb")
		c := exec.Command(program, filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), cgroup)
		c.Env = append(os.Environ(), "NVML_SIM_ROOT=")
		out, err := c.CombinedOutput()
		if diff := cmp.Diff(want+"mode 0 0 3\nmode 3 3 9\nmode 0 0 3\n", string(out)); diff != "" || err != nil {
			t.Errorf("driver %s: %v (-want +got):\n%s", driver, err, diff)
		}
		show := ok(t, "show", "--root", root)
		lines := []string{"compute mode EXCLUSIVE_PROCESS on GPU 0\n", "compute mode EXCLUSIVE_PROCESS on GPU 1 GI 7 CI 0\n"}
		if driver == "615.10" {
			lines = append(lines, "memory limits soft 1073741824, hard 2147483648 of "+cgroup+" on GPU 0\n")
		}
		for _, line := range lines {
			if !strings.Contains(show, line) {
				t.Errorf("driver %s: show has no %q:\n%s", driver, line, show)
			}
		}
	}
}
