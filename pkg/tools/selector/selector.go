// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	celgo "github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Bounds of the cache; beyond them, expressions are evaluated again. Answers take some 20 MB: an expression that names UUIDs has one
// for each device, and anyone who may create claims may name them.
const (
	maxExpressions = 1000
	maxAnswers     = 100_000
)

// Cache evaluates CEL expressions, each once for all devices that are equal in the parts it looks at. Safe for concurrent use.
type Cache struct {
	// CEL has the compiled expressions, for the allocator.
	CEL     *cel.Cache
	mutex   sync.Mutex
	known   map[string]*Selector
	answers map[answerKey]bool
}

// answerKey is an expression, with the device's values of everything it looks at.
type answerKey struct {
	selector *Selector
	device   string
}

// NewCache creates an empty cache.
func NewCache() *Cache {
	return &Cache{
		CEL:   cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true}),
		known: map[string]*Selector{}, answers: map[answerKey]bool{},
	}
}

// Selector is a CEL expression.
type Selector struct {
	of         *Cache
	expression string
	compiled   cel.CompilationResult
	tree       *celgo.Ast
	// names are the attributes and capacities that the expression looks at. If exact is not set, it may look at any others.
	names []name
	exact bool
	// words can be names of attributes and capacities, in order.
	words []string
}

// name is "attributes" or "capacity", the domain and the identifier.
type name struct{ kind, domain, id string }

// Compile compiles expressions, each once.
func (c *Cache) Compile(expressions ...string) ([]*Selector, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	all := make([]*Selector, 0, len(expressions))
	for _, e := range expressions {
		s := c.known[e]
		if s == nil {
			s = &Selector{of: c, expression: e, compiled: c.CEL.GetOrCompile(e)}
			if s.compiled.Error != nil {
				return nil, fmt.Errorf("compile selector %q: %w", e, s.compiled.Error)
			}
			if tree, issues := s.compiled.Environment.Parse(e); issues.Err() == nil {
				s.tree, s.exact = tree, s.collect(tree.NativeRep().Expr())
			}
			if len(c.known) >= maxExpressions {
				clear(c.known)
				clear(c.answers)
			}
			c.known[e] = s
		}
		all = append(all, s)
	}
	return all, nil
}

// AddTo adds what selectors may look at to attributes.
func (c *Cache) AddTo(a *resourcepool.Attributes, all []resourceapi.DeviceSelector) {
	for _, s := range all {
		if s.CEL == nil {
			continue
		}
		compiled, err := c.Compile(s.CEL.Expression)
		if err != nil {
			continue // it selects nothing
		}
		if !compiled[0].exact {
			a.AddAll()
		}
		for _, n := range compiled[0].names {
			a.Add(n.id)
		}
	}
}

// MatchAll evaluates selectors in order, as the allocator does: one that fails hides the errors of those after it.
func MatchAll(ctx context.Context, all []*Selector, driver string, d *resourceapi.Device) (bool, error) {
	for _, s := range all {
		if ok, err := s.matches(ctx, driver, d); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// matches evaluates the expression, unless the answer for a device with the same key is known.
func (s *Selector) matches(ctx context.Context, driver string, d *resourceapi.Device) (bool, error) {
	s.of.mutex.Lock()
	defer s.of.mutex.Unlock()
	key := answerKey{selector: s}
	if s.exact {
		key.device = s.key(driver, d)
		if answer, ok := s.of.answers[key]; ok {
			return answer, nil
		}
	}
	answer, _, err := s.compiled.DeviceMatches(ctx, cel.Device{
		Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil || !s.exact {
		return answer && err == nil, err
	}
	if len(s.of.answers) >= maxAnswers {
		clear(s.of.answers)
	}
	s.of.answers[key] = answer
	return answer, nil
}

// Words can be names of the attributes and capacities that the expression looks at, without domains, in order.
func (s *Selector) Words() []string { return s.words }

// Reads are the names of the attributes and capacities that the expression certainly looks at, as "domain/name", in order.
func (s *Selector) Reads() (attributes, capacities []string) {
	for _, n := range s.names {
		if n.kind == capacityField {
			capacities = append(capacities, n.domain+"/"+n.id)
		} else {
			attributes = append(attributes, n.domain+"/"+n.id)
		}
	}
	return attributes, capacities
}

// Terms are the parts of the expression that all have to be true, in order.
func (s *Selector) Terms() []string {
	var parts []string
	var split func(e celast.Expr) bool
	split = func(e celast.Expr) bool {
		if e.Kind() == celast.CallKind && e.AsCall().FunctionName() == operators.LogicalAnd {
			return !slices.ContainsFunc(e.AsCall().Args(), func(e celast.Expr) bool { return !split(e) })
		}
		text, err := celgo.ExprToString(e, s.tree.NativeRep().SourceInfo())
		parts = append(parts, text)
		return err == nil
	}
	if s.tree == nil || !split(s.tree.NativeRep().Expr()) {
		return []string{s.expression}
	}
	return parts
}

// key encodes the device's values of everything that the expression looks at.
func (s *Selector) key(driver string, d *resourceapi.Device) string {
	var b strings.Builder
	b.WriteString(driver)
	b.WriteString(strconv.FormatBool(resourcepool.IsShared(d)))
	for _, n := range s.names {
		b.WriteByte(0xff) // in no value: they are UTF-8
		if n.kind == capacityField {
			if c, ok := resourcepool.ValueOf(d.Capacity, driver, n.domain, n.id); ok {
				b.WriteString(c.Value.String())
			}
		} else if a, ok := resourcepool.ValueOf(d.Attributes, driver, n.domain, n.id); ok {
			resourcepool.WriteValue(&b, &a)
		}
	}
	return b.String()
}

// Fields of "device" in expressions.
const (
	deviceVariable  = "device"
	attributesField = "attributes"
	capacityField   = "capacity"
)

// collect notes the names in an expression. It reports whether there is nothing but such names, the driver's, and whether the
// device is shared: anything else may look at all there is.
func (s *Selector) collect(e celast.Expr) bool {
	if n, ok := nameOf(e); ok {
		if !slices.Contains(s.names, n) {
			s.names = append(s.names, n)
		}
		s.words = append(s.words, n.id)
		return true
	}
	switch e.Kind() {
	case celast.LiteralKind:
		if text, ok := e.AsLiteral().Value().(string); ok {
			s.words = append(s.words, resourcepool.Identifier(text))
		}
		return true
	case celast.UnspecifiedExprKind:
		return true
	case celast.IdentKind:
		return e.AsIdent() != deviceVariable
	case celast.SelectKind:
		o := e.AsSelect()
		if o.Operand().Kind() == celast.IdentKind && o.Operand().AsIdent() == deviceVariable {
			return o.FieldName() == "driver" || o.FieldName() == "allowMultipleAllocations"
		}
		exact := s.collect(o.Operand())
		s.words = append(s.words, o.FieldName())
		return exact
	case celast.CallKind:
		call := e.AsCall()
		exact := !call.IsMemberFunction() || s.collect(call.Target())
		return s.collectAll(call.Args()) && exact
	case celast.ListKind:
		return s.collectAll(e.AsList().Elements())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		return s.collectAll([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	default:
		return false
	}
}

func (s *Selector) collectAll(all []celast.Expr) bool {
	exact := true
	for _, e := range all {
		exact = s.collect(e) && exact
	}
	return exact
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

// step splits off the last field or constant index of an expression.
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
