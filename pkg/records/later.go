// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Fields that a later release has written and this one does not know are kept when it writes the file again: a node may be
// taken back to the release before, and then forward again.

// laterFields is the part of a JSON object that a type has no fields for: maps by field, and lists with an entry for each
// element. nil where the type has a field for everything.
func laterFields(value any, t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		later := map[string]any{}
		known := map[string]reflect.Type{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			known[name] = t.Field(i).Type
		}
		for name, member := range value {
			if of, ok := known[name]; !ok {
				later[name] = member
			} else if inner := laterFields(member, of); inner != nil {
				later[name] = inner
			}
		}
		if len(later) > 0 {
			return later
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		later, found := make([]any, len(value)), false
		for i := range value {
			later[i] = laterFields(value[i], t.Elem())
			found = found || later[i] != nil
		}
		if found {
			return later
		}
	}
	return nil
}

// addLater puts fields back where they were. What is not there any more takes its fields with it.
func addLater(value, later any) {
	switch value := value.(type) {
	case map[string]any:
		fields, _ := later.(map[string]any)
		for name, member := range fields {
			if there, ok := value[name]; ok {
				addLater(there, member)
			} else {
				value[name] = member
			}
		}
	case []any:
		if list, _ := later.([]any); len(list) == len(value) {
			for i := range value {
				addLater(value[i], list[i])
			}
		}
	}
}

// decodeLater reads a file into a value and returns the fields it has no place for.
func decodeLater(data []byte, into any) (later any, err error) {
	if err := json.Unmarshal(data, into); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	tree, err := decodeTree(data)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return laterFields(tree, reflect.TypeOf(into)), nil
}

// encodeLater writes a value with the fields that it has no place for.
func encodeLater(value, later any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil || later == nil {
		return data, err
	}
	tree, err := decodeTree(data)
	if err != nil {
		return nil, err
	}
	addLater(tree, later)
	return json.Marshal(tree)
}

// decodeTree keeps numbers as they are written.
func decodeTree(data []byte) (tree any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return tree, d.Decode(&tree)
}
