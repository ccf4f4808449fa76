// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// A pod that is deleted by force leaves the API server at once. Its claim is deallocated and the GPU allocated to the next
// pod while the containers still end; the kubelet unprepares the claim some two seconds later. Where Prepare refused until
// then, the kubelet would try again only after seven seconds or more, so it waits.

const (
	// prepareLimit bounds Prepare as a whole: the kubelet waits 45 s for the call (defaultClientCallTimeout of
	// k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin v1.37.1), and an error that comes later is lost.
	prepareLimit = 42 * time.Second
	// releaseTimeout bounds the wait for claims that are leaving.
	releaseTimeout = 15 * time.Second
	// startTimeout bounds the wait for a plugin that has just started.
	startTimeout = 10 * time.Second
	// askTimeout bounds the question which claims are leaving.
	askTimeout = 2 * time.Second
	// finishTimeout bounds one attempt to complete releases.
	finishTimeout = 5 * time.Second
	// releaseRetry is the time between two attempts to finish a release. No event says that a process has ended, nor that
	// another plugin process has released a claim.
	releaseRetry = time.Second
)

// releaseWait is one Prepare that waits.
type releaseWait struct {
	Named
	// gone are the claims that were found to be leaving, or not to be. One that is allocated the same device again meanwhile
	// costs the wait, no more: its release asks again.
	gone map[types.UID]bool
	// finishing is why a release could not be finished; nil if none was tried.
	finishing error
}

// prepareAfter prepares a claim once others have given back what is in its way. No lock is held while it waits.
func (p Named) prepareAfter(ctx context.Context, claim *resourceapi.ResourceClaim, refusal error) ([]records.Device, error) {
	w := &releaseWait{Named: p, gone: map[types.UID]bool{}}
	waiting, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	retry := time.NewTicker(releaseRetry)
	defer retry.Stop()
	logger, said := klog.FromContext(ctx), ""
	started := time.Now()
	for {
		blocked := (*blockedError)(nil)
		if !errors.As(refusal, &blocked) {
			return nil, refusal
		}
		if w.ask(waiting, blocked); !blocked.passes(w.leaving) {
			if !blocked.counted || blocked.canPass(w.stays) { // it is not known of all of them
				return nil, refusal
			}
			return p.attempt(ctx, claim, terms{counted: true})
		}
		names := blocked.names(w.leaving)
		if names != said {
			said = names
			logger.V(2).Info("Waiting for other claims to be released", "claimUID", claim.UID, "others", names, "waited", time.Since(started))
		}
		w.finish(waiting, blocked)
		if err := w.await(waiting, blocked, retry.C); err != nil {
			return nil, w.giveUp(ctx, names, refusal)
		}
		if err := w.unchanged(ctx, claim); err != nil {
			return nil, err
		}
		var devices []records.Device
		if devices, refusal = p.attempt(ctx, claim, terms{}); refusal == nil {
			return devices, nil
		}
	}
}

func (w *releaseWait) leaving(uid types.UID) bool { return w.gone[uid] }

func (w *releaseWait) stays(uid types.UID) bool {
	gone, known := w.gone[uid]
	return known && !gone
}

// ask finds out which claims are leaving, until it is known whether that is enough. An API server that does not answer says
// nothing of a claim, which then counts as staying.
func (w *releaseWait) ask(ctx context.Context, blocked *blockedError) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, other := range blocked.by {
		// What is not Prepared while its GPU's lock is free was cut short or given back: only work is left of it.
		if other.record.State != records.Prepared {
			w.gone[other.record.Claim.UID] = true
		}
	}
	for _, other := range blocked.by {
		uid := other.record.Claim.UID
		if _, known := w.gone[uid]; known {
			continue
		}
		if blocked.passes(w.leaving) || !blocked.canPass(w.stays) {
			return
		}
		_, gone, err := isGone(ctx, w.api, other.record)
		if err != nil {
			klog.FromContext(ctx).V(4).Info("Cannot find out whether a claim is leaving", "claim", other.record.Claim, "reason", err.Error())
			return
		}
		w.gone[uid] = gone
	}
}

// finish completes releases that have begun, as far as that can be done now. A claim that is still Prepared is left to the
// kubelet: only the kubelet knows when its containers have ended, and one that uses no GPU at the moment may do so later.
func (w *releaseWait) finish(ctx context.Context, blocked *blockedError) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	w.calls.RLock()
	defer w.calls.RUnlock()
	b := w.backend.Load()
	if b.hardware == nil {
		return
	}
	for _, other := range blocked.by {
		r := w.Ledger.index.get(other.record.Claim.UID)
		if r == nil || r.State == records.Prepared || !w.leaving(r.Claim.UID) {
			continue
		}
		if err := w.recoverClaim(ctx, b, r); err != nil {
			w.finishing = err
			klog.FromContext(ctx).V(4).Info("A claim cannot be released yet", "claim", r.Claim, "reason", err.Error())
			continue
		}
		w.Ledger.changed() // its devices are not occupied any more
	}
}

// await returns when it is worth trying again; an error once the timeout has expired.
func (w *releaseWait) await(waiting context.Context, blocked *blockedError, retry <-chan time.Time) error {
	for {
		changed := w.Ledger.index.next()
		if !w.Ledger.index.hasAll(blocked.by) {
			return waiting.Err()
		}
		select {
		case <-changed:
		case <-retry:
			return waiting.Err()
		case <-waiting.Done():
			return waiting.Err()
		}
	}
}

// giveUp says for whom it waited.
func (w *releaseWait) giveUp(ctx context.Context, names string, refusal error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for the release of claims %s: %w", names, err)
	}
	err := fmt.Errorf("timed out after %s waiting for claims %s to be released (deallocated, but their containers may still run): %w",
		releaseTimeout, names, refusal)
	if w.finishing != nil {
		err = fmt.Errorf("%w (%w)", err, w.finishing)
	}
	return err
}

// unchanged fails if a claim that has waited is not what it was: the kubelet read it before.
func (w *releaseWait) unchanged(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	now, err := w.api.Claim(ctx, claim.Namespace, claim.Name)
	if err != nil {
		return fmt.Errorf("read the claim again after it waited for its devices: %w", err)
	}
	if now == nil || now.UID != claim.UID || !apiequality.Semantic.DeepEqual(now.Status.Allocation, claim.Status.Allocation) {
		return errors.New("the claim was deleted or allocated anew while it waited for its devices")
	}
	return nil
}
