// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// expression is one of a policy.
type expression struct {
	name, text string
	returns    *celgo.Type
}

func (e *expression) GetName() string            { return e.name }
func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.returns} }

// claimPolicy is a policy, compiled as the API server does.
type claimPolicy struct {
	// matches says whether a request is one that the policy is for, validates whether the object is right.
	matches, validates plugincel.ConditionEvaluator
	// says are the messages that the policy makes up.
	says plugincel.ConditionEvaluator
}

// policyOf reads a ValidatingAdmissionPolicy from the manifests.
func policyOf(t *testing.T, name string) claimPolicy {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "deployments", "manifests", "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		if strings.Contains(document, "kind: ValidatingAdmissionPolicy\n") && strings.Contains(document, "name: "+name+"\n") {
			return compiled(t, document)
		}
	}
	t.Fatalf("the manifests have no policy %s", name)
	return claimPolicy{}
}

// compiled compiles a policy as the API server does.
func compiled(t *testing.T, document string) claimPolicy {
	t.Helper()
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	if err := yaml.UnmarshalStrict([]byte(document), &policy); err != nil {
		t.Fatal(err)
	}
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true, HasParams: policy.Spec.ParamKind != nil}
	for _, v := range policy.Spec.Variables {
		if r := compiler.CompileAndStoreVariable(&expression{v.Name, v.Expression, celgo.AnyType}, options, environment.NewExpressions); r.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, r.Error)
		}
	}
	var conditions, messages []plugincel.ExpressionAccessor
	for _, v := range policy.Spec.Validations {
		conditions = append(conditions, &expression{v.Message, v.Expression, celgo.BoolType})
		messages = append(messages, &expression{v.Message, cmp.Or(v.MessageExpression, `""`), celgo.StringType})
	}
	var matches []plugincel.ExpressionAccessor
	for _, m := range policy.Spec.MatchConditions {
		matches = append(matches, &expression{m.Name, m.Expression, celgo.BoolType})
	}
	return claimPolicy{
		matches:   compiler.CompileCondition(matches, options, environment.NewExpressions),
		validates: compiler.CompileCondition(conditions, options, environment.NewExpressions),
		says:      compiler.CompileCondition(messages, options, environment.NewExpressions),
	}
}

// refuses evaluates the policy for an object that is created, or updated if it was another before; the first words are why it is
// refused, if it is.
func refuses(t *testing.T, policy claimPolicy, kind string, object, before runtime.Object) string {
	t.Helper()
	of, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	gvk := resourceapi.SchemeGroupVersion.WithKind(kind)
	attributes, request := requestOf(gvk, of.GetName(), object, before)
	evaluate := func(all plugincel.ConditionEvaluator) string {
		results, _, err := all.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{}, nil, cel.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			e, ok := r.ExpressionAccessor.(*expression)
			if !ok {
				t.Fatalf("%T", r.ExpressionAccessor)
			}
			if r.Error != nil {
				return r.Error.Error()
			}
			if r.EvalResult != types.True {
				return "refused: " + e.name
			}
		}
		return ""
	}
	if evaluate(policy.matches) == "refused: spec-changes" {
		return ""
	}
	return evaluate(policy.validates)
}

// requestOf is what the API server asks about an object that is created, or updated if it was another before.
func requestOf(gvk schema.GroupVersionKind, name string, object, before runtime.Object) (*admission.VersionedAttributes, *admissionv1.AdmissionRequest) {
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	operation := admission.Create
	attributes := &admission.VersionedAttributes{VersionedObject: admission.NewLazyObject(object), VersionedKind: gvk}
	if before != nil {
		operation, attributes.VersionedOldObject = admission.Update, admission.NewLazyObject(before)
	}
	attributes.Attributes = admission.NewAttributesRecord(object, before, gvk, "team", name, gvr, "", operation, nil, false, nil)
	return attributes, plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(gvr), metav1.GroupVersionKind(gvk))
}

// The ValidatingAdmissionPolicy of the chart and the webhook refuse the same objects; an expression that fails is no answer.
func TestPolicy_AsWebhook(t *testing.T) {
	policy := policyOf(t, "cleave-claims")
	data, err := os.ReadFile(filepath.Join("..", "validation", "testdata", "objects.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, document := range strings.Split(string(data), "---\n")[1:] {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		object := NewObject(kind.Kind)
		if err := yaml.Unmarshal([]byte(document), object); err != nil {
			continue // the API server refuses it before
		}
		want, got := DefaultRules().Check(object).ToAggregate(), refuses(t, policy, kind.Kind, object, nil)
		if (want == nil) != (got == "") || got != "" && !strings.HasPrefix(got, "refused: ") {
			t.Errorf("the webhook says %v, the policy %q of\n%s", want, got, document)
		}
		if want == nil {
			continue
		}
		refused++
		// What is older than a rule must go: its finalizers are removed by an update.
		held := object.DeepCopyObject()
		of, err := meta.Accessor(held)
		if err != nil {
			t.Fatal(err)
		}
		of.SetFinalizers([]string{"test.example.com/held"})
		if got := refuses(t, policy, kind.Kind, object, held); got != "" {
			t.Errorf("the removal of a finalizer: %s, of\n%s", got, document)
		}
		if got := refuses(t, policy, kind.Kind, object, NewObject(kind.Kind)); got == "" {
			t.Errorf("an update of the spec is let through:\n%s", document)
		}
	}
	if refused < 15 {
		t.Errorf("%d objects are refused only", refused)
	}
}

// The largest claim that the API takes stays below the limit of what an expression may cost.
func TestPolicy_LargestClaim(t *testing.T) {
	policy := policyOf(t, "cleave-claims")
	claim := claimYAML(t, "{}")
	devices := &claim.Spec.Devices
	var names []string
	for i := range resourceapi.DeviceRequestsMaxSize {
		r := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i)}
		names = append(names, r.Name)
		for j := range resourceapi.FirstAvailableDeviceRequestMaxSize {
			r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprintf("s%d", j), DeviceClassName: "mps.cleave.dev",
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("5Gi"), "cores": resource.MustParse("25"), "shares": resource.MustParse("1")}}})
		}
		devices.Requests = append(devices.Requests, r)
	}
	slices.Reverse(names) // the name that is searched for comes late
	for range resourceapi.DeviceConfigMaxSize {
		devices.Config = append(devices.Config, resourceapi.DeviceClaimConfiguration{Requests: names, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.cleave.dev", Parameters: runtime.RawExtension{Raw: []byte(
				`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig","mps":{"activeThreadPercentage":20,"pinnedDeviceMemoryLimit":"4Gi"}}`)}}}})
	}
	for _, configs := range []int{1, 4, 8, 9, 32} {
		of := claim.DeepCopy()
		of.Spec.Devices.Config = of.Spec.Devices.Config[:configs]
		if got := refuses(t, policy, "ResourceClaim", of, nil); got != "" {
			t.Errorf("%d configurations: %s", configs, got)
		}
	}
}
