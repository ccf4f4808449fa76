// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
)

// maxSize bounds decoded data, in bytes; the API server accepts 10 KiB of opaque parameters, and policies are files of an admin.
const maxSize = 1 << 20

// decode decodes JSON of one kind. Unknown fields, duplicate fields and other kinds are errors; there may be several.
func decode(raw []byte, apiVersion, kind string, into any) error {
	if len(raw) > maxSize {
		return fmt.Errorf("%d bytes are more than %d", len(raw), maxSize)
	}
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		return fmt.Errorf("want a JSON object with apiVersion and kind: %w", err)
	}
	switch {
	case meta.APIVersion == "" || meta.Kind == "":
		return fmt.Errorf("set apiVersion and kind: apiVersion: %s, kind: %s", apiVersion, kind)
	case meta.APIVersion != apiVersion:
		return fmt.Errorf("unknown apiVersion %q of kind %q: want %s", meta.APIVersion, meta.Kind, apiVersion)
	case meta.Kind != kind:
		return fmt.Errorf("unknown kind %q in %s: want %s", meta.Kind, apiVersion, kind)
	}
	return decodeFields(raw, into)
}

// DecodeFields decodes JSON into a value by its json tags, for formats outside this API group. Unknown fields, duplicate fields and
// values of another type are errors. A field of type any accepts any value. The error is Problems, each with the field.
func DecodeFields(raw []byte, into any) error {
	if len(raw) > maxSize {
		return Problems{fmt.Errorf("%d bytes are more than %d", len(raw), maxSize)}
	}
	if err := decodeFields(raw, into); err != nil {
		return ProblemsOf(err)
	}
	return nil
}

func decodeFields(raw []byte, into any) error {
	// Duplicate fields must be detected before parsing: the tree has only the last one.
	var tree any
	if err := strictly(json.UnmarshalStrict(raw, &tree, json.DisallowDuplicateFields)); err != nil {
		return err
	}
	if err := checkTree(tree, reflect.TypeOf(into), nil).ToAggregate(); err != nil {
		return err
	}
	if err := strictly(json.UnmarshalStrict(raw, into)); err != nil {
		return err
	}
	return nil
}

// strictly joins the errors of json.UnmarshalStrict.
func strictly(strict []error, err error) error {
	if err != nil {
		return err
	}
	return utilerrors.NewAggregate(strict)
}

// quantity is the syntax of amounts. It bounds the exponent, because resource.ParseQuantity expands the number: it would never
// return from "1e999999999" by a claim's author.
var quantity = regexp.MustCompile(`^[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)

var quantityType = reflect.TypeFor[resource.Quantity]()

// checkTree rejects values that decoding would reject without naming the field, or not at all: values of another type, invalid
// quantities, and null in a list, which would become zero.
func checkTree(value any, t reflect.Type, path *field.Path) field.ErrorList {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil || t.Kind() == reflect.Interface {
		return nil
	}
	if t == quantityType {
		if !quantity.MatchString(fmt.Sprint(value)) {
			return field.ErrorList{field.Invalid(path, value, "must be a quantity such as 512Mi")}
		}
		return nil
	}
	want, got := kindOf(reflect.Zero(t).Interface()), kindOf(value)
	if want != got {
		why := fmt.Sprintf("must be %s, not %s", want, got)
		if want == aText {
			why += ": put it in quotes"
		}
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, why)}
	}
	var errs field.ErrorList
	switch value := value.(type) {
	case map[string]any:
		for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if member, ok := value[name]; ok && name != "" {
				errs = append(errs, checkTree(member, t.Field(i).Type, path.Child(name))...)
			}
		}
		if t.Kind() == reflect.Map {
			for _, key := range slices.Sorted(maps.Keys(value)) {
				errs = append(errs, checkTree(value[key], t.Elem(), path.Key(key))...)
			}
		}
	case []any:
		for i := range value {
			if value[i] == nil {
				errs = append(errs, field.Required(path.Index(i), "null is no value"))
				continue
			}
			errs = append(errs, checkTree(value[i], t.Elem(), path.Index(i))...)
		}
	case int64:
		if reflect.Zero(t).OverflowInt(value) {
			errs = append(errs, field.Invalid(path, value, "is out of range"))
		}
	}
	return errs
}

// Types of values, in words.
const (
	anObject = "an object"
	aList    = "a list"
	aText    = "text"
	aNumber  = "a whole number"
)

// kindOf is the type, in words, of a value in a JSON tree or of a field.
func kindOf(value any) string {
	switch reflect.TypeOf(value).Kind() {
	case reflect.Map, reflect.Struct:
		return anObject
	case reflect.Slice:
		return aList
	case reflect.String:
		return aText
	case reflect.Int64, reflect.Int32, reflect.Int:
		return aNumber
	case reflect.Bool:
		return "true or false"
	default:
		return fmt.Sprintf("the number %v", value) // with a fraction, or beyond 64 bits
	}
}

// oneOf rejects a value that is not in a list.
func oneOf[T ~string](path *field.Path, value T, known []T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}
