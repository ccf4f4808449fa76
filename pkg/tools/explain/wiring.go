// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Miswiring is a mistake between a pod's containers and its claims. Kubernetes admits it and the pod runs, but not with the devices
// that its author meant.
type Miswiring struct {
	// Lost is set where a container goes without a device, not where it gets one too many.
	Lost bool
	// Message says what is wrong and what to do.
	Message string
}

// Miswirings are those of a pod's claims for devices of the driver. Claims that are not known are passed over.
func Miswirings(pod *corev1.Pod, in Namespace, o Objects) []Miswiring {
	w := &wiring{pod: pod, Objects: o, containers: slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers),
		specs: map[string]*resourceapi.ResourceClaimSpec{}}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		spec := specOf(pod, ref, in)
		if spec != nil && ref.ResourceClaimTemplateName != nil {
			spec = spec.DeepCopy() // a claim of its own, also of a template that has others
		}
		if spec != nil {
			w.specs[ref.Name] = spec
		}
	}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		if spec := w.specs[ref.Name]; spec != nil {
			w.claim(ref, spec)
		}
	}
	for i := range w.containers {
		w.several(&w.containers[i])
		if wasted := w.wasted(&w.containers[i]); wasted != "" {
			w.add(false, "%s", wasted)
		}
	}
	return w.found
}

// specOf is the spec of a pod's claim, or of the template that it is to be created from; nil where neither is known.
func specOf(pod *corev1.Pod, ref *corev1.PodResourceClaim, in Namespace) *resourceapi.ResourceClaimSpec {
	if name, _, err := resourceclaim.Name(pod, ref); err == nil && name != nil && in.Claims[*name] != nil {
		return &in.Claims[*name].Spec
	}
	if ref.ResourceClaimTemplateName != nil && in.Templates[*ref.ResourceClaimTemplateName] != nil {
		return &in.Templates[*ref.ResourceClaimTemplateName].Spec.Spec
	}
	return nil
}

// wiring is the search for the mistakes of a pod.
type wiring struct {
	Objects
	pod        *corev1.Pod
	containers []corev1.Container
	// specs are those of the pod's claims that are known, by the pod's names for them.
	specs map[string]*resourceapi.ResourceClaimSpec
	found []Miswiring
}

// claim looks at who uses a claim.
func (w *wiring) claim(ref *corev1.PodResourceClaim, spec *resourceapi.ResourceClaimSpec) {
	name := ref.Name
	var requests, ours []string
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		requests = append(requests, r.Name)
		if w.isOurs(r) {
			ours = append(ours, r.Name)
		}
	}
	if len(ours) == 0 {
		return // some drivers, such as those of networks, give a claim's devices to the pod, and no container names it
	}
	used, named := map[string]bool{}, false
	for i := range w.containers {
		c := &w.containers[i]
		for _, use := range c.Resources.Claims {
			if use.Name != name {
				continue
			}
			named = true
			if use.Request != "" && !slices.Contains(requests, use.Request) {
				w.add(true, "container %s names request %q of claim %q, which has none of that name: the container gets no device of it. Name %s",
					c.Name, use.Request, name, strings.Join(requests, " or "))
				continue
			}
			for _, r := range ours {
				used[r] = used[r] || use.Request == "" || use.Request == r
			}
		}
		w.twice(c, name)
	}
	if !named {
		w.add(true, "no container names claim %q: its devices are allocated, and no container gets them. "+
			"Add resources: {claims: [{name: %s}]} to one", name, name)
		return
	}
	if ref.ResourceClaimName != nil {
		return // other pods that name the claim may use the rest of it
	}
	for _, r := range ours {
		if !used[r] {
			w.add(true, "no container names request %q of claim %q: its devices are allocated, and no container gets them", r, name)
		}
	}
}

// isOurs reports whether a request, or an alternative of it, is for devices of the driver.
func (w *wiring) isOurs(r *resourceapi.DeviceRequest) bool {
	classes := []string{}
	if r.Exactly != nil {
		classes = append(classes, r.Exactly.DeviceClassName)
	}
	for i := range r.FirstAvailable {
		classes = append(classes, r.FirstAvailable[i].DeviceClassName)
	}
	return slices.ContainsFunc(classes, w.isOurClass)
}

func (w *wiring) isOurClass(name string) bool {
	class, err := w.Classes.Get(name)
	return err == nil && resourcepool.SelectsDriver(class, w.Driver)
}

// twice looks for a container that names a claim, and asks for an extended resource for devices of the driver, too.
func (w *wiring) twice(c *corev1.Container, claim string) {
	if !slices.ContainsFunc(c.Resources.Claims, func(use corev1.ResourceClaim) bool { return use.Name == claim }) || w.wasted(c) != "" {
		return // what is wasted is said for the container
	}
	for _, resource := range extendedResources([]corev1.Container{*c}) {
		if w.isOurClass(classFor(w.Classes, string(resource))) {
			w.add(false, "container %s names claim %q and asks for %s: it gets the devices of both. Remove one of them", c.Name, claim, resource)
		}
	}
}

// several looks for a container that asks for several time-sliced shares. The allocator chooses a device for each, never one twice in a
// request (k8s.io/dynamic-resource-allocation/structured, allocateOne goes on behind the last).
func (w *wiring) several(c *corev1.Container) {
	for _, resource := range extendedResources([]corev1.Container{*c}) {
		class := classFor(w.Classes, string(resource))
		count := c.Resources.Requests[resource]
		if n := count.Value(); n > 1 && w.isOurClass(class) && strings.HasSuffix(class, "timeslice.cleave.dev") {
			w.add(false, "container %s asks for %d of %s: it gets one share of each of %d GPUs, not more of one. Ask for 1, or for whole GPUs",
				c.Name, n, resource, n)
		}
	}
}

func (w *wiring) add(lost bool, format string, args ...any) {
	w.found = append(w.found, Miswiring{lost, fmt.Sprintf(format, args...)})
}
