// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// hugeNumber is the text of a number with an exponent of three digits. resource.ParseQuantity writes numbers out: with 1e999999999 it
// would not come back.
var hugeNumber = regexp.MustCompile(`^[+-]?[0-9.]+[eE][+-]?[0-9]{3,}$`)

var quantityType = reflect.TypeFor[resource.Quantity]()

// CheckQuantities refuses JSON of an object with quantities that cannot be parsed in reasonable time. Other texts may look the same:
// 83e6123 is a tag of an image. Opaque parameters are checked by those who decode them.
func CheckQuantities(raw []byte, object any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return checkQuantities(decoder, reflect.TypeOf(object), nil)
}

// checkQuantities reads one value, token by token: of fields that are there twice each is decoded.
func checkQuantities(decoder *json.Decoder, t reflect.Type, at *field.Path) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface {
		var passedOver json.RawMessage // at once, however deep it nests
		return decoder.Decode(&passedOver)
	}
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		if text := fmt.Sprint(token); t == quantityType && hugeNumber.MatchString(strings.TrimSpace(text)) {
			return field.Invalid(at, text, "the number is out of bounds")
		}
		return nil
	}
	for i := 0; decoder.More(); i++ {
		var member reflect.Type // nil where nothing is decoded
		child := at
		switch {
		case open == '{':
			key, err := decoder.Token()
			if err != nil {
				return err
			}
			member, child = memberOf(t, fmt.Sprint(key), at)
		case t.Kind() == reflect.Slice:
			member, child = t.Elem(), at.Index(i)
		}
		if err := checkQuantities(decoder, member, child); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}

// memberOf is the type of a member of an object, with its path; nil where nothing is decoded. Upper and lower case are the same, as they
// are to encoding/json.
func memberOf(t reflect.Type, key string, at *field.Path) (reflect.Type, *field.Path) {
	if t.Kind() == reflect.Map {
		return t.Elem(), at.Key(key)
	}
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && strings.EqualFold(name, key) {
			return f.Type, at.Child(name)
		}
		if f.Anonymous && name == "" {
			if of, child := memberOf(f.Type, key, at); of != nil {
				return of, child
			}
		}
	}
	return nil, at
}
