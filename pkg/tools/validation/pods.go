// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/podfile"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// pod is a pod, or one that an object would create.
type pod struct {
	Pod
	file *File
	name string
	in   explain.Namespace
	// unsure is set where something is wrong with it or its claims, or not known: it is not held against a node.
	unsure bool
}

// podsOf takes up the pods of an object that ask for devices; it reports whether there are any.
func (v *validation) podsOf(f *File, d v1alpha1.Document, h *header) bool {
	pods, err := podsOf(h, d.JSON)
	if err != nil {
		f.Checked = append(f.Checked, h.name())
		f.problem(err)
		return true
	}
	for _, p := range pods {
		v.pods = append(v.pods, &pod{Pod: p, file: f, name: h.name()})
	}
	if len(pods) > 0 {
		f.Checked = append(f.Checked, h.name())
	}
	return len(pods) > 0
}

// podChecks are those of pods, once the objects of all files and the classes are known.
type podChecks struct{ *validation }

func (p *pod) problems(errs ...error) {
	for _, err := range errs {
		p.unsure = true
		p.file.problem(fmt.Errorf("%s: %w", p.name, err))
	}
}

// note says what is not checked, or not refused.
func (p *pod) note(at *field.Path, format string, args ...any) {
	p.file.Notes = append(p.file.Notes, fmt.Sprintf("%s: %s: %s: %s", p.file.Path, p.name, at, fmt.Sprintf(format, args...)))
}

// checkPod finds what is wrong with a pod's claims and extended resources, without a node.
func (v podChecks) checkPod(p *pod) {
	if p.Unknown != nil {
		p.problems(v1alpha1.ProblemsOf(p.Unknown)...)
	}
	for _, err := range p.Check() {
		p.problems(err)
	}
	p.in = v.namespaceOf(p)
	if v.Rules.Driver != v1alpha1.Group {
		p.unsure = true // the classes of the usual name select other devices
		return
	}
	v.checkReferences(p)
	for _, m := range explain.Miswirings(p.Pod.Pod.Pod, p.in, v.explained()) {
		if m.Lost {
			p.problems(fmt.Errorf("%s: %s", p.Path, m.Message))
		} else {
			p.note(p.Path, "%s", m.Message)
		}
	}
	served := v.checkExtended(p)
	created := func(ref corev1.PodResourceClaim) bool { return ref.ResourceClaimTemplateName != nil }
	const why = "a scheduler allocates devices, and looks at no pod that has a node: select the node by nodeSelector"
	switch at := p.Path.Child("nodeName"); {
	case p.Spec.NodeName == "":
	case slices.ContainsFunc(p.Spec.ResourceClaims, created):
		p.problems(field.Forbidden(at, why))
	case served:
		p.note(at, "unless a device plugin serves the resource there: %s", why)
	}
}

// explained are the classes for package explain.
func (v *validation) explained() explain.Objects {
	o := explain.Objects{Driver: v.Rules.Driver}
	for _, name := range slices.Sorted(maps.Keys(v.classes)) {
		o.Classes = append(o.Classes, v.classes[name])
	}
	return o
}

// namespaceOf are the claims and templates that the pod can name: those of its namespace, and those whose namespace kubectl sets.
func (v podChecks) namespaceOf(p *pod) explain.Namespace {
	in := explain.Namespace{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	same := func(namespace string) bool { return namespace == p.Namespace || namespace == "" || p.Namespace == "" }
	for _, o := range v.objects {
		switch o := o.Object.(type) {
		case *resourceapi.ResourceClaim:
			if same(o.Namespace) {
				in.Claims[o.Name] = o
			}
		case *resourceapi.ResourceClaimTemplate:
			if same(o.Namespace) {
				in.Templates[o.Name] = o
			}
		}
	}
	return in
}

// checkReferences notes claims and templates that are not in the files, and those that are wrong.
func (v podChecks) checkReferences(p *pod) {
	for i := range p.Spec.ResourceClaims {
		ref, at := &p.Spec.ResourceClaims[i], p.Path.Child("resourceClaims").Index(i)
		if name := ref.ResourceClaimTemplateName; name != nil && p.in.Templates[*name] == nil {
			p.unsure = true
			p.note(at.Child("resourceClaimTemplateName"), "ResourceClaimTemplate %q is not in these files: not checked", *name)
		}
		if name := ref.ResourceClaimName; name != nil && p.in.Claims[*name] == nil {
			p.unsure = true
			p.note(at.Child("resourceClaimName"), "ResourceClaim %q is not in these files: not checked", *name)
		}
	}
}

// checkExtended looks for the classes of extended resources, and reports whether there is one. Those of other vendors are not Cleave's to
// know.
func (v podChecks) checkExtended(p *pod) (served bool) {
	var known []string
	for _, c := range v.classes {
		if c.Spec.ExtendedResourceName != nil {
			known = append(known, *c.Spec.ExtendedResourceName)
		}
	}
	slices.Sort(known)
	seen := map[corev1.ResourceName]bool{}
	for _, c := range podfile.Containers(&p.Spec) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
			quantity := c.Resources.Requests[name]
			class := slices.Contains(known, string(name)) || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)
			served = served || class && !quantity.IsZero()
			if seen[name] || slices.Contains(known, string(name)) || !strings.Contains(string(name), "/") {
				continue
			}
			seen[name] = true
			v.unserved(p, string(name), known)
		}
	}
	return served
}

// unserved says what is wrong with a resource that no known class serves.
func (v podChecks) unserved(p *pod, name string, known []string) {
	if class, ok := strings.CutPrefix(name, resourceapi.ResourceDeviceClassPrefix); ok {
		switch {
		case v.classes[class] != nil:
		case v.isMisspelled(class):
			p.problems(fmt.Errorf("%s: resource %s: %s", p.Path, name, v.misspelled(class)))
		default:
			p.unsure = true
			p.note(p.Path, "resource %s: DeviceClass %q is neither in these files nor one of Cleave's: not checked", name, class)
		}
		return
	}
	const vendor = "nvidia.com/"
	near := suggest.Nearest(name, known)
	switch {
	case near != "" || strings.HasPrefix(name, vendor+"mig-"):
		p.problems(fmt.Errorf("%s: no DeviceClass of these files or of Cleave serves the resource %s%s", p.Path, name, suggest.Question(near)))
	case strings.HasPrefix(name, vendor):
		p.unsure = true
		p.note(p.Path, "no DeviceClass of these files or of Cleave serves the resource %s: not checked", name)
	}
}

// checkPodOn holds a pod against the node: all it asks for at once. What its claims cannot get alone was said.
func (v podChecks) checkPodOn(ctx context.Context, p *pod, n *onNode) error {
	for _, o := range v.objects {
		switch of := o.Object.(type) {
		case *resourceapi.ResourceClaim:
			p.unsure = p.unsure || o.wrong && p.in.Claims[of.Name] == of
		case *resourceapi.ResourceClaimTemplate:
			p.unsure = p.unsure || o.wrong && p.in.Templates[of.Name] == of
		}
	}
	if p.unsure {
		return nil
	}
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		if ref.ResourceClaimName != nil && !v.hasClasses(&p.in.Claims[*ref.ResourceClaimName].Spec) ||
			ref.ResourceClaimTemplateName != nil && !v.hasClasses(&p.in.Templates[*ref.ResourceClaimTemplateName].Spec.Spec) {
			return nil // which was noted
		}
	}
	// Where in a cluster it may run, and when, does not matter here.
	alone := &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: corev1.PodSpec{ResourceClaims: p.Spec.ResourceClaims,
		InitContainers: p.Spec.InitContainers, Containers: p.Spec.Containers}}
	why, err := n.refusal(ctx, explain.AboutPlanned(p.name, alone, p.in, n.objects))
	if why != "" {
		p.problems(field.Invalid(p.Path, field.OmitValueType{}, fmt.Sprintf("not allocated on %s: %s", v.Node.Words, why)))
	}
	return err
}

// hasClasses reports whether all classes of a claim are known.
func (v *validation) hasClasses(spec *resourceapi.ResourceClaimSpec) bool {
	for i := range spec.Devices.Requests {
		for _, r := range requestsOf(&spec.Devices.Requests[i], field.NewPath("spec")) {
			if v.classes[r.class] == nil {
				return false
			}
		}
	}
	return true
}

// checkClasses refuses classes that have the name of one of Cleave's and are none.
func (v *validation) checkClasses(o *object) {
	spec, path := specOf(o.Object)
	if spec == nil {
		return
	}
	for i := range spec.Devices.Requests {
		for _, r := range requestsOf(&spec.Devices.Requests[i], path.Child("requests").Index(i)) {
			switch at := r.path.Child("deviceClassName"); {
			case v.isMisspelled(r.class):
				o.problems(field.ErrorList{field.Invalid(at, r.class, v.misspelled(r.class))})
			case v.Node == nil && v.Rules.Driver == v1alpha1.Group && v.classes[r.class] == nil && strings.HasSuffix(r.class, ".nvidia.com"):
				o.file.Notes = append(o.file.Notes, fmt.Sprintf("%s: %s: %s: class %q is of NVIDIA's driver, and Cleave serves it only if it is "+
					"installed so: docs/nvidia-compatible.md", o.file.Path, o.name, at, r.class))
			}
		}
	}
}

// isMisspelled reports whether a class that is not known has a name that is Cleave's to give. Those of cleave import are the user's.
func (v *validation) isMisspelled(class string) bool {
	if v.Rules.Driver != v1alpha1.Group || v.classes[class] != nil {
		return false
	}
	if slices.ContainsFunc(v.objects, func(o *object) bool { return o.name == "DeviceClass "+class }) {
		return false // it is there, and wrong
	}
	stem, ours := strings.CutSuffix(class, ".cleave.dev")
	return ours && !strings.HasSuffix(stem, ".device-plugin") && !strings.HasSuffix(stem, ".mig-parted")
}

func (v *validation) misspelled(class string) string {
	return "it is neither in these files nor one of Cleave's" + suggest.Question(suggest.Nearest(class, slices.Sorted(maps.Keys(v.classes))))
}
