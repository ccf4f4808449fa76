// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// aboutMissing are the objects that say why a claim was not created.
func aboutMissing(s *Source) []resource {
	templates := s.config.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll)
	quotas := s.config.Client.CoreV1().ResourceQuotas(metav1.NamespaceAll)
	return []resource{{
		kind: "ResourceClaimTemplates", informer: &s.watches.templates, example: &resourceapi.ResourceClaimTemplate{}, transform: unmanaged,
		list: lister(templates), watch: templates.Watch, indexers: cache.Indexers{},
		handler: onChange(func(d *dirty, t *resourceapi.ResourceClaimTemplate) {
			for _, p := range s.watches.podsBy(byTemplate, t.Namespace+"/"+t.Name) {
				podChanged(d, p)
			}
		}, s.mark),
		missing: "Pods whose claims are not created from their ResourceClaimTemplates yet are not shown",
	}, {
		kind: "ResourceQuotas", informer: &s.watches.quotas, example: &corev1.ResourceQuota{}, transform: unmanaged,
		list: lister(quotas), watch: quotas.Watch, indexers: cache.Indexers{},
		handler: onChange(func(d *dirty, q *corev1.ResourceQuota) {
			d.reasons = d.reasons || len(s.watches.podsBy(byWithout, q.Namespace)) > 0
		}, s.mark),
		missing: "Pending claims are explained without ResourceQuotas",
	}}
}

// unmanaged leaves out who wrote an object's fields.
func unmanaged(object any) (any, error) {
	if o, ok := object.(interface {
		runtime.Object
		metav1.Object
	}); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// Indexes of pods that have a claim which is not created from its template yet.
const (
	byTemplate = "template"
	// byWithout is their namespace.
	byWithout = "without"
)

// podsBy are the pods of an index, by name.
func (w *watches) podsBy(index, key string) (pods []*corev1.Pod) {
	if w.pods == nil {
		return nil
	}
	found, err := w.pods.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // there is such an index
	}
	for _, o := range found {
		if p := o.(*corev1.Pod); p.Spec.NodeName == "" {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// claimKey is that of a pod's claim; empty where the pod needs none. One that is not created yet has the name that it will be created
// with, to which random characters are added (generateName of the resource claim controller): no object has a name with such an end.
func claimKey(p *corev1.Pod, ref *corev1.PodResourceClaim) (key string, created bool) {
	switch name, _, err := resourceclaim.Name(p, ref); {
	case err != nil:
		return p.Namespace + "/" + p.Name + "-" + ref.Name + "-", false
	case name == nil:
		return "", true
	default:
		return p.Namespace + "/" + *name, true
	}
}

// uncreated are a pod's claims that are not created from their templates yet, by the index of the templates.
func uncreated(p *corev1.Pod) (templates []string) {
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		if _, created := claimKey(p, ref); !created && ref.ResourceClaimTemplateName != nil {
			templates = append(templates, p.Namespace+"/"+*ref.ResourceClaimTemplateName)
		}
	}
	return templates
}

// missingClaim is the row of a claim that pods wait for and that does not exist; nil if there is none, or none that concerns the driver.
func (w *watches) missingClaim(key string) *Claim {
	pods := w.podsBy(byClaim, key)
	if len(pods) == 0 {
		return nil
	}
	p := waiting(pods)
	c := &Claim{Namespace: p.Namespace, Name: strings.TrimPrefix(key, p.Namespace+"/"), Created: p.CreationTimestamp.UTC(),
		Deleting: p.DeletionTimestamp != nil, Requests: []Request{}, Missing: true}
	for _, p := range pods {
		c.Pods = append(c.Pods, p.Name)
	}
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		of, created := claimKey(p, ref)
		if of != key || created || ref.ResourceClaimTemplateName == nil {
			continue
		}
		if w.templates == nil {
			return nil
		}
		c.Template = *ref.ResourceClaimTemplateName
		o, found, err := w.templates.GetStore().GetByKey(p.Namespace + "/" + c.Template)
		if err != nil || !found {
			return c // whom it concerns is not known, as with a class that does not exist
		}
		requests := o.(*resourceapi.ResourceClaimTemplate).Spec.Spec.Devices.Requests
		if !w.wanted(requests) {
			return nil
		}
		c.Requests = requestsOf(requests)
	}
	return c
}

// asker asks about pending claims.
type asker struct {
	*watches
	objects explain.Objects
	// namespaces are those of the pods, as far as they were asked about.
	namespaces map[string]explain.Namespace
}

// waiting is the first of a claim's pods that is not being deleted, or else the first: of that one, its end is all that there is to say.
func waiting(pods []*corev1.Pod) *corev1.Pod {
	return pods[max(slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil }), 0)]
}

// question is about a claim or, where that is known, the pod that waits for it; nil if it is gone.
func (a *asker) question(s *Source, key string) *explain.Question {
	c, err := s.Claim(key)
	if err == nil && c.Status.Allocation != nil {
		return explain.AboutClaim(c)
	}
	p := a.podOf(key)
	if err != nil {
		p = a.extendedPod(key)
		if pods := a.podsBy(byClaim, key); len(pods) > 0 {
			p = cmp.Or(p, waiting(pods))
		}
	}
	switch {
	case p != nil:
		return explain.AboutPod(a.known(p), a.namespace(p.Namespace), a.objects)
	case err != nil:
		return nil
	default:
		return explain.AboutClaim(c)
	}
}

// namespace has the objects of a pod's namespace.
func (a *asker) namespace(name string) explain.Namespace {
	if in, ok := a.namespaces[name]; ok {
		return in
	}
	in := explain.Namespace{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: map[string]*resourceapi.ResourceClaimTemplate{},
		EventsUnread: errors.New("the dashboard does not read them")}
	for _, c := range a.objects.Claims {
		if c.Namespace == name {
			in.Claims[c.Name] = c
		}
	}
	for _, t := range listed[resourceapi.ResourceClaimTemplate](a.templates) {
		if t.Namespace == name {
			in.Templates[t.Name] = t
		}
	}
	for _, q := range listed[corev1.ResourceQuota](a.quotas) {
		if q.Namespace == name {
			in.Quotas = append(in.Quotas, q)
		}
	}
	if a.quotas == nil {
		in.QuotasUnread = errors.New("the dashboard may not list them")
	}
	a.namespaces[name] = in
	return in
}

// known is the pod with what is known of it: without what Nodes decide, unless they are known, and without claims that are not created,
// unless their templates are.
func (a *asker) known(p *corev1.Pod) *corev1.Pod {
	p = a.withoutNodes(p)
	if a.templates != nil || len(uncreated(p)) == 0 {
		return p
	}
	p = p.DeepCopy()
	p.Spec.ResourceClaims = slices.DeleteFunc(p.Spec.ResourceClaims, func(ref corev1.PodResourceClaim) bool {
		_, created := claimKey(p, &ref)
		return !created
	})
	return p
}
