// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/json"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// object is a claim, a template or a class.
type object struct {
	file *File
	name string
	runtime.Object
	// wrong is set where the API server would refuse it.
	wrong bool
}

// decode reads a claim, a template or a class strictly.
func (v *validation) decode(f *File, d v1alpha1.Document, h *header) {
	f.Checked = append(f.Checked, h.name())
	decoded, err := decodeStrictly(h.Kind, d.JSON)
	if err != nil {
		f.problem(fmt.Errorf("%s: %w", h.name(), err))
	}
	if decoded != nil {
		v.objects = append(v.objects, &object{file: f, name: h.name(), Object: decoded})
	}
}

// decodeStrictly returns an object alongside the error where only fields are unknown.
func decodeStrictly(kind string, raw []byte) (runtime.Object, error) {
	decoded := admission.NewObject(kind)
	if err := admission.CheckQuantities(raw, decoded); err != nil {
		return nil, err
	}
	strict, err := json.UnmarshalStrict(raw, decoded)
	if err != nil {
		return nil, err
	}
	return decoded, utilerrors.NewAggregate(strict)
}

// isClaimOrClass reports whether an object is a claim, a template or a class in a version of one form.
func isClaimOrClass(h *header) bool {
	group, version, _ := strings.Cut(h.APIVersion, "/")
	return group == "resource.k8s.io" && admission.NewObject(h.Kind) != nil && (version == "v1" || version == "v1beta2")
}

// isNearly says what is wrong with an object that was meant for a claim, a template or a class; empty where it is another one.
func isNearly(h *header) string {
	const group, read = "resource.k8s.io", "resource.k8s.io/v1"
	of, _, _ := strings.Cut(h.APIVersion, "/")
	for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"} {
		switch far := suggest.Distance(strings.ToLower(h.Kind), strings.ToLower(kind)); {
		case far > 2 || suggest.Distance(of, group) > 2:
		case of != group:
			return fmt.Sprintf("apiVersion %q is not known: did you mean %s?", h.APIVersion, read)
		case h.Kind != kind:
			return fmt.Sprintf("kind %q is not known: did you mean %s?", h.Kind, kind)
		default:
			return fmt.Sprintf("apiVersion %q is not read: write %s, whose requests have exactly or firstAvailable", h.APIVersion, read)
		}
	}
	return ""
}

// addClasses lets claims name the classes of the files and those that come with Cleave.
func (v *validation) addClasses() error {
	for _, o := range v.objects {
		if c, ok := o.Object.(*resourceapi.DeviceClass); ok && !o.wrong {
			v.addClass(c)
		}
	}
	if v.Rules.Driver != v1alpha1.Group {
		return nil // they select devices of the driver's usual name
	}
	classes, err := manifests.Classes()
	if err != nil {
		return err
	}
	for _, c := range classes {
		v.addClass(c)
	}
	return nil
}

// addClass takes up a class unless there is one of its name.
func (v *validation) addClass(c *resourceapi.DeviceClass) {
	if v.classes[c.Name] == nil {
		v.classes[c.Name] = c
	}
}

// checkObject finds what is wrong with an object by itself.
func (v *validation) checkObject(o *object) {
	o.problems(append(v.Rules.Check(o.Object), checkAPI(o.Object)...))
}

// checkAPI finds what the API server refuses of an object.
func checkAPI(object runtime.Object) field.ErrorList {
	switch decoded := object.(type) {
	case *resourceapi.DeviceClass:
		return append(checkClass(decoded), checkSelectors(decoded.Spec.Selectors, field.NewPath("spec", "selectors"))...)
	case metav1.Object:
		errs := checkMeta(decoded, true)
		if template, ok := object.(*resourceapi.ResourceClaimTemplate); ok {
			errs = append(errs, checkTemplateMeta(&template.Spec.ObjectMeta)...)
		}
		spec, path := specOf(object)
		return append(errs, checkSpec(spec, path)...)
	default:
		return nil
	}
}

// configsOf are the parameters in an object.
func configsOf(object runtime.Object) (configs []resourceapi.DeviceConfiguration, path *field.Path) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		for i := range class.Spec.Config {
			configs = append(configs, class.Spec.Config[i].DeviceConfiguration)
		}
		return configs, field.NewPath("spec", "config")
	}
	spec, path := specOf(object)
	for i := range spec.Devices.Config {
		configs = append(configs, spec.Devices.Config[i].DeviceConfiguration)
	}
	return configs, path.Child("config")
}

func (o *object) problems(errs field.ErrorList) {
	for _, err := range errs {
		o.wrong = true
		o.file.problem(fmt.Errorf("%s: %w", o.name, err))
	}
}

// specOf is the spec of a claim, or of the claims of a template.
func specOf(o runtime.Object) (*resourceapi.ResourceClaimSpec, *field.Path) {
	switch o := o.(type) {
	case *resourceapi.ResourceClaim:
		return &o.Spec, field.NewPath("spec", "devices")
	case *resourceapi.ResourceClaimTemplate:
		return &o.Spec.Spec, field.NewPath("spec", "spec", "devices")
	default:
		return nil, nil
	}
}

// request is one request of a claim, or one of its alternatives.
type request struct {
	path  *field.Path
	class string
}

// requestsOf are the alternatives of a request in order of preference.
func requestsOf(r *resourceapi.DeviceRequest, path *field.Path) []request {
	var all []request
	if e := r.Exactly; e != nil {
		all = append(all, request{path.Child("exactly"), e.DeviceClassName})
	}
	for i := range r.FirstAvailable {
		all = append(all, request{path.Child("firstAvailable").Index(i), r.FirstAvailable[i].DeviceClassName})
	}
	return all
}

// checkSelectors compiles selectors as the API server does where they are new: for stored ones it allows what it did not know before.
func checkSelectors(selectors []resourceapi.DeviceSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	isNew := environment.NewExpressions
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	if n := len(selectors); n > resourceapi.DeviceSelectorsMaxSize {
		return field.ErrorList{field.TooMany(path, n, resourceapi.DeviceSelectorsMaxSize)}
	}
	for i, s := range selectors {
		at := path.Index(i).Child("cel", "expression")
		if s.CEL == nil || strings.TrimSpace(s.CEL.Expression) == "" {
			errs = append(errs, field.Required(at, "write a CEL expression"))
			continue
		}
		if n := len(s.CEL.Expression); n > resourceapi.CELSelectorExpressionMaxLength {
			errs = append(errs, field.TooLong(at, "", resourceapi.CELSelectorExpressionMaxLength))
			continue
		}
		result := compiler.CompileCELExpression(s.CEL.Expression, cel.Options{EnvType: &isNew})
		switch {
		case result.Error != nil:
			errs = append(errs, field.Invalid(at, s.CEL.Expression, result.Error.Error()))
		case result.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
			errs = append(errs, field.Forbidden(at, "too complex: its estimated cost exceeds what the API server takes"))
		}
	}
	return errs
}
