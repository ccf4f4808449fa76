// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// claimCount is the quota of claims (ClaimObjectCountName in pkg/quota/v1/evaluator/core of Kubernetes).
const claimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// charges are what is counted against quotas.
type charges map[corev1.ResourceName]int64

// claim charges a claim as Kubernetes does: of alternatives the most of each class, of all devices the most that there may be
// (claimEvaluator.Usage in pkg/quota/v1/evaluator/core/resource_claims.go).
func (c charges) claim(spec *resourceapi.ResourceClaimSpec, o Objects) {
	c[claimCount]++
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		most := map[string]int64{}
		note := func(class string, mode resourceapi.DeviceAllocationMode, count int64) {
			if mode == resourceapi.DeviceAllocationModeAll {
				count = resourceapi.AllocationResultsMaxSize
			}
			most[class] = max(most[class], count, 1)
		}
		if r.Exactly != nil {
			note(r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			note(r.FirstAvailable[j].DeviceClassName, r.FirstAvailable[j].AllocationMode, r.FirstAvailable[j].Count)
		}
		for class, count := range most {
			c[corev1.ResourceName(class+corev1.ResourceClaimsPerClass)] += count
			c[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] += count
			if found, err := o.Classes.Get(class); err == nil && found.Spec.ExtendedResourceName != nil {
				c[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*found.Spec.ExtendedResourceName)] += count
			}
		}
	}
}

func (c charges) pod(containers []corev1.Container, init int) {
	for _, name := range extendedResources(containers) {
		for _, r := range extendedRequests(containers, init, name, "") {
			c[corev1.DefaultResourceRequestsPrefix+name] += r.Exactly.Count
		}
	}
}

// exceeds says which quotas leave too little. Those with scopes are not for claims (MatchesNoScopeFunc).
func (c charges) exceeds(quotas []*corev1.ResourceQuota) []string {
	var found []string
	for _, q := range quotas {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
			hard, used := q.Spec.Hard[name], q.Status.Used[name]
			sum := used.DeepCopy()
			sum.Add(*resource.NewQuantity(c[name], resource.DecimalSI))
			if c[name] > 0 && sum.Cmp(hard) > 0 {
				found = append(found, fmt.Sprintf("ResourceQuota %s allows %s of %s, %s are used, and %d more are requested",
					q.Name, &hard, name, &used, c[name]))
			}
		}
	}
	return found
}

// charge adds the quotas that leave too little for what is to be created for the pod: claims of templates, and the pod if it is
// planned.
func (q *Question) charge(in Namespace, o Objects, created []*resourceapi.ResourceClaimTemplate) {
	c := charges{}
	for _, t := range created {
		c.claim(&t.Spec.Spec, o)
	}
	if q.planned {
		c.pod(slices.Concat(q.pod.Spec.InitContainers, q.pod.Spec.Containers), len(q.pod.Spec.InitContainers))
	}
	for _, why := range c.exceeds(in.Quotas) {
		q.causes = append(q.causes, Cause{Kind: Quota, name: why})
	}
	if in.QuotasUnread != nil && len(c) > 0 {
		q.notes = append(q.notes, fmt.Sprintf("ResourceQuotas are not considered: %v", in.QuotasUnread))
	}
}
