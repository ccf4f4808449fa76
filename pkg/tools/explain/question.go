// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Question is what to explain: claims that are to be allocated together.
type Question struct {
	subject string
	pod     *corev1.Pod
	claims  []*resourceapi.ResourceClaim
	causes  []Cause
	notes   []string
	// resources are the extended resources that DeviceClasses serve.
	resources []corev1.ResourceName
	// scheduled is the node of a pod that has one; nothing is asked of it.
	scheduled string
	// over says that the pod has ended or is being deleted; nothing is asked of it either.
	over bool
	// has are the devices of claims that are allocated.
	has []Holding
	// says is why the pod's scheduler has found no node.
	says string
	// planned is set for a pod that need not exist, whose claims are not created either.
	planned bool
}

// AboutClaim asks about a claim, which need not exist.
func AboutClaim(claim *resourceapi.ResourceClaim) *Question {
	q := &Question{subject: "ResourceClaim " + nameOf(claim), claims: []*resourceapi.ResourceClaim{withDefaults(claim)}}
	q.holds(claim)
	switch {
	case claim.Status.Allocation != nil:
	case claim.DeletionTimestamp != nil:
		q.causes = append(q.causes, Cause{Kind: ClaimBusy, Claim: nameOf(claim), name: "it is being deleted"})
	default:
		q.notes = append(q.notes, "A claim is allocated once a pod uses it: taints and labels of nodes then count, too.")
	}
	return q
}

// AboutTemplate asks about a claim of a template.
func AboutTemplate(t *resourceapi.ResourceClaimTemplate) *Question {
	q := AboutClaim(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Name}, Spec: t.Spec.Spec})
	q.subject = "ResourceClaimTemplate " + t.Namespace + "/" + t.Name
	return q
}

// Namespace has the objects of a pod's namespace, by name. Templates need only be those of claims that do not exist.
type Namespace struct {
	Claims    map[string]*resourceapi.ResourceClaim
	Templates map[string]*resourceapi.ResourceClaimTemplate
	// Events are those of the pod. EventsUnread is why they are not known.
	Events       []corev1.Event
	EventsUnread error
	// Quotas are those of the namespace. QuotasUnread is why they are not known.
	Quotas       []*corev1.ResourceQuota
	QuotasUnread error
}

// AboutPod asks about the claims of a pod, and its extended resources that DeviceClasses serve.
func AboutPod(pod *corev1.Pod, in Namespace, o Objects) *Question {
	q := &Question{subject: "Pod " + pod.Namespace + "/" + pod.Name, pod: pod, scheduled: pod.Spec.NodeName}
	ends := endsOf(pod)
	q.over = len(ends) > 0
	switch {
	case q.scheduled != "":
		q.scheduledWith(in)
		for _, end := range ends {
			q.notes = append(q.notes, "It "+end+".")
		}
	case q.over:
		for _, end := range ends {
			q.causes = append(q.causes, Cause{Kind: PodOver, name: end})
		}
	default:
		q.asks(in, o)
	}
	q.miswirings(in, o)
	return q
}

// AboutPlanned asks about a pod that is not created yet, of an object that the subject names.
func AboutPlanned(subject string, pod *corev1.Pod, in Namespace, o Objects) *Question {
	q := &Question{subject: subject, pod: pod, planned: true}
	q.asks(in, o)
	byPlugin := slices.ContainsFunc(o.Nodes, func(n *corev1.Node) bool { return n.Name == pod.Spec.NodeName && q.servedByPlugin(n) })
	for _, claim := range q.claims {
		served := byPlugin && claim.Name == extendedName(pod)
		if pod.Spec.NodeName != "" && claim.Status.Allocation == nil && !served { // no scheduler looks at the pod
			q.causes = append(q.causes, Cause{Kind: NotAllocated, Claim: nameOf(claim)})
		}
	}
	q.miswirings(in, o)
	return q
}

// asks adds what the pod asks for, and what else keeps it from a node.
func (q *Question) asks(in Namespace, o Objects) {
	pod := q.pod
	var created []*resourceapi.ResourceClaimTemplate
	for i := range pod.Spec.ResourceClaims {
		if t := q.podClaim(&pod.Spec.ResourceClaims[i], in); t != nil {
			created = append(created, t)
		}
	}
	q.charge(in, o, created)
	for _, t := range created {
		if !q.planned {
			q.causes = append(q.causes, Cause{Kind: NotCreated, name: t.Name})
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil && in.Claims[status.ResourceClaimName] != nil {
		q.claims = append(q.claims, in.Claims[status.ResourceClaimName])
	} else if claim := q.extended(o); claim != nil {
		q.claims = append(q.claims, claim)
	}
	for _, claim := range q.claims {
		q.holds(claim)
	}
	q.waits(in, o)
}

// miswirings notes what is wrong between containers and claims.
func (q *Question) miswirings(in Namespace, o Objects) {
	for _, m := range Miswirings(q.pod, in, o) {
		q.notes = append(q.notes, strings.ToUpper(m.Message[:1])+m.Message[1:]+".")
	}
}

// podClaim adds a claim of the pod. For one that does not exist, it adds why, and what its template would give, which is returned.
func (q *Question) podClaim(ref *corev1.PodResourceClaim, in Namespace) *resourceapi.ResourceClaimTemplate {
	name, _, err := resourceclaim.Name(q.pod, ref)
	if err == nil && name == nil {
		return nil // the pod needs none
	}
	if name != nil {
		claim := in.Claims[*name]
		switch {
		case claim == nil:
			q.causes = append(q.causes, Cause{Kind: ClaimMissing, name: *name})
		case resourceclaim.IsForPod(q.pod, claim, true) != nil && ref.ResourceClaimTemplateName != nil:
			q.causes = append(q.causes, Cause{Kind: ClaimBusy, Claim: nameOf(claim), name: "it was created for another pod of that name"})
		default:
			q.existing(claim)
		}
		return nil
	}
	if ref.ResourceClaimTemplateName == nil {
		return nil
	}
	template := in.Templates[*ref.ResourceClaimTemplateName]
	if template == nil {
		q.causes = append(q.causes, Cause{Kind: TemplateMissing, name: *ref.ResourceClaimTemplateName})
		return nil
	}
	q.claims = append(q.claims, withDefaults(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.pod.Namespace, Name: ref.Name}, Spec: template.Spec.Spec}))
	return template
}

// existing adds a claim, and why the pod cannot use it.
func (q *Question) existing(claim *resourceapi.ResourceClaim) {
	if q.planned { // the claim may be, too
		claim = withDefaults(claim)
	}
	q.claims = append(q.claims, claim)
	why := ""
	switch {
	case claim.DeletionTimestamp != nil:
		why = "it is being deleted"
	case claim.Status.Allocation != nil && !resourceclaim.IsReservedForPod(q.pod, claim, true) && !resourceclaim.CanBeReserved(claim):
		why = fmt.Sprintf("%d pods use it, which is the most", len(claim.Status.ReservedFor))
	}
	if why != "" {
		q.causes = append(q.causes, Cause{Kind: ClaimBusy, Claim: nameOf(claim), name: why})
	}
}

func extendedName(pod *corev1.Pod) string { return pod.Name + "-extended-resources" }

// servedByPlugin reports whether a device plugin serves all of the pod's extended resources on a node.
func (q *Question) servedByPlugin(node *corev1.Node) bool {
	return !slices.ContainsFunc(q.resources, func(name corev1.ResourceName) bool {
		quantity := node.Status.Allocatable[name]
		return quantity.Value() == 0
	})
}

// extended is the claim that the scheduler creates for extended resources; nil if DeviceClasses serve none.
func (q *Question) extended(o Objects) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: q.pod.Namespace, Name: extendedName(q.pod)}}
	containers := slices.Concat(q.pod.Spec.InitContainers, q.pod.Spec.Containers)
	for _, name := range extendedResources(containers) {
		class := classFor(o.Classes, string(name))
		switch {
		case class != "":
			q.resources = append(q.resources, name)
			for _, r := range extendedRequests(containers, len(q.pod.Spec.InitContainers), name, class) {
				taken := func(other resourceapi.DeviceRequest) bool { return other.Name == r.Name }
				for slices.ContainsFunc(claim.Spec.Devices.Requests, taken) { // by a resource of that name in another domain
					r.Name += "-2"
				}
				claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r)
			}
		case !slices.ContainsFunc(o.Nodes, func(n *corev1.Node) bool { _, ok := n.Status.Allocatable[name]; return ok }):
			q.causes = append(q.causes, Cause{Kind: ClassMissing, name: string(name)})
		}
	}
	if len(claim.Spec.Devices.Requests) == 0 {
		return nil
	}
	return claim
}

// extendedResources are those of containers, in order.
func extendedResources(containers []corev1.Container) []corev1.ResourceName {
	var names []corev1.ResourceName
	for i := range containers {
		for name, quantity := range containers[i].Resources.Requests {
			if strings.Contains(string(name), "/") && !quantity.IsZero() && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// extendedRequests are those for one resource. An init container that ends before the others start has their devices, too; of what such
// containers need beyond them, the most counts (kube-scheduler, createRequestsAndMappings in
// pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go).
func extendedRequests(containers []corev1.Container, init int, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	_, short, _ := strings.Cut(string(name), "/")
	request := func(i int, count int64) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: strings.ReplaceAll(containers[i].Name+"-"+short, ".", "-"),
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, Count: count, AllocationMode: resourceapi.DeviceAllocationModeExactCount}}
	}
	ends := func(i int) bool {
		policy := containers[i].RestartPolicy
		return i < init && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways)
	}
	wants := func(i int) int64 {
		quantity := containers[i].Resources.Requests[name]
		return quantity.Value()
	}
	var all []resourceapi.DeviceRequest
	first, most := 0, int64(0)
	for i := range containers {
		if !ends(i) {
			if wants(i) > 0 {
				all = append(all, request(i, wants(i)))
			}
			continue
		}
		more := wants(i)
		for j := i; j < len(containers); j++ {
			if !ends(j) {
				more -= wants(j)
			}
		}
		if more > most {
			first, most = i, more
		}
	}
	if most > 0 {
		all = slices.Insert(all, 0, request(first, most))
	}
	return all
}

// classFor is the class that serves an extended resource: of several the newest, as the scheduler has it.
func classFor(classes []*resourceapi.DeviceClass, resource string) string {
	if name, ok := strings.CutPrefix(resource, resourceapi.ResourceDeviceClassPrefix); ok {
		return name
	}
	var best *resourceapi.DeviceClass
	for _, c := range classes {
		if c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != resource {
			continue
		}
		if best == nil || cmp.Or(c.CreationTimestamp.Compare(best.CreationTimestamp.Time), strings.Compare(best.Name, c.Name)) > 0 {
			best = c
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}
