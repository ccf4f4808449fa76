// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// packages are the sources whose comments are part of the reference, by directory.
type packages map[string]*doc.Package

func readPackages(root string) (packages, error) {
	all := packages{}
	for _, dir := range []string{"api/v1alpha1", "pkg/domain/nodeslices", schedulingDir} {
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(names) == 0 {
			return nil, errors.Join(fmt.Errorf("read the sources of %s: %d files", dir, len(names)), err)
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				return nil, fmt.Errorf("parse %s: %w", name, err)
			}
			files = append(files, f)
		}
		if all[dir], err = doc.NewFromFiles(fset, files, "github.com/cleave-dra/cleave/"+dir); err != nil {
			return nil, fmt.Errorf("read the comments of %s: %w", dir, err)
		}
	}
	return all, nil
}

// constants writes those of directories that are names in Cleave's domain and have a word in their own, with their comments.
func (p packages) constants(b *bytes.Buffer, title, word string, dirs ...string) {
	fmt.Fprintf(b, "\n## %s\n\n| key | what |\n| --- | --- |\n", title)
	for _, dir := range dirs {
		for _, group := range p[dir].Consts {
			rows(b, group, word)
		}
	}
}

// rows writes the constants of a group.
func rows(b *bytes.Buffer, group *doc.Value, word string) {
	for _, spec := range group.Decl.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || !strings.Contains(v.Names[0].Name, word) || len(v.Values) == 0 {
			continue
		}
		key := value(v.Values[0])
		if !strings.HasPrefix(key, v1alpha1.Group+"/") {
			continue
		}
		text := v.Doc.Text()
		if text == "" {
			text = group.Doc
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", key, cell(describe(v.Names[0].Name, text)))
	}
}

// value is what a constant's expression says; names of the API group stand for it.
func value(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
		return e.Value
	case *ast.BinaryExpr:
		return value(e.X) + value(e.Y)
	case *ast.Ident, *ast.SelectorExpr:
		return "gpu.cleave.dev"
	default:
		return fmt.Sprintf("%T", e)
	}
}

// describe drops the name that Go's comments begin with.
func describe(name, text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, verb := range []string{" is ", " are ", " "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			return rest
		}
	}
	return text
}

// kinds writes the fields of kinds and of all types below them, each type once.
func (p packages) kinds(b *bytes.Buffer, dir string, names ...string) error {
	var seen []string
	for _, name := range names {
		var err error
		if seen, err = p.kind(b, dir, name, seen); err != nil {
			return err
		}
	}
	return nil
}

// kind writes one, but for types that were seen.
func (p packages) kind(b *bytes.Buffer, dir, name string, before []string) (seen []string, err error) {
	fmt.Fprintf(b, "\n## %s (`gpu.cleave.dev/v1alpha1`)\n", name)
	seen = append(slices.Clone(before), name)
	for i := len(before); i < len(seen); i++ {
		t := p.find(dir, seen[i])
		if t == nil {
			return nil, fmt.Errorf("there is no type %s in %s", seen[i], dir)
		}
		if seen[i] != name {
			fmt.Fprintf(b, "\n### %s\n", seen[i])
		}
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(t.Doc))
		for _, inner := range p.fields(b, dir, t) {
			if !slices.Contains(seen, inner) {
				seen = append(seen, inner)
			}
		}
	}
	return seen, nil
}

func (p packages) find(dir, name string) *doc.Type {
	for _, t := range p[dir].Types {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// values lists the values of a named text, with their documented meaning.
func values(b *bytes.Buffer, t *doc.Type) {
	if t.Name == "PartitionAttribute" { // no constants: the table of attributes has their meaning
		b.WriteString("\nOne of these [attributes](#attributes-of-devices):\n\n")
		for _, name := range v1alpha1.PartitionAttributes() {
			fmt.Fprintf(b, "- `%s`\n", name)
		}
		return
	}
	b.WriteString("\nOne of:\n\n")
	for _, group := range t.Consts {
		for _, s := range group.Decl.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok || len(v.Values) == 0 {
				continue
			}
			fmt.Fprintf(b, "- `%s`", value(v.Values[0]))
			if text := describe(v.Names[0].Name, v.Doc.Text()); text != "" {
				fmt.Fprintf(b, ": %s", text)
			}
			b.WriteString("\n")
		}
	}
}

// fields writes a table of a struct's fields, or of the values of a named text, and returns the types below it.
func (p packages) fields(b *bytes.Buffer, dir string, t *doc.Type) (inner []string) {
	spec, ok := t.Decl.Specs[0].(*ast.TypeSpec)
	if !ok {
		return nil
	}
	of, ok := spec.Type.(*ast.StructType)
	if !ok {
		values(b, t)
		return nil
	}
	b.WriteString("\n| field | type | what |\n| --- | --- | --- |\n")
	text := ""
	for _, f := range of.Fields.List {
		if f.Tag == nil || len(f.Names) == 0 {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		word, link := typeName(f.Type)
		if p.find(dir, link) != nil {
			inner = append(inner, link)
			word = strings.Replace(word, link, "["+link+"](#"+strings.ToLower(link)+")", 1)
		}
		if own := f.Doc.Text(); own != "" {
			text = own // a comment may be for the fields after it, too
		} else if !strings.Contains(text, f.Names[0].Name) {
			text = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, word, cell(describe(f.Names[0].Name, text)))
	}
	return inner
}

// typeName words a field's type, and names the type of the package in it.
func typeName(e ast.Expr) (word, link string) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ArrayType:
		word, link = typeName(e.Elt)
		return "list of " + word, link
	case *ast.MapType:
		word, link = typeName(e.Value)
		return "map to " + word, link
	case *ast.SelectorExpr:
		return strings.ToLower(e.Sel.Name), ""
	case *ast.Ident:
		return e.Name, e.Name
	default:
		return "", ""
	}
}
