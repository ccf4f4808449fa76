// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// readers are those of the kinds of files.
var readers = map[string]func([]byte, Options) (*Import, error){"device-plugin": DevicePlugin, "mig-parted": MIGParted}

// written is an import as `cleave import` prints it.
func written(t *testing.T, i *Import) string {
	t.Helper()
	var out bytes.Buffer
	if err := i.WriteComments(&out, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range i.Policies {
		if err := i.WritePolicy(&out, p); err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
	}
	if err := i.WriteClasses(&out); err != nil {
		t.Fatal(err)
	}
	if len(i.SingleShares()) > 0 {
		out.WriteString("---\n")
	}
	if err := i.WriteAdmission(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			kind := "device-plugin"
			if strings.HasPrefix(name, "mig-parted") {
				kind = "mig-parted"
			}
			imported, err := readers[kind](data, Options{File: name + ".yaml"})
			if err != nil {
				t.Fatal(err)
			}
			if err := imported.SetDefault(""); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, filepath.Join("testdata", name+".golden"), written(t, imported))
			checkImport(t, imported)
		})
	}
}

// checkImport checks what must hold of every import: that what is written reads as what it is, and that the API server
// takes the classes.
func checkImport(t *testing.T, i *Import) {
	t.Helper()
	text := written(t, i)
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for _, want := range i.Policies {
		document, err := reader.Read()
		if err != nil {
			t.Fatal(err)
		}
		got, err := v1alpha1.DecodeNodePolicy(document)
		if err != nil {
			t.Errorf("policy %s: %v\n%s", want.Metadata.Name, err, document)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("policy %s as it is written (-want +got):\n%s", want.Metadata.Name, diff)
		}
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var names []string
	for _, want := range i.Classes() {
		document, err := reader.Read()
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("class %s: %v\n%s", want.Name, err, document)
			continue
		}
		want.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("DeviceClass"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("class %s as it is written (-want +got):\n%s", want.Name, diff)
		}
		checkClass(t, want)
		names = append(names, want.Name)
	}
	if len(i.SingleShares()) > 0 {
		checkAdmission(t, reader)
	}
	if rest, err := reader.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more: %q, %v", rest, err)
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(names))); len(unique) != len(names) {
		t.Errorf("names of classes are there twice: %v", names)
	}
}

// checkAdmission reads a ValidatingAdmissionPolicy and its binding.
func checkAdmission(t *testing.T, reader *utilyaml.YAMLReader) {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for range 2 {
		document, err := reader.Read()
		if err == nil {
			_, _, err = strict.Decode(document, nil, nil)
		}
		if err != nil {
			t.Errorf("the admission policy: %v\n%s", err, document)
		}
	}
}

func checkClass(t *testing.T, c *resourceapi.DeviceClass) {
	t.Helper()
	resource := *c.Spec.ExtendedResourceName
	msgs := validation.IsDNS1123Subdomain(c.Name)
	msgs = append(msgs, validation.IsQualifiedName(resource)...)
	// As k8s.io/component-helpers' IsExtendedResourceName: quotas prefix the name with "requests.".
	msgs = append(msgs, validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+resource)...)
	if len(msgs) > 0 {
		t.Errorf("class %s of %s: %v", c.Name, resource, msgs)
	}
	expression := c.Spec.Selectors[0].CEL.Expression
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{})
	if compiled.Error != nil || len(expression) > resourceapi.CELSelectorExpressionMaxLength || compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		t.Errorf("class %s: expression %q: %v, cost %d", c.Name, expression, compiled.Error, compiled.MaxCost)
	}
}
