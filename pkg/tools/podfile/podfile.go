// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/cleave-dra/cleave/pkg/tools/admission"
)

// Limits of the search in one object.
const (
	maxDepth     = 32
	maxTemplates = 64
)

// Pod is a Pod, or a pod that an object would create from a template.
type Pod struct {
	// Path of the pod's spec in the object: "spec" of a Pod, "spec.template.spec" of a Deployment.
	Path *field.Path
	// Pod has the object's name and namespace, and the API server's defaults for resources.
	*corev1.Pod
	// Unknown are fields that the API server refuses of its own kinds; of others nothing is known.
	Unknown error
}

// In finds the pods of an object. A template is what has the shape of one, wherever it stands: an object whose spec has a list of
// named containers. That holds for a Deployment and a CronJob as for a JobSet, a LeaderWorkerSet, a RayCluster or a Notebook. Other
// kinds have the fields of a pod's spec among their own, such as the predictor of an InferenceService: an object with containers and
// claims is one, too.
func In(raw []byte) ([]Pod, error) {
	var object map[string]any
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil {
		return nil, err
	}
	of := &metav1.PartialObjectMetadata{}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(raw, of); err != nil {
		return nil, err
	}
	if of.APIVersion == "v1" && of.Kind == "Pod" {
		pod := &corev1.Pod{}
		if err := admission.CheckQuantities(raw, pod); err != nil {
			return nil, err
		}
		unknown, err := strictjson.UnmarshalStrict(raw, pod)
		if err != nil {
			return nil, err
		}
		setDefaults(&pod.Spec)
		return []Pod{{Path: field.NewPath("spec"), Pod: pod, Unknown: utilerrors.NewAggregate(unknown)}}, nil
	}
	s := &search{object: of}
	if err := s.walk(object, nil, 0); err != nil {
		return nil, err
	}
	return s.found, nil
}

// Asks reports whether a pod asks for devices: by claims, or by extended resources.
func Asks(spec *corev1.PodSpec) bool {
	return len(spec.ResourceClaims) > 0 || slices.ContainsFunc(Containers(spec), func(c corev1.Container) bool {
		for name := range c.Resources.Requests {
			if strings.Contains(string(name), "/") {
				return true
			}
		}
		return len(c.Resources.Claims) > 0
	})
}

// Containers are all containers of a pod that can have devices.
func Containers(spec *corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

// search looks for the templates of an object.
type search struct {
	object *metav1.PartialObjectMetadata
	found  []Pod
}

func (s *search) walk(value any, at *field.Path, depth int) error {
	if depth > maxDepth {
		return nil // no kind nests its templates so deep
	}
	switch value := value.(type) {
	case map[string]any:
		if at != nil && isTemplate(value) {
			return s.add(value, at, at.Child("spec"))
		}
		if spec := inlinedSpec(value); at != nil && spec != nil {
			if err := s.add(map[string]any{"spec": spec}, at, at); err != nil {
				return err
			}
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			child := field.NewPath(key)
			if at != nil {
				child = at.Child(key)
			}
			if err := s.walk(value[key], child, depth+1); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range value {
			if err := s.walk(item, at.Index(i), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// isTemplate reports whether an object has the shape of a PodTemplateSpec.
func isTemplate(object map[string]any) bool {
	spec, _ := object["spec"].(map[string]any)
	return isNamed(spec["containers"])
}

// isNamed reports whether a value is a list of objects with names, and not empty.
func isNamed(value any) bool {
	list, _ := value.([]any)
	return len(list) > 0 && !slices.ContainsFunc(list, func(item any) bool {
		object, _ := item.(map[string]any)
		_, named := object["name"].(string)
		return !named
	})
}

// inlinedSpec is the PodSpec among the fields of an object that has claims and containers; nil for any other. A container is a field,
// too, where it is made from one: the model of KServe's PredictorSpec (kserve pkg/apis/serving/v1beta1/predictor.go).
func inlinedSpec(object map[string]any) map[string]any {
	if !isNamed(object["resourceClaims"]) {
		return nil
	}
	var containers []any
	for _, key := range slices.Sorted(maps.Keys(object)) {
		of, _ := object[key].(map[string]any)
		if _, has := of["resources"].(map[string]any); !has || isNamed(of["resourceClaims"]) {
			continue
		}
		container := maps.Clone(of)
		if _, named := of["name"].(string); !named {
			container["name"] = key
		}
		containers = append(containers, container)
	}
	if isNamed(object["containers"]) {
		containers = append(containers, object["containers"].([]any)...)
	}
	if len(containers) == 0 {
		return nil
	}
	spec := maps.Clone(object)
	spec["containers"] = containers
	return spec
}

// add takes up a template at a path, whose spec is at another.
func (s *search) add(template map[string]any, at, specAt *field.Path) error {
	if len(s.found) == maxTemplates {
		return fmt.Errorf("there are more than %d pod templates", maxTemplates)
	}
	raw, err := json.Marshal(template)
	if err != nil {
		return err
	}
	decoded := &corev1.PodTemplateSpec{}
	if err := admission.CheckQuantities(raw, decoded); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	unknown, err := strictjson.UnmarshalStrict(raw, decoded)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	pod := &corev1.Pod{ObjectMeta: decoded.ObjectMeta, Spec: decoded.Spec}
	pod.Namespace, pod.Name = s.object.Namespace, s.object.Name
	setDefaults(&pod.Spec)
	found := Pod{Path: specAt, Pod: pod}
	if group, _, ok := strings.Cut(s.object.APIVersion, "/"); !ok || group == "apps" || group == "batch" {
		if err := utilerrors.NewAggregate(unknown); err != nil {
			found.Unknown = fmt.Errorf("%s: %w", at, err)
		}
	}
	s.found = append(s.found, found)
	return nil
}

// setDefaults sets requests to limits where there are none (k8s.io/kubernetes v1.37.2, pkg/apis/core/v1/defaults.go, SetDefaults_Pod).
func setDefaults(spec *corev1.PodSpec) {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, limit := range r.Limits {
				if r.Requests == nil {
					r.Requests = corev1.ResourceList{}
				}
				if _, has := r.Requests[name]; !has {
					r.Requests[name] = limit.DeepCopy()
				}
			}
		}
	}
}

// Check finds what the API server refuses of the devices of a pod (k8s.io/kubernetes v1.37.2, pkg/apis/core/validation:
// ValidatePodResourceClaims, validateContainerResourceClaims, ValidateResourceRequirements).
func (p *Pod) Check() field.ErrorList {
	claims := map[string]bool{}
	var errs field.ErrorList
	for i := range p.Spec.ResourceClaims {
		c, at := &p.Spec.ResourceClaims[i], p.Path.Child("resourceClaims").Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at.Child("name"), "containers name the claim by it"))
		case claims[c.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		claims[c.Name] = true
		if (c.ResourceClaimName != nil) == (c.ResourceClaimTemplateName != nil) {
			errs = append(errs, field.Invalid(at, c.Name, "set either resourceClaimName or resourceClaimTemplateName"))
		}
	}
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"initContainers", p.Spec.InitContainers}, {"containers", p.Spec.Containers}} {
		for i := range list.containers {
			errs = append(errs, checkResources(&list.containers[i].Resources, claims, p.Path.Child(list.name).Index(i).Child("resources"))...)
		}
	}
	return errs
}

func checkResources(r *corev1.ResourceRequirements, claims map[string]bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceClaim]bool{}
	for i, c := range r.Claims {
		at := at.Child("claims").Index(i)
		switch {
		case !claims[c.Name]:
			errs = append(errs, field.NotFound(at, c.Name))
		case seen[c] || seen[corev1.ResourceClaim{Name: c.Name}]:
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen[c] = true
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		if !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/") {
			continue
		}
		quantity, limit := r.Requests[name], r.Limits[name]
		if quantity.MilliValue()%1000 != 0 || quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), quantity.String(), "must be a whole number"))
		} else if _, limited := r.Limits[name]; !limited || quantity.Cmp(limit) != 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), quantity.String(), "must be equal to the limit"))
		}
	}
	return errs
}
