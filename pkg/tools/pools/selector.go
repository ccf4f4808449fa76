// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// maxAnswers bounds what is remembered of all expressions, some 20 MB: one that names UUIDs has an answer for each device, and
// whoever may create claims may name them.
const maxAnswers = 100_000

// answers are what expressions say of devices.
type answers map[answerKey]bool

// answerKey is an expression, and what a device has of all that it looks at.
type answerKey struct {
	selector *selector
	device   string
}

// selector is a CEL expression.
type selector struct {
	compiled cel.CompilationResult
	// names are the attributes and capacities that the expression looks at. Not known means that it may look at all.
	names []name
	known bool
}

// name is "attributes" or "capacity", the domain and the identifier.
type name struct{ kind, domain, id string }

// Attributes are the attributes, without domain, that a Node or one of the selectors looks at. All is set where they may look at
// any. Others can be left out of slices that are kept.
func (c *Cache) Attributes(expressions ...string) (identifiers []string, all bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	identifiers = []string{"profile", "type", "parentUUID", "nvlinkGroup"}
	for _, standard := range []resourceapi.QualifiedName{numaNode, deviceattribute.StandardDeviceAttributePCIBusID} {
		identifiers = append(identifiers, string(standard[strings.LastIndexByte(string(standard), '/')+1:]))
	}
	for _, e := range expressions {
		s, err := c.selector(e)
		if err != nil {
			continue // it selects nothing
		}
		if !s.known {
			return nil, true
		}
		for _, n := range s.names {
			if !slices.Contains(identifiers, n.id) {
				identifiers = append(identifiers, n.id)
			}
		}
	}
	return identifiers, false
}

// selector compiles an expression once.
func (c *Cache) selector(expression string) (*selector, error) {
	if s, ok := c.selectors[expression]; ok {
		return s, nil
	}
	s := &selector{compiled: c.cel.GetOrCompile(expression)}
	if s.compiled.Error != nil {
		return nil, fmt.Errorf("compile selector %q: %w", expression, s.compiled.Error)
	}
	if parsed, issues := s.compiled.Environment.Compile(expression); issues == nil {
		s.known = s.collect(parsed.NativeRep().Expr())
	}
	if len(c.selectors) >= maxExpressions {
		clear(c.selectors)
		clear(c.answers)
	}
	c.selectors[expression] = s
	return s, nil
}

// matches evaluates the expression, unless the answer is known of a device that is equal in all that it looks at.
func (s *selector) matches(ctx context.Context, all answers, driver string, d *resourceapi.Device) (bool, error) {
	key := answerKey{selector: s}
	if s.known {
		key.device = s.key(driver, d)
		if answer, ok := all[key]; ok {
			return answer, nil
		}
	}
	answer, _, err := s.compiled.DeviceMatches(ctx, cel.Device{
		Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil || !s.known {
		return answer, err
	}
	if len(all) >= maxAnswers {
		clear(all)
	}
	all[key] = answer
	return answer, nil
}

// key is what a device has of all that the expression looks at.
func (s *selector) key(driver string, d *resourceapi.Device) string {
	var b strings.Builder
	b.WriteString(driver)
	b.WriteString(strconv.FormatBool(d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations))
	for _, n := range s.names {
		b.WriteByte(0xff) // in no attribute: they are UTF-8
		qualified := resourceapi.QualifiedName(n.domain + "/" + n.id)
		short := resourceapi.QualifiedName(n.id)
		if n.kind == capacityField {
			c, ok := d.Capacity[qualified]
			if !ok && n.domain == driver {
				c, ok = d.Capacity[short]
			}
			if ok {
				b.WriteString(c.Value.String())
			}
			continue
		}
		a, ok := d.Attributes[qualified]
		if !ok && n.domain == driver {
			a, ok = d.Attributes[short]
		}
		if ok {
			writeValue(&b, &a)
		}
	}
	return b.String()
}

// writeValue writes the type and value of an attribute.
func writeValue(b *strings.Builder, a *resourceapi.DeviceAttribute) {
	switch {
	case a.StringValue != nil:
		b.WriteString("s" + *a.StringValue)
	case a.IntValue != nil:
		b.WriteString("i" + strconv.FormatInt(*a.IntValue, 10))
	case a.BoolValue != nil:
		b.WriteString("b" + strconv.FormatBool(*a.BoolValue))
	case a.VersionValue != nil:
		b.WriteString("v" + *a.VersionValue)
	default:
		fmt.Fprintf(b, "l%q%v%v%q", a.StringValues, a.IntValues, a.BoolValues, a.VersionValues)
	}
}

// Fields of "device" in expressions.
const (
	deviceVariable  = "device"
	attributesField = "attributes"
	capacityField   = "capacity"
)

// collect notes the names in an expression. It reports whether there is nothing but such names, the driver's, and whether the
// device is shared: anything else may look at all there is.
func (s *selector) collect(e celast.Expr) bool {
	if n, ok := nameOf(e); ok {
		if !slices.Contains(s.names, n) {
			s.names = append(s.names, n)
		}
		return true
	}
	switch e.Kind() {
	case celast.LiteralKind, celast.UnspecifiedExprKind:
		return true
	case celast.IdentKind:
		return e.AsIdent() != deviceVariable
	case celast.SelectKind:
		o := e.AsSelect()
		if o.Operand().Kind() == celast.IdentKind && o.Operand().AsIdent() == deviceVariable {
			return o.FieldName() == "driver" || o.FieldName() == "allowMultipleAllocations"
		}
		return s.collect(o.Operand())
	case celast.CallKind:
		call := e.AsCall()
		return (!call.IsMemberFunction() || s.collect(call.Target())) && s.collectAll(call.Args())
	case celast.ListKind:
		return s.collectAll(e.AsList().Elements())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		return s.collectAll([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	default:
		return false
	}
}

func (s *selector) collectAll(all []celast.Expr) bool {
	for _, e := range all {
		if !s.collect(e) {
			return false
		}
	}
	return true
}

// nameOf is the name that device.attributes["domain"].id or a variant of it is about.
func nameOf(e celast.Expr) (name, bool) {
	inner, id, ok := step(e)
	if !ok {
		return name{}, false
	}
	outer, domain, ok := step(inner)
	if !ok {
		return name{}, false
	}
	device, kind, ok := step(outer)
	if !ok || device.Kind() != celast.IdentKind || device.AsIdent() != deviceVariable || kind != attributesField && kind != capacityField {
		return name{}, false
	}
	return name{kind, domain, id}, true
}

// step is one field or index with a constant, and what it is of.
func step(e celast.Expr) (of celast.Expr, key string, ok bool) {
	switch e.Kind() {
	case celast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case celast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return nil, "", false
		}
		if len(call.Args()) != 2 || call.Args()[1].Kind() != celast.LiteralKind {
			return nil, "", false
		}
		key, ok = call.Args()[1].AsLiteral().Value().(string)
		return call.Args()[0], key, ok
	default:
		return nil, "", false
	}
}
