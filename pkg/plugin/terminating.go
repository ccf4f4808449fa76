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

// reasonInUse is the reason of Events about pods that cannot end because something uses their partition.
const reasonInUse = "PartitionInUse"

// maxTerminating bounds the Events that wait to be written, and podsTimeout the question which pods they are about.
const (
	maxTerminating = 64
	podsTimeout    = 5 * time.Second
)

// terminating reports claims that cannot be unprepared, and so pods that cannot end, on both: the kubelet says no more than
// that it tries again. A nil one reports nothing.
type terminating struct {
	claims claims.API
	events *cluster.Events
	queue  chan inUse

	mu sync.Mutex
	// reported is the partition that a claim waits for. Each is reported once, though the kubelet tries every few seconds.
	reported map[types.UID]string
}

// inUse is a claim that waits for one of its partitions.
type inUse struct {
	claim records.Claim
	err   *claims.InUseError
}

func newTerminating(api claims.API, events *cluster.Events) *terminating {
	return &terminating{claims: api, events: events, queue: make(chan inUse, maxTerminating), reported: map[types.UID]string{}}
}

// unprepared notes the outcome of an Unprepare. It does not wait.
func (t *terminating) unprepared(claim records.Claim, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var cause *claims.InUseError
	if !errors.As(err, &cause) {
		delete(t.reported, claim.UID)
		return
	}
	if t.reported[claim.UID] == cause.Device {
		return
	}
	select {
	case t.queue <- inUse{claim, cause}:
		t.reported[claim.UID] = cause.Device
	default: // the kubelet tries again
	}
}

// run writes Events until ctx ends.
func (t *terminating) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-t.queue:
			t.report(ctx, next)
		}
	}
}

func (t *terminating) report(ctx context.Context, u inUse) {
	message := fmt.Sprintf("The pod cannot end: %v. End those processes on the node; the partition is then destroyed, and the pod "+
		"ends by itself.", u.err)
	t.events.WarnClaim(u.claim, reasonInUse, message)
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	claim, err := t.claims.Claim(ctx, u.claim.Namespace, u.claim.Name)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the pods of a claim to report that they cannot end", "claim", u.claim)
		return
	}
	if claim == nil || claim.UID != u.claim.UID {
		return // deleted by force, as its pods were
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			t.events.WarnObject(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: user.Name, UID: user.UID},
				reasonInUse, message)
		}
	}
}
