// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// decode reads a file's one document strictly. The error is v1alpha1.Problems, each with the field.
func decode(data []byte, into any) error {
	documents, err := v1alpha1.Documents(data)
	switch {
	case err != nil:
		return v1alpha1.Problems{err}
	case len(documents) == 0:
		return v1alpha1.Problems{errEmpty}
	case len(documents) > 1:
		return v1alpha1.Problems{fmt.Errorf("there are several documents, the second at line %d: import each alone", documents[1].Line)}
	case documents[0].Err != nil && bytes.Contains(data, []byte("{{")):
		return v1alpha1.Problems{fmt.Errorf("it is a template of a Helm chart, which helm template fills: %w", documents[0].Err)}
	case documents[0].Err != nil:
		return v1alpha1.Problems{documents[0].Err}
	}
	raw := documents[0].JSON
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil || object == nil {
		return v1alpha1.Problems{errors.New("want an object with version: v1")}
	}
	if _, kubernetes := object["apiVersion"]; kubernetes {
		return v1alpha1.Problems{errors.New("apiVersion: it is a Kubernetes object, of which only a ConfigMap can be imported")}
	}
	if is := otherFile(object); is != "" {
		return v1alpha1.Problems{errors.New(is)}
	}
	err = v1alpha1.DecodeFields(raw, into)
	if err == nil {
		return nil
	}
	var problems v1alpha1.Problems
	known := fieldsOf(reflect.TypeOf(into), "")
	for _, problem := range v1alpha1.ProblemsOf(err) {
		problems = append(problems, hinted(problem, known))
	}
	return problems
}

// otherFile says what a file is that is often taken for a configuration, by its keys, and what to import; empty for others.
func otherFile(object map[string]json.RawMessage) string {
	has := func(key string) bool { _, ok := object[key]; return ok }
	switch {
	case has("devicePlugin") || has("migManager"):
		return "they are values of the GPU operator's Helm chart: import the ConfigMap that devicePlugin.config.name or " +
			"migManager.config.name names"
	case has("config") && !has("version"):
		return "they are values of the device plugin's Helm chart: import each entry of config.map as a file of its own"
	case has("items") || has("kind") || has("metadata"):
		return "it is a Kubernetes object without apiVersion: a ConfigMap has apiVersion: v1"
	}
	return ""
}

// fieldsOf lists the paths of all fields of a type, lists without their indexes.
func fieldsOf(t reflect.Type, front string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var fields []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(front+"."+name, ".")
		fields = append(append(fields, path), fieldsOf(f.Type, path)...)
	}
	return fields
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// hinted adds to an unknown field where fields of that name stand: the device plugin passes over what stands elsewhere.
func hinted(problem error, known []string) error {
	found := unknownField.FindStringSubmatch(problem.Error())
	if found == nil {
		return problem
	}
	name := found[1][strings.LastIndex(found[1], ".")+1:]
	var places []string
	for _, path := range known {
		if last := path[strings.LastIndex(path, ".")+1:]; strings.EqualFold(last, name) {
			places = append(places, path)
		}
	}
	if len(places) == 0 {
		return problem
	}
	slices.Sort(places)
	return fmt.Errorf("%w: did you mean %s?", problem, strings.Join(places, " or "))
}

// problemsOf makes Problems of what validation found.
func problemsOf(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return v1alpha1.ProblemsOf(errs.ToAggregate())
}

// checkVersion refuses all versions but v1.
func checkVersion(version *string, needed bool) error {
	switch {
	case version == nil && needed:
		return v1alpha1.Problems{errors.New("version: Required value: want v1")}
	case version != nil && *version != "v1":
		return v1alpha1.Problems{fmt.Errorf("version: Unsupported value: %q: supported values: %q", *version, "v1")}
	default:
		return nil
	}
}

// shown is a value as the file has it, on one line and not too long.
func shown(value any) string {
	if text, ok := value.(string); ok {
		return short(printable(text))
	}
	data, err := json.Marshal(value)
	if err != nil || value == nil {
		return ""
	}
	return short(string(data))
}

// printable is a text on one line, and nothing but that: it is written as a comment, too.
func printable(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)), " ")
}

// short cuts a text that is too long to read.
func short(text string) string {
	const most = 100
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
