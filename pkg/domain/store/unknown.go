// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// Fields that a later release has written and this one does not know are preserved when it rewrites the file: a node may be
// rolled back to the previous release, and then updated again.

// unknownIn returns the parts of a JSON value that a type has no fields for: maps by field, and lists with an entry for each
// element; nil if the type has a field for everything.
func unknownIn(value any, t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		unknown := map[string]any{}
		known := map[string]reflect.Type{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			known[name] = t.Field(i).Type
		}
		for name, member := range value {
			if of, ok := known[name]; !ok {
				unknown[name] = member
			} else if inner := unknownIn(member, of); inner != nil {
				unknown[name] = inner
			}
		}
		if len(unknown) > 0 {
			return unknown
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		unknown, found := make([]any, len(value)), false
		for i := range value {
			unknown[i] = unknownIn(value[i], t.Elem())
			found = found || unknown[i] != nil
		}
		if found {
			return unknown
		}
	}
	return nil
}

// addUnknown puts fields back where they were. Fields of objects that no longer exist are dropped.
func addUnknown(value, unknown any) {
	switch value := value.(type) {
	case map[string]any:
		fields, _ := unknown.(map[string]any)
		for name, member := range fields {
			if there, ok := value[name]; ok {
				addUnknown(there, member)
			} else {
				value[name] = member
			}
		}
	case []any:
		if list, _ := unknown.([]any); len(list) == len(value) {
			for i := range value {
				addUnknown(value[i], list[i])
			}
		}
	}
}

// unknownFields returns the fields of a document that its type does not define.
func unknownFields(data []byte, doc any) (any, error) {
	tree, err := decodeTree(data)
	if err != nil {
		return nil, err
	}
	return unknownIn(tree, reflect.TypeOf(doc)), nil
}

// withUnknown encodes a document together with the fields that its type does not define.
func withUnknown(doc, unknown any) ([]byte, error) {
	data, err := json.Marshal(doc)
	if err != nil || unknown == nil {
		return data, err
	}
	tree, err := decodeTree(data)
	if err != nil {
		return nil, err
	}
	addUnknown(tree, unknown)
	return json.Marshal(tree)
}

// decodeTree preserves numbers as written.
func decodeTree(data []byte) (tree any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return tree, d.Decode(&tree)
}
