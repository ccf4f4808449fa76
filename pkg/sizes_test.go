// SPDX-License-Identifier: Apache-2.0

package pkg_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	mostLines   = 400 // of a file
	mostMethods = 25  // of a type
)

// No file and no type outgrows what can be read at once.
func TestSizes(t *testing.T) {
	methods := map[string]int{} // by directory and type
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path == filepath.Join("..", "bin") || path == filepath.Join("..", ".git")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		if lines := bytes.Count(data, []byte("\n")); lines > mostLines {
			t.Errorf("%s has %d lines, want %d at most: split it by what it holds", path, lines, mostLines)
		}
		countMethods(f, filepath.Dir(path), methods)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(methods) == 0 {
		t.Error("no type has methods: the test looks in the wrong place")
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if n := methods[name]; n > mostMethods {
			t.Errorf("%s has %d methods, want %d at most: split it into types that hold together", name, n, mostMethods)
		}
	}
}

// countMethods adds the methods that a file declares to the counts of their types.
func countMethods(f *ast.File, dir string, methods map[string]int) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv == nil {
			continue
		}
		typ := fn.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if generic, ok := typ.(*ast.IndexExpr); ok {
			typ = generic.X
		}
		if name, ok := typ.(*ast.Ident); ok {
			methods[filepath.Join(dir, name.Name)]++
		}
	}
}
