// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/cluster"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Reasons of Events about pods that cannot end: something uses their partition, or another step of Unprepare fails.
const (
	reasonInUse           = "PartitionInUse"
	reasonUnprepareFailed = "UnprepareFailed"
)

// maxClaimEvents bounds the Events that wait to be written, and podsTimeout the question which pods they are about.
const (
	maxClaimEvents = 64
	podsTimeout    = 5 * time.Second
)

// claimEvents reports what is wrong with a claim on the claim and on its pods. A nil one reports nothing.
type claimEvents struct {
	claims claims.API
	events *cluster.Events
	queue  chan warning

	mu sync.Mutex
	// reported is why a claim cannot be unprepared. Each cause is reported once, though the kubelet tries every few seconds.
	reported map[types.UID]string
}

// warning is an Event about a claim.
type warning struct {
	claim           records.Claim
	reason, message string
}

func newClaimEvents(api claims.API, events *cluster.Events) *claimEvents {
	return &claimEvents{claims: api, events: events, queue: make(chan warning, maxClaimEvents), reported: map[types.UID]string{}}
}

// unprepared notes the outcome of an Unprepare: the kubelet says no more of a failure than that it tries again. It does not wait.
func (c *claimEvents) unprepared(claim records.Claim, err error) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || errors.Is(err, context.Canceled) { // the plugin ends
		delete(c.reported, claim.UID)
		return
	}
	cause, next := err.Error(), warning{claim, reasonUnprepareFailed,
		fmt.Sprintf("The pod cannot end: %v. The kubelet tries again by itself; remove the cause if it stays.", err)}
	if inUse := (*claims.InUseError)(nil); errors.As(err, &inUse) {
		cause, next.reason = inUse.Device, reasonInUse // by whom may change with each attempt
		next.message = fmt.Sprintf("The pod cannot end: %v. End those processes on the node; the partition is then destroyed, and the "+
			"pod ends by itself.", inUse)
	}
	if c.reported[claim.UID] != cause && c.warn(next) { // else the kubelet tries again
		c.reported[claim.UID] = cause
	}
}

// warn has an Event written on a claim and its pods, unless too many wait. It does not wait.
func (c *claimEvents) warn(w warning) bool {
	select {
	case c.queue <- w:
		return true
	default:
		return false
	}
}

// run writes Events until ctx ends.
func (c *claimEvents) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-c.queue:
			c.write(ctx, next)
		}
	}
}

func (c *claimEvents) write(ctx context.Context, w warning) {
	c.events.WarnClaim(w.claim, w.reason, w.message)
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	claim, err := c.claims.Claim(ctx, w.claim.Namespace, w.claim.Name)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the pods of a claim to write an Event on them", "claim", w.claim, "reason", w.reason)
		return
	}
	if claim == nil || claim.UID != w.claim.UID {
		return // deleted by force, as its pods were
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			c.events.WarnObject(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: user.Name, UID: user.UID},
				w.reason, w.message)
		}
	}
}
