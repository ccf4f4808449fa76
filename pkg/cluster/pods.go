// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pods are the names of the pods that claims are reserved for. The API server is asked for none of them: they come with claims
// that are read or written for another reason. A watch would have every node follow every claim of the cluster, as claims cannot
// be selected by node.
type Pods struct {
	// recorded reports whether a claim has a record: others are forgotten.
	recorded func(types.UID) bool

	mu      sync.Mutex
	byClaim map[types.UID][]string
}

// NewPods remembers the pods of claims that have a record. recorded may be called at any time.
func NewPods(recorded func(types.UID) bool) *Pods {
	return &Pods{recorded: recorded, byClaim: map[types.UID][]string{}}
}

// Saw notes the pods of a claim as the API server has it. A nil Pods ignores it.
func (p *Pods) Saw(claim *resourceapi.ResourceClaim) {
	if p == nil {
		return
	}
	var names []string
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			names = append(names, user.Name)
		}
	}
	slices.Sort(names)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byClaim[claim.UID] = names
	maps.DeleteFunc(p.byClaim, func(uid types.UID, _ []string) bool { return !p.recorded(uid) })
}

// Of are the pods of a claim, sorted; none where they are not known.
func (p *Pods) Of(claim types.UID) []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byClaim[claim]
}
