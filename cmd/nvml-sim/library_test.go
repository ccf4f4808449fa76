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

func TestLibraryExportsAllOfNVML(t *testing.T) {
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
