// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// Reasons of Events about claims: a partition of an ending pod is in use, another step of Unprepare fails, an MPS
// server does not start, or devices of an ended claim cannot be released.
const (
	reasonInUse           = "PartitionInUse"      // the claim cannot be unprepared: something uses its partition
	reasonUnprepareFailed = "UnprepareFailed"     // the claim cannot be unprepared; retried
	reasonMPSNotStarted   = "MPSDaemonNotStarted" // the pod cannot start, as its MPS server does not
	reasonNotReleased     = "ClaimNotReleased"    // the claim has ended, but its devices cannot be released; retried
)

// releaseOperation is the attempt of Recover and Reconcile to release an ended claim.
const releaseOperation = "release"

// maxClaimEvents bounds the queue of Events, and podsTimeout finding the pods they are about. An Event whose pods were not found is
// written again after podsRetry.
const (
	maxClaimEvents = 64
	podsTimeout    = 5 * time.Second
	podsRetry      = 5 * time.Minute
)

// claimEvents reports problems of a claim on the claim and on its pods. A nil one reports nothing.
type claimEvents struct {
	claims claims.API
	pods   *cluster.Pods
	events *cluster.Events
	queue  chan warning
	now    func() time.Time
	// failing counts ended claims that cannot be released.
	failing *failing

	mu sync.Mutex
	// reported is why attempts fail. Each cause is reported once every cluster.RepeatAfter, although attempts are repeated every few seconds.
	reported map[attempted]report
}

// report is a reported cause, and when it was last observed and written.
type report struct {
	cause         string
	last, written time.Time
}

// warning is an Event about a claim, such as about a failed attempt.
type warning struct {
	of              attempted
	claim           records.Claim
	reason, message string
	// note is set if it is no warning.
	note bool
}

func newClaimEvents(api claims.API, pods *cluster.Pods, events *cluster.Events, failing *failing) *claimEvents {
	return &claimEvents{
		claims: api, pods: pods, events: events, queue: make(chan warning, maxClaimEvents), now: time.Now, failing: failing,
		reported: map[attempted]report{},
	}
}

// prepared notes the outcome of a Prepare. The kubelet reports failures only on the pod, and in its own words; Cleave
// adds Events about servers that do not start. It does not wait.
func (c *claimEvents) prepared(claim records.Claim, err error) {
	if c == nil {
		return
	}
	a, start := attempted{prepareOperation, claim.UID}, (*mps.StartError)(nil)
	switch {
	case err == nil:
		c.failing.note(releaseOperation, claim.UID, nil)
		c.settle(a, attempted{releaseOperation, claim.UID})
	case errors.As(err, &start) && !errors.Is(err, context.Canceled):
		cause := fmt.Sprint(start.Device, errors.Is(start, mps.ErrUnavailable)) // the rest may differ between attempts
		c.once(a, cause, func() bool {
			return c.warn(warning{of: a, claim: claim, reason: reasonMPSNotStarted, message: fmt.Sprintf("The pod cannot start: %s. The kubelet "+
				"retries; if this persists, fix the cause.", oneLine(start))})
		})
	}
}

// unprepared notes the outcome of an Unprepare: the kubelet only reports that it retries. It does not wait.
func (c *claimEvents) unprepared(claim records.Claim, err error) {
	if c == nil {
		return
	}
	a := attempted{unprepareOperation, claim.UID}
	if err == nil {
		c.failing.note(releaseOperation, claim.UID, nil)
	}
	if err == nil || errors.Is(err, context.Canceled) { // the plugin is stopping
		c.settle(a, attempted{prepareOperation, claim.UID}, attempted{releaseOperation, claim.UID})
		return
	}
	next := warning{of: a, claim: claim, reason: reasonUnprepareFailed,
		message: fmt.Sprintf("Cannot unprepare the claim: %s. The kubelet retries; if this persists, fix the cause.", oneLine(err))}
	cause, inUse, besides := causeOf(err)
	if inUse == nil && errors.Is(err, gpu.ErrInUse) { // by processes of the pod, which may differ between attempts
		cause = gpu.ErrInUse.Error()
		next.message = fmt.Sprintf("Cannot unprepare the claim: %s. The kubelet retries; if this persists, end those processes on the node.",
			oneLine(err))
	}
	if inUse != nil {
		next.reason = reasonInUse
		next.message = fmt.Sprintf("Cannot unprepare the claim: %s. Once nothing uses the partition, it is destroyed and the pod "+
			"ends by itself.", oneLine(inUse))
	}
	if besides != nil {
		next.message = fmt.Sprintf("Cannot unprepare the claim: %s; and %s. End those processes on the node and fix the other cause; "+
			"the pod then ends by itself.", oneLine(inUse), oneLine(besides))
	}
	c.once(a, cause, func() bool { return c.warn(next) })
}

// released notes whether an ended claim could be released, unless an Unprepare reports the same; the metrics count it, too. The claim
// and its pods may be gone, so an Event is written on the node as well. It does not wait.
func (c *claimEvents) released(claim records.Claim, err error) {
	if c == nil {
		return
	}
	a := attempted{releaseOperation, claim.UID}
	if err == nil {
		c.failing.note(releaseOperation, claim.UID, nil)
		c.settle(a)
		return
	}
	// GPUs that are lost or cannot be read are reported as unhealthy.
	if errors.Is(err, context.Canceled) || errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrUnreadable) ||
		c.fails(attempted{unprepareOperation, claim.UID}) {
		return
	}
	c.failing.note(releaseOperation, claim.UID, err)
	remedy := "Cleave retries; if this persists, fix the cause."
	cause, inUse, besides := causeOf(err)
	switch {
	case besides != nil:
		remedy = "End those processes on the node and fix the other cause; Cleave retries."
	case inUse != nil:
		err, remedy = inUse, "Once nothing uses the partition it is destroyed."
	case errors.Is(err, gpu.ErrInUse):
		cause, remedy = gpu.ErrInUse.Error(), "End those processes on the node; Cleave checks again within minutes."
	}
	c.once(a, cause, func() bool {
		message := fmt.Sprintf("Claim %s has ended, but its devices cannot be allocated again: %s. %s", claim, oneLine(err), remedy)
		if !c.warn(warning{of: a, claim: claim, reason: reasonNotReleased, message: message}) {
			return false
		}
		c.events.Warn(reasonNotReleased, message)
		return true
	})
}

// causeOf returns the part of an error that identifies it: the processes that use a partition may differ between attempts, but
// whether the error names any is part of it. besides are the other errors if a partition is in use.
func causeOf(err error) (cause string, inUse *claims.InUseError, besides error) {
	if !errors.As(err, &inUse) {
		return wordsOf(err), nil, nil
	}
	cause = inUse.Device
	if inUse.Named {
		cause += " by those named"
	}
	if besides = errors.Join(notInUse(err)...); besides != nil {
		cause += ": " + wordsOf(besides)
	}
	return cause, inUse, besides
}

// wordsOf is the text of an error, or what does not differ between attempts.
func wordsOf(err error) string {
	if silent := (*claims.SilentError)(nil); errors.As(err, &silent) {
		return "the MPS supervisor does not answer"
	}
	return err.Error()
}

// notInUse returns the joined errors that are not about the use of a partition.
func notInUse(err error) (all []error) {
	switch e := err.(type) { //nolint:errorlint // each level is inspected
	case *claims.InUseError:
		return nil
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, notInUse(one)...)
		}
		return all
	}
	if inUse := (*claims.InUseError)(nil); errors.As(err, &inUse) {
		return notInUse(errors.Unwrap(err))
	}
	return []error{err}
}

// oneLine formats joined errors as part of a sentence.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// once reports a cause unless it is the last reported one, and lately; a failed report is repeated.
func (c *claimEvents) once(a attempted, cause string, write func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.forget(now)
	r := c.reported[a]
	if r.cause != cause || now.Sub(r.written) >= cluster.RepeatAfter {
		if !write() {
			return
		}
		r.written = now
	}
	c.reported[a] = report{cause, now, r.written}
}

// settle notes that attempts have succeeded.
func (c *claimEvents) settle(all ...attempted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range all {
		delete(c.reported, a)
	}
}

// again has the Event about an attempt written again after podsRetry: each such Event counts for those that the node may still have.
func (c *claimEvents) again(a attempted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.reported[a]; ok {
		r.written = c.now().Add(podsRetry - cluster.RepeatAfter)
		c.reported[a] = r
	}
}

// fails reports whether an attempt has failed recently.
func (c *claimEvents) fails(a attempted) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(c.now())
	_, fails := c.reported[a]
	return fails
}

// forget drops attempts that the kubelet no longer repeats because the pod was force-deleted; the caller holds mu.
func (c *claimEvents) forget(now time.Time) {
	maps.DeleteFunc(c.reported, func(a attempted, r report) bool {
		return a.operation != releaseOperation && now.Sub(r.last) > forgetAfter
	})
}

// warn queues an Event on a claim and its pods, unless the queue is full. It does not wait.
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
	onClaim, onPod := c.events.WarnClaim, c.events.WarnObject
	if w.note {
		onClaim, onPod = c.events.NoteClaim, c.events.NoteObject
	}
	onClaim(w.claim, w.reason, w.message)
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	claim, err := c.claims.Claim(ctx, w.claim.Namespace, w.claim.Name)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the pods of a claim to write an Event on them; leaving it to a later attempt",
			"claim", w.claim, "reason", w.reason)
		c.again(w.of)
		return
	}
	for _, pod := range c.pods.References(w.claim, claim) {
		onPod(pod, w.reason, w.message)
	}
}
