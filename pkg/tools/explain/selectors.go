// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// identifier is the name of an attribute or capacity without its domain.
func identifier(name resourceapi.QualifiedName) string {
	return string(name[strings.LastIndexByte(string(name), '/')+1:])
}

type attributeMap = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// attributes are the names of attributes that expressions may look at.
type attributes struct {
	names map[string]bool
	all   bool
}

// addSelectors adds what selectors may look at.
func (a *attributes) addSelectors(cache *cel.Cache, selectors []resourceapi.DeviceSelector) {
	for _, s := range selectors {
		if s.CEL == nil {
			continue
		}
		names, all := mentioned(cache, s.CEL.Expression)
		a.all = a.all || all
		for _, name := range names {
			a.names[name] = true
		}
	}
}

// of are the attributes that are looked at.
func (a *attributes) of(all attributeMap) attributeMap {
	if a.all {
		return all
	}
	some := attributeMap{}
	for name, value := range all {
		if a.names[identifier(name)] {
			some[name] = value
		}
	}
	return some
}

// parse is the syntax tree of an expression; nil if it has none.
func parse(cache *cel.Cache, expression string) *celgo.Ast {
	compiled := cache.GetOrCompile(expression)
	if compiled.Error != nil || compiled.Environment == nil {
		return nil
	}
	tree, issues := compiled.Environment.Parse(expression)
	if issues.Err() != nil {
		return nil
	}
	return tree
}

// mentioned are the words of an expression that can be names of attributes, in order. all is set if it may look at attributes
// without naming them: by iteration, or by a name that it puts together.
func mentioned(cache *cel.Cache, expression string) (names []string, all bool) {
	tree := parse(cache, expression)
	if tree == nil {
		return nil, true
	}
	ast.PostOrderVisit(tree.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			names = append(names, e.AsSelect().FieldName())
		case ast.LiteralKind:
			if s, ok := e.AsLiteral().(types.String); ok {
				names = append(names, string(s), identifier(resourceapi.QualifiedName(s)))
			}
		case ast.ComprehensionKind:
			all = true
		case ast.CallKind:
			all = all || e.AsCall().FunctionName() == operators.Add
		default:
		}
	}))
	return names, all
}

// terms are the parts of an expression that have to be true, in order.
func terms(cache *cel.Cache, expression string) []string {
	tree := parse(cache, expression)
	if tree == nil {
		return []string{expression}
	}
	var parts []string
	var split func(e ast.Expr) bool
	split = func(e ast.Expr) bool {
		if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.LogicalAnd {
			return !slices.ContainsFunc(e.AsCall().Args(), func(e ast.Expr) bool { return !split(e) })
		}
		text, err := celgo.ExprToString(e, tree.NativeRep().SourceInfo())
		parts = append(parts, text)
		return err == nil
	}
	if !split(tree.NativeRep().Expr()) {
		return []string{expression}
	}
	return parts
}

// match is what an expression says of a device.
type match struct {
	ok  bool
	err error
}

// matches are what an expression says of the devices of a slice.
func (c *Cluster) matches(ctx context.Context, s *slice, expression string) []match {
	if known := s.content.selected[expression]; known != nil {
		return known
	}
	compiled := c.cel.GetOrCompile(expression)
	all := make([]match, len(s.Spec.Devices))
	for i := range s.Spec.Devices {
		if compiled.Error != nil {
			all[i].err = compiled.Error
			continue
		}
		d := &s.Spec.Devices[i]
		all[i].ok, _, all[i].err = compiled.DeviceMatches(ctx, cel.Device{Driver: s.Spec.Driver,
			AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity})
		all[i].ok = all[i].ok && all[i].err == nil
	}
	s.content.selected[expression] = all
	return all
}

// selects returns the first selector that a device does not match, or none.
func (c *Cluster) selects(ctx context.Context, s *slice, device int, selectors []resourceapi.DeviceSelector) (string, bool) {
	for _, sel := range selectors {
		if sel.CEL != nil && !c.matches(ctx, s, sel.CEL.Expression)[device].ok {
			return sel.CEL.Expression, false
		}
	}
	return "", true
}

// mismatch says which part of an expression refuses a device, and by which attributes.
func (c *Cluster) mismatch(ctx context.Context, s *slice, device int, of, expression string) *Mismatch {
	m := &Mismatch{Of: of, Expression: expression}
	parts := terms(c.cel, expression)
	for _, part := range parts {
		if c.matches(ctx, s, part)[device].ok {
			continue
		}
		if len(parts) > 1 {
			m.Part = part
		}
		d := &s.Spec.Devices[device]
		names, _ := mentioned(c.cel, part)
		for _, name := range names {
			value := valueOf(s.Spec.Driver, d, name)
			if value != "" && !slices.ContainsFunc(m.Attributes, func(v Values) bool { return v.Name == name }) {
				m.Attributes = append(m.Attributes, Values{Name: name, Values: []string{value}})
			}
		}
		break
	}
	return m
}

// valueOf is an attribute or capacity of a device for people; empty if it has none.
func valueOf(driver string, d *resourceapi.Device, name string) string {
	for _, key := range []resourceapi.QualifiedName{resourceapi.QualifiedName(name), resourceapi.QualifiedName(driver + "/" + name)} {
		if c, ok := d.Capacity[key]; ok {
			return c.Value.String()
		}
	}
	for _, key := range sortedNames(d.Attributes) {
		if identifier(key) != name {
			continue
		}
		if a := d.Attributes[key]; a.StringValue != nil {
			return fmt.Sprintf("%q", *a.StringValue)
		}
		return inspect.AttributeText(d.Attributes[key])
	}
	return ""
}
