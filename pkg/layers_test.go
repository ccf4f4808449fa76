// SPDX-License-Identifier: Apache-2.0

package pkg_test

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cleave-dra/cleave/"

// layers are the packages of the program from the bottom up. A package imports those of lower layers, and none of its own.
// docs/architecture.md draws them.
var layers = [][]string{
	{"api/v1alpha1", "pkg/gpu", "pkg/store", "pkg/filewatch", "pkg/driverroot", "pkg/processes", "pkg/cdi/hook", "pkg/mps/api/v1alpha1", "deployments/manifests"},
	{"api/nvidia/v1beta1", "pkg/packing", "pkg/policy", "pkg/nvml", "pkg/records", "pkg/health", "pkg/names", "pkg/driversession", "pkg/smi", "pkg/inspect/models"},
	{"api/parameters", "pkg/migrate", "pkg/cdi", "pkg/mps"},
	{"pkg/publish", "pkg/claims", "pkg/pools", "pkg/mps/supervisor", "pkg/admission"},
	{"pkg/cluster", "pkg/claimstatus", "pkg/inspect", "pkg/usage", "pkg/allocator"},
	{"pkg/node", "pkg/explain", "pkg/simulation", "pkg/repack"},
	{"pkg/plugin", "pkg/validation", "pkg/fleet"},
	{"pkg/dashboard"},
	{"pkg/cli"},
	{"cmd/cleave"},
	{"pkg/scheduling"}, // cmd/cleave-scheduler, a module of its own, contains it; cmd/cleave does not
}

// simulator are packages of simulated nodes and of tests on them, which no package of the program imports.
var simulator = []string{"pkg/sim", "pkg/sim/mps", "pkg/sim/killtest", "pkg/nvml/simulated"}

// layerOf is the number of a package's layer; -1 where it has none.
func layerOf(path string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, path) })
}

// importsOf are the imports of a package of the module, tests left out; nil where there is no package.
func importsOf(t *testing.T, path string) []string {
	t.Helper()
	p, err := build.Default.ImportDir(filepath.Join("..", path), 0)
	if noGo := (*build.NoGoError)(nil); errors.As(err, &noGo) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(p.GoFiles)+len(p.CgoFiles) == 0 {
		return nil
	}
	return append([]string{}, p.Imports...)
}

// packages are those with Go code, tests left out, below a directory of the module.
func packages(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join("..", root), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if d.Name() == "testdata" {
			return filepath.SkipDir
		}
		path, err = filepath.Rel("..", path)
		if err != nil {
			return err
		}
		if importsOf(t, path) != nil {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// own are the packages of the module among imports.
func own(imports []string) []string {
	var found []string
	for _, i := range imports {
		if path, ok := strings.CutPrefix(i, module); ok {
			found = append(found, path)
		}
	}
	return found
}

func TestImports_Layers(t *testing.T) {
	all := append(packages(t, "pkg"), packages(t, "api")...)
	for _, path := range append(all, "cmd/cleave") {
		at := layerOf(path)
		if slices.Contains(simulator, path) {
			continue
		}
		if at < 0 {
			t.Errorf("%s is in no layer: add it to the lowest one above all that it imports", path)
			continue
		}
		for _, i := range own(importsOf(t, path)) {
			switch to := layerOf(i); {
			case slices.Contains(simulator, i):
				t.Errorf("%s imports %s: simulated nodes are loaded as a library", path, i)
			case to >= at:
				t.Errorf("%s (layer %d) imports %s (layer %d)", path, at, i, to)
			case to < 0:
				t.Errorf("%s imports %s, which is in no layer", path, i)
			}
		}
	}
}

// The program does not contain the simulator, not by way of another package either.
func TestImports_ProgramWithoutSimulator(t *testing.T) {
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		for _, i := range own(importsOf(t, path)) {
			visit(i)
		}
	}
	visit("cmd/cleave")
	for _, path := range simulator {
		if seen[path] {
			t.Errorf("cmd/cleave depends on %s", path)
		}
	}
	if !seen["pkg/plugin"] || !seen["pkg/gpu"] {
		t.Errorf("got dependencies %v, want the plugin's", seen)
	}
}

// TestImports_Outside holds what of other modules a package may import.
func TestImports_Outside(t *testing.T) {
	for path, forbidden := range map[string]*regexp.Regexp{
		"pkg/gpu":     regexp.MustCompile(`\.`), // nothing but the standard library
		"pkg/packing": regexp.MustCompile(`^k8s\.io|NVIDIA`),
		"pkg/health":  regexp.MustCompile(`^k8s\.io/(api|client-go|dynamic-resource-allocation)|NVIDIA`),
	} {
		for _, i := range importsOf(t, path) {
			if forbidden.MatchString(i) {
				t.Errorf("%s imports %s", path, i)
			}
		}
	}
	for _, path := range packages(t, "pkg") {
		for _, i := range importsOf(t, path) {
			if path != "pkg/nvml" && strings.HasPrefix(i, "github.com/NVIDIA/go-nvml/") {
				t.Errorf("%s imports %s: only pkg/nvml does", path, i)
			}
		}
	}
}

// Each package has a doc.go, whose first sentence says what the package holds.
func TestDoc_FirstSentence(t *testing.T) {
	for _, path := range append(packages(t, "pkg"), packages(t, "api")...) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path, "doc.go"), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			if path != "pkg/mps/api/v1alpha1" { // which protoc writes
				t.Error(err)
			}
			continue
		}
		if first := firstSentence(f); !strings.HasPrefix(first, "Package "+f.Name.Name+" ") || !strings.HasSuffix(first, ".") {
			t.Errorf("%s: doc.go begins with %q, want a sentence that begins with Package %s", path, first, f.Name.Name)
		}
	}
}

func firstSentence(f *ast.File) string {
	text := strings.Join(strings.Fields(f.Doc.Text()), " ")
	first, _, found := strings.Cut(text, ". ")
	if found {
		first += "."
	}
	return first
}
