// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// schedulingDir has the plugin GPUPacking of cleave-scheduler, programDir the others. They are read as text: linked, they would bring
// kube-scheduler.
const (
	schedulingDir = "pkg/scheduler/gpupacking"
	programDir    = "cmd/cleave-scheduler"
)

// scheduler writes the arguments, metrics and Events of the plugin.
func (p packages) scheduler(b *bytes.Buffer, root string) error {
	args := p.find(schedulingDir, "Args")
	if args == nil {
		return fmt.Errorf("there is no type Args in %s", schedulingDir)
	}
	b.WriteString("\n## cleave-scheduler\n\nThe plugin GPUPacking: [scheduler.md](scheduler.md).\n\n### Arguments\n\n" + args.Doc)
	p.fields(b, schedulingDir, args)
	rules := p.find(schedulingDir, "Rules")
	if rules == nil {
		return fmt.Errorf("there is no type Rules in %s", schedulingDir)
	}
	b.WriteString("\n### Arguments of DevicePreemption\n\n" + rules.Doc)
	p.fields(b, schedulingDir, rules)
	found, err := readPlugin(root)
	if err != nil {
		return err
	}
	b.WriteString("\n### Metrics of the scheduler\n\nServed at `/metrics` of port 10259, alongside those of kube-scheduler.\n\n" +
		"| metric | labels | what |\n| --- | --- | --- |\n" + strings.Join(found.metrics, ""))
	b.WriteString("\n| outcome of an attempt | what |\n| --- | --- |\n" + strings.Join(found.outcomes, ""))
	b.WriteString("\n### Events of the scheduler\n\n| reason | type | on | message |\n| --- | --- | --- | --- |\n")
	b.WriteString(strings.Join(found.events, ""))
	return nil
}

// pluginSource is what the plugin has, as rows of tables.
type pluginSource struct{ metrics, outcomes, events []string }

func readPlugin(root string) (*pluginSource, error) {
	p := &pluginSource{}
	for _, dir := range []string{schedulingDir, programDir} {
		if err := p.read(root, dir); err != nil {
			return nil, err
		}
	}
	if len(p.metrics) == 0 || len(p.outcomes) == 0 || len(p.events) == 0 {
		return nil, errors.New("the plugin of the scheduler has no metrics, outcomes or Events: has its source another form?")
	}
	return p, nil
}

// read adds what the sources of a directory have.
func (p *pluginSource) read(root, dir string) error {
	files, err := parseDir(root, dir)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				p.call(n)
			case *ast.ValueSpec:
				if dir == schedulingDir {
					p.outcome(n)
				}
			}
			return true
		})
	}
	return err
}

// parseDir parses the sources of a directory without its tests.
func parseDir(root, dir string) ([]*ast.File, error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("read the sources of %s: %w", dir, err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// outcome adds a constant that is a value of the label "outcome", with the comment after it.
func (p *pluginSource) outcome(s *ast.ValueSpec) {
	name := s.Names[0].Name
	if !strings.HasPrefix(name, "outcome") && !strings.HasPrefix(name, "passed") || len(s.Values) != 1 {
		return
	}
	if _, ok := s.Values[0].(*ast.BasicLit); ok {
		p.outcomes = append(p.outcomes, fmt.Sprintf("| `%s` | %s |\n", value(s.Values[0]), cell(s.Comment.Text())))
	}
}

// call adds the metric or the Event that a call is about.
func (p *pluginSource) call(c *ast.CallExpr) {
	selector, ok := c.Fun.(*ast.SelectorExpr)
	switch {
	case !ok:
	case selector.Sel.Name == "Eventf" && len(c.Args) > 5:
		kind, _ := c.Args[2].(*ast.SelectorExpr)
		on, _ := c.Args[0].(*ast.Ident)
		if kind != nil && on != nil {
			p.events = append(p.events, fmt.Sprintf("| `%s` | %s | %s | %s |\n",
				value(c.Args[3]), strings.TrimPrefix(kind.Sel.Name, "EventType"), on.Name, cell(placeholders.Replace(value(c.Args[5])))))
		}
	case len(c.Args) > 0:
		address, _ := c.Args[0].(*ast.UnaryExpr)
		if address == nil {
			return
		}
		if options, ok := address.X.(*ast.CompositeLit); ok {
			p.metric(options, c.Args[1:])
		}
	}
}

// placeholders are the verbs of messages.
var placeholders = strings.NewReplacer("%s", "…", "%v", "…", "%q", "…", "%d", "…")

// metric adds one by its options and labels.
func (p *pluginSource) metric(options *ast.CompositeLit, more []ast.Expr) {
	fields := map[string]string{}
	for _, e := range options.Elts {
		if field, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := field.Key.(*ast.Ident); ok {
				fields[key.Name] = value(field.Value)
			}
		}
	}
	if fields["Name"] == "" || fields["Help"] == "" {
		return
	}
	var labels []string
	for _, e := range more {
		if list, ok := e.(*ast.CompositeLit); ok {
			for _, label := range list.Elts {
				labels = append(labels, value(label))
			}
		}
	}
	name := fields["Subsystem"] + "_" + fields["Name"]
	p.metrics = append(p.metrics, fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.Join(labels, ", "), cell(fields["Help"])))
}
