// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// Fields that a later release has written and this one does not know are kept when it writes the file again: a node may be
// rolled back to the release before, and then updated again.

// unknownIn is the part of a JSON object that a type has no fields for: maps by field, and lists with an entry for each
// element. nil where the type has a field for everything.
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

// addUnknown puts fields back where they were. What is not there any more takes its fields with it.
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

// unknownFields are those of a document that its type has no place for.
func unknownFields(data []byte, doc any) (any, error) {
	tree, err := decodeTree(data)
	if err != nil {
		return nil, err
	}
	return unknownIn(tree, reflect.TypeOf(doc)), nil
}

// withUnknown encodes a document with the fields that its type has no place for.
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

// decodeTree keeps numbers as they are written.
func decodeTree(data []byte) (tree any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return tree, d.Decode(&tree)
}
