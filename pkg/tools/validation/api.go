// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// The rules of the API server for what authors write (k8s.io/kubernetes v1.37.2, pkg/apis/resource/validation). No library
// has them: tests in a cluster compare the two.

// checkMeta checks the metadata of an object. An object without a namespace gets one from kubectl.
func checkMeta(of metav1.Object, namespaced bool) field.ErrorList {
	if namespaced && of.GetNamespace() == "" {
		of.SetNamespace(metav1.NamespaceDefault)
		defer of.SetNamespace("")
	}
	path := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(of, namespaced, apivalidation.NameIsDNSSubdomain, path)
	standard := []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	for i, name := range of.GetFinalizers() {
		if !strings.Contains(name, "/") && !slices.Contains(standard, name) {
			errs = append(errs, field.Invalid(path.Child("finalizers").Index(i), name, "must have a domain, such as example.com/finalizer"))
		}
	}
	return errs
}

// each reports what is wrong with the length of a list, and with its items.
func each[T any](list []T, most int, path *field.Path, check func(T, *field.Path) field.ErrorList) field.ErrorList {
	if len(list) > most {
		return field.ErrorList{field.TooMany(path, len(list), most)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, check(list[i], path.Index(i))...)
	}
	return errs
}

// invalid makes errors of what the functions of package validation say.
func invalid(path *field.Path, value string, problems []string) field.ErrorList {
	var errs field.ErrorList
	for _, problem := range problems {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

// checkClass checks a DeviceClass but for its selectors.
func checkClass(c *resourceapi.DeviceClass) field.ErrorList {
	errs := checkMeta(&c.ObjectMeta, false)
	spec := field.NewPath("spec")
	errs = append(errs, each(c.Spec.Config, resourceapi.DeviceConfigMaxSize, spec.Child("config"),
		func(c resourceapi.DeviceClassConfiguration, at *field.Path) field.ErrorList {
			return checkOpaque(&c.DeviceConfiguration, at)
		})...)
	if name := c.Spec.ExtendedResourceName; name != nil && !isExtendedResource(*name) {
		errs = append(errs, field.Invalid(spec.Child("extendedResourceName"), *name, "must be a resource with a domain, such as example.com/gpu"))
	}
	return errs
}

// checkTemplateMeta checks what the claims of a template get for metadata, which is nothing but labels and annotations.
func checkTemplateMeta(meta *metav1.ObjectMeta) field.ErrorList {
	at := field.NewPath("spec", "metadata")
	errs := append(metav1validation.ValidateLabels(meta.Labels, at.Child("labels")),
		apivalidation.ValidateAnnotations(meta.Annotations, at.Child("annotations"))...)
	fields := reflect.ValueOf(*meta)
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
		if name != "labels" && name != "annotations" && !fields.Field(i).IsZero() {
			errs = append(errs, field.Forbidden(at.Child(name), "claims of a template get labels and annotations alone"))
		}
	}
	return errs
}

// isExtendedResource is IsExtendedResourceName of k8s.io/component-helpers: a name with a domain that is not Kubernetes' own.
func isExtendedResource(name string) bool {
	return strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") && !strings.HasPrefix(name, "requests.") &&
		len(utilvalidation.IsQualifiedName("requests."+name)) == 0
}

// checkSpec checks a claim but for its selectors.
func checkSpec(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	devices := &spec.Devices
	names := map[string]bool{}
	errs := each(devices.Requests, resourceapi.DeviceRequestsMaxSize, path.Child("requests"),
		func(r resourceapi.DeviceRequest, at *field.Path) field.ErrorList { return checkRequest(&r, at, names) })
	named := func(requests []string, at *field.Path) field.ErrorList {
		seen := map[string]bool{}
		return each(requests, resourceapi.DeviceRequestsMaxSize, at.Child("requests"), func(name string, at *field.Path) field.ErrorList {
			defer func() { seen[name] = true }()
			switch {
			case seen[name]:
				return field.ErrorList{field.Duplicate(at, name)}
			case !names[name]:
				return field.ErrorList{field.NotFound(at, name)}
			default:
				return nil
			}
		})
	}
	errs = append(errs, each(devices.Config, resourceapi.DeviceConfigMaxSize, path.Child("config"),
		func(c resourceapi.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
			return append(named(c.Requests, at), checkOpaque(&c.DeviceConfiguration, at)...)
		})...)
	return append(errs, each(devices.Constraints, resourceapi.DeviceConstraintsMaxSize, path.Child("constraints"),
		func(c resourceapi.DeviceConstraint, at *field.Path) field.ErrorList {
			return append(named(c.Requests, at), checkConstraint(&c, at)...)
		})...)
}

// checkRequest checks a request, and adds its name and those of its alternatives.
func checkRequest(r *resourceapi.DeviceRequest, at *field.Path, names map[string]bool) field.ErrorList {
	errs := checkName(r.Name, at.Child("name"), names, "")
	if (r.Exactly != nil) == (len(r.FirstAvailable) > 0) {
		errs = append(errs, field.Required(at, "set either exactly or firstAvailable"))
	}
	if e := r.Exactly; e != nil {
		errs = append(errs, checkDevices(e.DeviceClassName, e.AllocationMode, e.Count, e.Selectors, e.Tolerations, at.Child("exactly"))...)
	}
	return append(errs, each(r.FirstAvailable, resourceapi.FirstAvailableDeviceRequestMaxSize, at.Child("firstAvailable"),
		func(s resourceapi.DeviceSubRequest, at *field.Path) field.ErrorList {
			return append(checkName(s.Name, at.Child("name"), names, r.Name+"/"),
				checkDevices(s.DeviceClassName, s.AllocationMode, s.Count, s.Selectors, s.Tolerations, at)...)
		})...)
}

// checkName checks the name of a request, or of an alternative of one.
func checkName(name string, at *field.Path, names map[string]bool, front string) field.ErrorList {
	defer func() { names[front+name] = true }()
	switch {
	case name == "":
		return field.ErrorList{field.Required(at, "name the request")}
	case names[front+name]:
		return field.ErrorList{field.Duplicate(at, name)}
	default:
		return invalid(at, name, utilvalidation.IsDNS1123Label(name))
	}
}

// checkDevices checks what a request or an alternative asks for.
func checkDevices(class string, mode resourceapi.DeviceAllocationMode, count int64, selectors []resourceapi.DeviceSelector,
	tolerations []resourceapi.DeviceToleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(at.Child("deviceClassName"), "name a DeviceClass, such as gpu.cleave.dev"))
	} else {
		errs = append(errs, invalid(at.Child("deviceClassName"), class, utilvalidation.IsDNS1123Subdomain(class))...)
	}
	switch mode {
	case resourceapi.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(at.Child("count"), count, "must not be set with allocationMode All"))
		}
	case resourceapi.DeviceAllocationModeExactCount, "":
		if count < 0 { // 0 is 1
			errs = append(errs, field.Invalid(at.Child("count"), count, "must be more than zero"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("allocationMode"), mode,
			[]resourceapi.DeviceAllocationMode{resourceapi.DeviceAllocationModeAll, resourceapi.DeviceAllocationModeExactCount}))
	}
	errs = append(errs, checkSelectors(selectors, at.Child("selectors"))...)
	errs = append(errs, each(tolerations, len(tolerations), at.Child("tolerations"), checkToleration)...)
	return errs
}

func checkToleration(t resourceapi.DeviceToleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = metav1validation.ValidateLabelName(t.Key, at.Child("key"))
	}
	switch t.Operator {
	case resourceapi.DeviceTolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be empty with operator Exists"))
		}
	case resourceapi.DeviceTolerationOpEqual, "":
		errs = append(errs, invalid(at.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))...)
	default:
		errs = append(errs, field.NotSupported(at.Child("operator"), t.Operator,
			[]resourceapi.DeviceTolerationOperator{resourceapi.DeviceTolerationOpEqual, resourceapi.DeviceTolerationOpExists}))
	}
	effects := []resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoExecute,
		resourceapi.DeviceTaintEffectNoSchedule}
	if t.Effect != "" && !slices.Contains(effects, t.Effect) {
		errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, effects))
	}
	return errs
}

func checkOpaque(c *resourceapi.DeviceConfiguration, at *field.Path) field.ErrorList {
	o, at := c.Opaque, at.Child("opaque")
	if o == nil {
		return field.ErrorList{field.Required(at, "give parameters to a driver")}
	}
	errs := checkDomain(o.Driver, at.Child("driver"))
	at = at.Child("parameters")
	var object map[string]any
	switch raw := o.Parameters.Raw; {
	case len(raw) == 0 || string(raw) == "null":
		errs = append(errs, field.Required(at, "give parameters, or remove the configuration"))
	case len(raw) > resourceapi.OpaqueParametersMaxLength:
		errs = append(errs, field.TooLong(at, "", resourceapi.OpaqueParametersMaxLength))
	case json.Unmarshal(raw, &object) != nil:
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "must be a JSON object"))
	}
	return errs
}

// checkConstraint checks a constraint. Where it has both attributes, matchAttribute alone counts.
func checkConstraint(c *resourceapi.DeviceConstraint, at *field.Path) field.ErrorList {
	switch {
	case c.MatchAttribute != nil:
		return checkAttribute(string(*c.MatchAttribute), at.Child("matchAttribute"))
	case c.DistinctAttribute != nil:
		return checkAttribute(string(*c.DistinctAttribute), at.Child("distinctAttribute"))
	default:
		return field.ErrorList{field.Required(at, "set either matchAttribute or distinctAttribute")}
	}
}

func checkDomain(name string, at *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(at, "name a driver, such as gpu.cleave.dev")}
	case len(name) > resourceapi.DriverNameMaxLength:
		return field.ErrorList{field.TooLong(at, name, resourceapi.DriverNameMaxLength)}
	default:
		return invalid(at, name, utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)))
	}
}

// checkAttribute checks the name of an attribute with its domain. Names with two slashes are admitted (a TODO of validateQualifiedName).
func checkAttribute(name string, at *field.Path) field.ErrorList {
	parts := strings.Split(name, "/")
	if len(parts) == 1 {
		return field.ErrorList{field.Invalid(at, name, "must be an attribute with its domain, such as gpu.cleave.dev/nvlinkGroup")}
	} else if len(parts) > 2 {
		return nil
	}
	var errs field.ErrorList
	if len(parts[0]) > resourceapi.DeviceMaxDomainLength {
		errs = append(errs, field.TooLong(at, parts[0], resourceapi.DeviceMaxDomainLength))
	}
	errs = append(errs, invalid(at, name, utilvalidation.IsDNS1123Subdomain(parts[0]))...) // in lower case, unlike a driver's name
	if len(parts[1]) > resourceapi.DeviceMaxIDLength {
		return append(errs, field.TooLong(at, parts[1], resourceapi.DeviceMaxIDLength))
	}
	return append(errs, invalid(at, name, utilvalidation.IsCIdentifier(parts[1]))...)
}

// warnings are what may be meant for Cleave and is not, and what nobody reads.
func (v *validation) warnings(o *object) {
	configs, path := configsOf(o.Object)
	spec, _ := specOf(o.Object)
	for i, c := range configs {
		if c.Opaque == nil || c.Opaque.Driver == v.Rules.Driver {
			continue
		}
		var meta metav1.TypeMeta
		forUs := json.Unmarshal(c.Opaque.Parameters.Raw, &meta) == nil && strings.HasPrefix(meta.APIVersion, "gpu.cleave.dev/")
		var readers []string
		if spec != nil {
			classes := func(name string) *resourceapi.DeviceClass { return v.classes[name] }
			readers = resourcepool.ReadersOf(&spec.Devices, &spec.Devices.Config[i], classes)
		}
		meant := fmt.Sprintf(": did you mean %q?", v.Rules.Driver)
		var not string
		switch near := suggest.Distance(c.Opaque.Driver, v.Rules.Driver) <= 2; {
		case near || forUs:
			not = "is not Cleave's, which ignores these parameters" + meant
		case readers == nil || slices.Contains(readers, c.Opaque.Driver):
			continue
		case slices.Equal(readers, []string{v.Rules.Driver}):
			not = "is not that of Cleave's classes, which all these requests name: these parameters are ignored" + meant
		default:
			not = "is not that of the classes of these requests, which are of " + strings.Join(readers, " and ") + ": these parameters are ignored"
		}
		o.file.Notes = append(o.file.Notes, fmt.Sprintf("%s: %s: %s: driver %q %s",
			o.file.Path, o.name, path.Index(i).Child("opaque", "driver"), c.Opaque.Driver, not))
	}
}
