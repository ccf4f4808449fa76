// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Pods are the pods that claims are reserved for. They cost no requests: they come with claims that are read or written for other
// reasons. A watch would make every node follow every claim of the cluster, as claims cannot be selected by node.
type Pods struct {
	// recorded reports whether a claim has a record: others are forgotten.
	recorded func(types.UID) bool

	mu      sync.Mutex
	byClaim map[types.UID][]resourceapi.ResourceClaimConsumerReference
}

// NewPods remembers the pods of claims that have a record. recorded may be called at any time.
func NewPods(recorded func(types.UID) bool) *Pods {
	return &Pods{recorded: recorded, byClaim: map[types.UID][]resourceapi.ResourceClaimConsumerReference{}}
}

// Saw notes the pods of a claim from the API server. A nil Pods ignores it.
func (p *Pods) Saw(claim *resourceapi.ResourceClaim) {
	if p == nil {
		return
	}
	pods := podsOf(claim)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byClaim[claim.UID] = pods
	maps.DeleteFunc(p.byClaim, func(uid types.UID, _ []resourceapi.ResourceClaimConsumerReference) bool { return !p.recorded(uid) })
}

// podsOf are the pods that a claim is reserved for, sorted by name.
func podsOf(claim *resourceapi.ResourceClaim) []resourceapi.ResourceClaimConsumerReference {
	var pods []resourceapi.ResourceClaimConsumerReference
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			pods = append(pods, user)
		}
	}
	slices.SortFunc(pods, func(a, b resourceapi.ResourceClaimConsumerReference) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// Of returns the names of a claim's pods, sorted; none if unknown.
func (p *Pods) Of(claim types.UID) []string {
	var names []string
	for _, pod := range p.known(claim) {
		names = append(names, pod.Name)
	}
	return names
}

func (p *Pods) known(claim types.UID) []resourceapi.ResourceClaimConsumerReference {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byClaim[claim]
}

// References are the pods of a claim, sorted by name, for Events about them. claim is the API server's; nil if it no longer exists:
// then the last known pods are returned.
func (p *Pods) References(of records.Claim, claim *resourceapi.ResourceClaim) []*corev1.ObjectReference {
	pods := p.known(of.UID)
	if claim != nil && claim.UID == of.UID {
		pods = podsOf(claim)
	}
	var references []*corev1.ObjectReference
	for _, pod := range pods {
		references = append(references,
			&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: of.Namespace, Name: pod.Name, UID: pod.UID})
	}
	return references
}
