// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Holding is a device that a claim is allocated.
type Holding struct {
	// Claim is "namespace/name".
	Claim   string `json:"claim"`
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// UUID is the one that the driver wrote to the claim's status.
	UUID string `json:"uuid,omitempty"`
	// Capacity are the amounts of a share, such as "memory 20Gi".
	Capacity []string `json:"capacity,omitempty"`
}

// text describes a device for people.
func (h *Holding) text() string {
	text := fmt.Sprintf("claim %s has %s", h.Claim, h.Device)
	if h.UUID != "" {
		text += " (" + h.UUID + ")"
	}
	text += fmt.Sprintf(" of pool %s for request %s", h.Pool, h.Request)
	if len(h.Capacity) > 0 {
		text += " with " + strings.Join(h.Capacity, ", ")
	}
	return text
}

// holds notes the devices of a claim, and its end.
func (q *Question) holds(claim *resourceapi.ResourceClaim) {
	for _, r := range resultsOf(claim) {
		h := Holding{Claim: nameOf(claim), Request: r.Request, Driver: r.Driver, Pool: r.Pool, Device: r.Device, UUID: UUID(claim, &r)}
		for _, name := range slices.Sorted(maps.Keys(r.ConsumedCapacity)) {
			amount := r.ConsumedCapacity[name]
			h.Capacity = append(h.Capacity, fmt.Sprintf("%s %s", name, &amount))
		}
		q.has = append(q.has, h)
	}
	if claim.DeletionTimestamp == nil || claim.Status.Allocation == nil {
		return
	}
	var pods []string
	for _, user := range claim.Status.ReservedFor {
		pods = append(pods, user.Name)
	}
	ends := "once its devices are released"
	if len(pods) > 0 {
		ends = "with the pods that use it: " + list(pods, mostNames)
	}
	q.notes = append(q.notes, fmt.Sprintf("Claim %s is being deleted since %s, and ends %s.",
		nameOf(claim), minute(claim.DeletionTimestamp.Time), ends))
}

// scheduledWith notes the devices of a pod that has a node, and claims without: a scheduler allocates all before it binds the pod.
func (q *Question) scheduledWith(in Namespace) {
	pending := q.pod.Status.Phase == corev1.PodPending || q.pod.Status.Phase == ""
	var names []string
	for i := range q.pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(q.pod, &q.pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if status := q.pod.Status.ExtendedResourceClaimStatus; status != nil {
		names = append(names, status.ResourceClaimName)
	}
	for _, name := range names {
		switch claim := in.Claims[name]; {
		case claim != nil && claim.Status.Allocation != nil:
			q.holds(claim)
		case !pending: // claims end with their pods
		case claim == nil:
			q.causes = append(q.causes, Cause{Kind: ClaimMissing, name: name})
		default:
			q.causes = append(q.causes, Cause{Kind: NotAllocated, Claim: nameOf(claim)})
		}
	}
}

// UUID is the one that the driver wrote to a claim's status for a device; empty until it has.
func UUID(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) string {
	for _, d := range c.Status.Devices {
		if d.Driver != r.Driver || d.Pool != r.Pool || d.Device != r.Device || d.Data == nil {
			continue
		}
		var data v1alpha1.DeviceStatus
		if json.Unmarshal(d.Data.Raw, &data) == nil {
			return data.UUID
		}
	}
	return ""
}
