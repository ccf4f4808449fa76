// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"strings"
	"testing"
)

// fieldsBelow lists "Type.field" of a type and of those of its fields, as JSON names them.
func fieldsBelow(t reflect.Type, found map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		fieldsBelow(t.Elem(), found)
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if key := t.Name() + "." + name; name != "" && !found[key] {
				found[key] = true
				fieldsBelow(t.Field(i).Type, found)
			}
		}
	}
}

func TestNodePolicySchema_BoundsAreOfFields(t *testing.T) {
	found := map[string]bool{}
	fieldsBelow(reflect.TypeFor[NodePolicy](), found)
	for key := range bounds {
		if !found[key] {
			t.Errorf("%s is no field of a policy", key)
		}
	}
}

// TestNodePolicySchema_EveryTextIsBound finds text that is added to the API and that the schema would take as it comes.
func TestNodePolicySchema_EveryTextIsBound(t *testing.T) {
	var walk func(path string, s *Schema)
	walk = func(path string, s *Schema) {
		if len(s.Type) == 1 && s.Type[0] == "string" && s.Enum == nil && s.Pattern == "" {
			t.Errorf("%s may be any text", path)
		}
		for name, field := range s.Properties {
			walk(path+"."+name, field)
		}
		if s.Items != nil {
			walk(path+"[]", s.Items)
		}
		if values, ok := s.AdditionalProperties.(*Schema); ok {
			walk(path+"[]", values)
		}
	}
	walk("policy", NodePolicySchema())
}
