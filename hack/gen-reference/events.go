// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// eventDirs have what writes the Events of the plugin. They are read as text: only that says which objects an Event is on.
var eventDirs = []string{"pkg/driver/controller", "pkg/driver/plugin"}

// events writes those of the plugin.
func events(b *bytes.Buffer, root string) error {
	source := &eventSource{constants: map[string]*ast.ValueSpec{}, events: map[string]*event{}}
	for _, dir := range eventDirs {
		if err := source.parse(root, dir); err != nil {
			return err
		}
	}
	for _, f := range source.functions {
		source.function(f)
	}
	if len(source.events) == 0 {
		source.errs = append(source.errs, errors.New("the plugin has no Events: has its source another form?"))
	}
	b.WriteString("\n## Events of the plugin\n\n" +
		"`kubectl get events -A --field-selector reason=GPUConflict`, or `kubectl describe` of the object:\n" +
		"a claim is a ResourceClaim, the pods are those that use it, the DaemonSet is that of the plugin. The message and\n" +
		"[troubleshooting.md](troubleshooting.md) have the remedy.\n\n" +
		"| reason | type | on | what |\n| --- | --- | --- | --- |\n")
	for _, reason := range slices.Sorted(maps.Keys(source.events)) {
		e := source.events[reason]
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", reason, strings.Join(e.types, ", "), strings.Join(e.on, ", "), cell(e.what))
	}
	return errors.Join(source.errs...)
}

// event is what the table has of a reason.
type event struct {
	what      string
	types, on []string
}

// written is the use of a reason for an Event.
type written struct {
	reason  ast.Expr
	warning bool
	on      []string
}

// eventSource is what was found in the source.
type eventSource struct {
	// constants are those for reasons, by name.
	constants map[string]*ast.ValueSpec
	functions []*ast.FuncDecl
	events    map[string]*event
	errs      []error
}

func (s *eventSource) parse(root, dir string) error {
	files, err := parseDir(root, dir)
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				s.functions = append(s.functions, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					s.constant(d.Tok, spec)
				}
			}
		}
	}
	return err
}

// constant notes one for a reason.
func (s *eventSource) constant(of token.Token, spec ast.Spec) {
	v, ok := spec.(*ast.ValueSpec)
	if !ok || of != token.CONST || !isReason(v.Names[0].Name) {
		return
	}
	name := v.Names[0].Name
	if s.constants[name] != nil {
		s.errs = append(s.errs, fmt.Errorf("two constants are called %s", name))
	}
	s.constants[name] = v
}

// isReason reports whether a name is that of a constant for a reason.
func isReason(name string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(name), "reason")
	return ok && rest != ""
}

// function adds the Events that a function writes. A variable stands for all other reasons that the function mentions.
func (s *eventSource) function(f *ast.FuncDecl) {
	var uses, variable []written
	direct := map[string]bool{}
	mentioned := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		uses = append(uses, writes(n)...)
		if id, ok := n.(*ast.Ident); ok && s.constants[id.Name] != nil {
			mentioned[id.Name] = true
		}
		return true
	})
	for _, use := range uses {
		name := constantOf(use.reason)
		switch id, _ := use.reason.(*ast.Ident); {
		case s.constants[name] != nil:
			direct[name] = true
			s.add(name, use)
		case name == "Reason" || name == "reason" && id == nil: // a field: of what was added where it was set
		case id != nil:
			variable = append(variable, use)
		default:
			s.errs = append(s.errs, fmt.Errorf("%s writes an Event whose reason is no constant: name it reason…", f.Name.Name))
		}
	}
	for _, use := range variable {
		of := slices.DeleteFunc(slices.Sorted(maps.Keys(mentioned)), func(name string) bool { return direct[name] })
		if len(of) == 0 {
			s.errs = append(s.errs, fmt.Errorf("%s writes an Event, and mentions no constant for its reason", f.Name.Name))
		}
		for _, name := range of {
			s.add(name, use)
		}
	}
}

// add adds what is written to the Event of a constant.
func (s *eventSource) add(name string, use written) {
	c := s.constants[name]
	reason, what := value(c.Values[0]), strings.TrimSpace(c.Comment.Text())
	if what == "" {
		s.errs = append(s.errs, fmt.Errorf("%s has no comment after it that says what has happened", name))
	}
	if s.events[reason] == nil {
		s.events[reason] = &event{what: what}
	}
	e, kind := s.events[reason], "Normal"
	if use.warning {
		kind = "Warning"
	}
	for _, one := range use.on {
		if !slices.Contains(e.on, one) {
			e.on = append(e.on, one)
		}
	}
	if !slices.Contains(e.types, kind) {
		e.types = append(e.types, kind)
	}
}

// constantOf is the name of a constant or a field, of this package or another.
func constantOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	default:
		return ""
	}
}

// claimAndPods are the objects of what claimEvents queues.
var claimAndPods = []string{"claim", "pods"}

// writes are the Events that a node of the source writes, or sets the reason of.
func writes(n ast.Node) []written {
	switch n := n.(type) {
	case *ast.CompositeLit:
		return literal(n)
	case *ast.AssignStmt:
		return assignment(n)
	case *ast.CallExpr:
		return call(n)
	default:
		return nil
	}
}

// literal is a controller's Report, or a warning of claimEvents.
func literal(l *ast.CompositeLit) []written {
	fields := map[string]ast.Expr{}
	for _, e := range l.Elts {
		if field, ok := e.(*ast.KeyValueExpr); ok {
			fields[constantOf(field.Key)] = field.Value
		}
	}
	switch kind := constantOf(l.Type); {
	case kind == "Report" && fields["Reason"] != nil:
		return []written{{fields["Reason"], fields["Warning"] != nil, []string{"node"}}}
	case kind == "warning" && fields["reason"] != nil:
		return []written{{fields["reason"], fields["note"] == nil, claimAndPods}}
	default:
		return nil
	}
}

// assignment is one to the field of a Report or a warning.
func assignment(a *ast.AssignStmt) (all []written) {
	if len(a.Lhs) != len(a.Rhs) {
		return nil
	}
	warning := slices.ContainsFunc(a.Lhs, func(to ast.Expr) bool { return constantOf(to) == "Warning" })
	for i, to := range a.Lhs {
		if _, ok := to.(*ast.SelectorExpr); !ok {
			continue
		}
		switch constantOf(to) {
		case "Reason":
			all = append(all, written{a.Rhs[i], warning, []string{"node"}})
		case "reason":
			all = append(all, written{a.Rhs[i], true, claimAndPods})
		}
	}
	return all
}

// call is one of a method of cluster.Events, or of cluster.WarnOnce.
func call(c *ast.CallExpr) []written {
	method, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	name := method.Sel.Name
	switch warning := strings.HasPrefix(name, "Warn"); {
	case (name == "Warn" || name == "Note") && len(c.Args) == 2:
		return []written{{c.Args[0], warning, []string{"node"}}}
	case (name == "WarnClaim" || name == "NoteClaim") && len(c.Args) == 3:
		return []written{{c.Args[1], warning, []string{"claim"}}}
	case name == "WarnOnce" && len(c.Args) == 6:
		return []written{{c.Args[4], warning, []string{constantOf(c.Args[3])}}}
	default:
		return nil
	}
}
