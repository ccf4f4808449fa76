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

// never is an import that no package may have. docs/architecture.md draws the wings.
type never struct {
	// from and to match the paths of a package and of an import; those of this module without its name. unless matches "FROM TO"
	// that is allowed; nil for nothing.
	from, to, unless *regexp.Regexp
	why              string
}

func rule(from, to, why string) never {
	return never{regexp.MustCompile(from), regexp.MustCompile(to), nil, why}
}

func (n never) except(allowed string) never {
	n.unless = regexp.MustCompile(allowed)
	return n
}

// forbids reports whether a package must not have an import.
func (n *never) forbids(from, to string) bool {
	return n.from.MatchString(from) && n.to.MatchString(to) && (n.unless == nil || !n.unless.MatchString(from+" "+to))
}

// nevers are the rules. They are about what a package imports itself: each wing's hold for what that imports.
var nevers = []never{
	rule(`^api/`, `^(pkg|cmd)/`, "the API is what others build on"),
	rule(`^pkg/domain/`, `^pkg/(driver|tools|scheduler|sim|cli)(/|$)`, "the domain knows no other wing"),
	rule(`^pkg/domain/`, `^k8s\.io/(client-go|kubernetes|kubelet|component-base|dynamic-resource-allocation)`, "the domain has no clients").
		except(` k8s\.io/dynamic-resource-allocation/deviceattribute$`), // names of attributes
	rule(`^pkg/domain/gpu$`, `\.|^pkg/`, "what a GPU can do rests on the standard library alone"),
	rule(`^pkg/domain/(packing|store)$`, `^k8s\.io/`, "it is about devices and documents of any kind"),
	rule(`^pkg/driver/`, `^pkg/(tools|scheduler|sim|cli)(/|$)`, "every line of the driver may run as root on every node"),
	rule(`^pkg/tools/`, `^pkg/(driver|scheduler|sim|cli)(/|$)`, "tools know a node by what it publishes"),
	rule(`^pkg/scheduler/`, `^pkg/(driver|tools|sim|cli)(/|$)`, "the scheduler reads pools, no more").
		except(` pkg/tools/(pools|resourcepool)$`),
	rule(`^pkg/sim(/|$)`, `^pkg/(driver|tools|scheduler|cli)(/|$)`, "a simulated node is made of facts").
		except(`^pkg/sim/simulated pkg/driver/nvml$`), // sessions of NVML on simulated nodes
	rule(`^(api|cmd|pkg)/`, `^pkg/golden$`, "tests alone compare with files"),
	rule(`^(api|cmd|pkg)/`, `^pkg/sim(/|$)`, "simulated nodes are loaded as a library").except(`^(pkg/sim|cmd/nvml-sim)`),
	rule(`^(api|cmd|pkg)/`, `^github\.com/NVIDIA/go-nv(ml|lib)(/|$)`, "pkg/driver/nvml alone talks to NVML").except(`^pkg/driver/nvml `),
	rule(`^pkg/driver/(nvml|health|smi|driverroot|processes|filewatch)$`, `^pkg/driver/(plugin|controller|claims|cluster|publisher)$`,
		"what looks at hardware does not know who asks"),
	rule(`^pkg/driver/health$`, `^k8s\.io/(api|client-go|dynamic-resource-allocation)`, "health knows GPUs, not Kubernetes"),
	rule(`^pkg/driver/mps/supervisor$`, `^pkg/domain/(records|policy)$`, "the supervisor knows GPUs and UIDs of claims"),
	rule(`^(cmd|pkg)/`, `^pkg/driver/mps/(supervisor|api)`, "the supervisor is reached by the client in pkg/driver/mps").
		except(`^(pkg/driver/mps|cmd/cleave-node/)`),
	rule(`^pkg/driver/`, `^pkg/driver/plugin$`, "the plugin puts the others together"),
	rule(`^(cmd/cleave/|pkg/(cli|tools))`, `^pkg/driver/(plugin|controller|claims|publisher|cdi|claimstatus)(/|$)`,
		"the program for people looks at a node, and changes nothing"),
	rule(`^cmd/cleave-node/`, `^pkg/tools/`, "of the tools, the webhook and the inspection of a machine are on nodes, no more").
		except(` pkg/tools/admission$`),
	rule(`^(cmd/cleave-node|pkg/(cli|domain|driver)|pkg/tools/(admission|inspect|migrate|resourcepool|suggest))(/|$)`,
		`^pkg/tools/(allocator|pools|selector)$|^(github\.com/google/cel-go|k8s\.io/(apiserver|dynamic-resource-allocation/(cel|structured)))(/|$)`,
		"what runs as root on nodes evaluates no CEL, and allocates nothing"),
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

// offences are the rules that a package breaks.
func offences(from string, imports []string) []string {
	var found []string
	for _, i := range imports {
		to := strings.TrimPrefix(i, module)
		for _, n := range nevers {
			if n.forbids(from, to) {
				found = append(found, from+" imports "+to+": "+n.why)
			}
		}
	}
	return found
}

func TestImports_Nevers(t *testing.T) {
	all := slices.Concat(packages(t, "api"), packages(t, "pkg"), packages(t, "cmd"))
	for _, p := range all {
		for _, o := range offences(p, importsOf(t, p)) {
			t.Error(o)
		}
	}
	for _, n := range nevers {
		if !slices.ContainsFunc(all, n.from.MatchString) {
			t.Errorf("a rule is about %s, which is no package", n.from)
		}
	}
}

// The rules forbid what they are for.
func TestNevers(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to  string
		forbidden bool
	}{
		"a tool in the driver":           {"pkg/driver/plugin", module + "pkg/tools/inspect", true},
		"the driver in a tool":           {"pkg/tools/inspect", module + "pkg/driver/nvml", true},
		"a client in the domain":         {"pkg/domain/nodeslices", "k8s.io/client-go/kubernetes", true},
		"a writer in the domain":         {"pkg/domain/nodeslices", "k8s.io/dynamic-resource-allocation/resourceslice", true},
		"API types in the domain":        {"pkg/domain/nodeslices", "k8s.io/api/resource/v1", false},
		"another package in gpu":         {"pkg/domain/gpu", module + "pkg/domain/store", true},
		"the simulator in the driver":    {"pkg/driver/nvml", module + "pkg/sim", true},
		"the simulator in the program":   {"cmd/cleave", module + "pkg/sim/simulated", true},
		"pools in the scheduler":         {"pkg/scheduler/gpupacking", module + "pkg/tools/pools", false},
		"another tool in the scheduler":  {"pkg/scheduler/gpupacking", module + "pkg/tools/explain", true},
		"NVML in the plugin":             {"pkg/driver/plugin", "github.com/NVIDIA/go-nvml/pkg/nvml", true},
		"NVML where it belongs":          {"pkg/driver/nvml", "github.com/NVIDIA/go-nvml/pkg/nvml", false},
		"the supervisor in claims":       {"pkg/driver/claims", module + "pkg/driver/mps/supervisor", true},
		"the supervisor in its program":  {"cmd/cleave-node/commands", module + "pkg/driver/mps/supervisor", false},
		"the supervisor's client":        {"pkg/driver/plugin", module + "pkg/driver/mps", false},
		"CEL on nodes":                   {"pkg/tools/inspect", "github.com/google/cel-go/cel", true},
		"CEL for people":                 {"pkg/tools/selector", "github.com/google/cel-go/cel", false},
		"the plugin in the control loop": {"pkg/driver/controller", module + "pkg/driver/plugin", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := offences(tt.from, []string{tt.to}); len(got) > 0 != tt.forbidden {
				t.Errorf("got %q, want forbidden: %t", got, tt.forbidden)
			}
		})
	}
}

// Each package has a doc.go, whose first sentence says what the package holds.
func TestDoc_FirstSentence(t *testing.T) {
	all := slices.Concat(packages(t, "pkg"), packages(t, "api"), []string{"pkg/domain", "pkg/driver", "pkg/tools", "pkg/scheduler"})
	for _, path := range all {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path, "doc.go"), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			if path != "pkg/driver/mps/api/v1alpha1" { // which protoc writes
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
