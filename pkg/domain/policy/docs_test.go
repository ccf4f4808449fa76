// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const docs = "../../../docs"

// yamlBlock is a block of YAML in a document.
var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestDocs_PoliciesValid(t *testing.T) {
	files, err := filepath.Glob(docs + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(data, -1) {
			if !strings.Contains(string(block[1]), "kind: NodePolicy") {
				continue
			}
			found++
			if _, err := v1alpha1.DecodeNodePolicy(block[1]); err != nil {
				t.Errorf("%s: %v:\n%s", file, err, block[1])
			}
		}
	}
	if found < 2 {
		t.Errorf("found %d policies", found)
	}
}

// fieldsOf are the names of all fields of a type, and of what it holds.
func fieldsOf(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.NodePolicy]().PkgPath() {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(append(names, name), fieldsOf(t.Field(i).Type)...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

func TestDocs_EveryField(t *testing.T) {
	data, err := os.ReadFile(docs + "/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	fields := fieldsOf(reflect.TypeFor[v1alpha1.NodePolicy]())
	if len(fields) < 30 {
		t.Errorf("found the fields %v only", fields)
	}
	for _, name := range fields {
		if !regexp.MustCompile(`\b` + name + `\b`).Match(data) {
			t.Errorf("docs/policy.md does not mention %s", name)
		}
	}
}

// The examples of policies pass on every node model, and each offers what its comment says.
func TestExamples_Load(t *testing.T) {
	s, err := Load("../../../deployments/examples/policies", Format{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]func(shapes, partitions, shares, whole int) bool{
		"training":    func(shapes, _, _, whole int) bool { return shapes == whole && whole == 8 },
		"inference":   func(shapes, partitions, _, _ int) bool { return shapes == partitions && partitions == 8*4 },
		"development": func(shapes, _, shares, whole int) bool { return shapes == 16 && shares == 8 && whole == 8 },
		"mixed": func(shapes, partitions, _, whole int) bool {
			return whole == 8 && shapes == whole+partitions && partitions == 6*6
		},
		// Two halves for one claim each and two that are shared; the smallest, by seven, likewise; and the rest of the catalog.
		"shared-partitions": func(shapes, partitions, shares, _ int) bool {
			return shapes == partitions+shares && shares == 8*(2+7) && partitions == 8*25
		},
		"existing":    func(shapes, _, _, _ int) bool { return shapes == 0 },
		"maintenance": func(shapes, _, _, _ int) bool { return shapes == 0 },
	}
	for _, name := range s.Names() {
		if want[name] == nil {
			t.Errorf("the test knows nothing of policy %s", name)
			continue
		}
		_, p, err := s.Select(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range simulated.NodeModels() {
			if err := Check(p, model(t, m)); err != nil {
				t.Errorf("%s on %s: %v", name, m, err)
			}
		}
		var all, partitions, shares, whole int
		n := Apply(p, model(t, "hgx-h100"), Capabilities{})
		for i := range n.GPUs {
			for _, shape := range n.Shapes(&n.GPUs[i]) {
				all++
				switch {
				case shape.IsShare():
					shares++
				case shape.IsPartition():
					partitions++
				default:
					whole++
				}
			}
		}
		if !want[name](all, partitions, shares, whole) {
			t.Errorf("%s on hgx-h100: %d devices, of them %d partitions, %d shared, %d whole", name, all, partitions, shares, whole)
		}
	}
	if len(s.Names()) != len(want) {
		t.Errorf("got policies %v, want %d", s.Names(), len(want))
	}
}
