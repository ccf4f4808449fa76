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

// A force-deleted pod leaves the API server at once. Its claim is deallocated and the GPU allocated to the next
// pod while the containers are still ending; the kubelet unprepares the claim some two seconds later. If Prepare refused until
// then, the kubelet would retry only after seven seconds or more, so Prepare waits.

const (
	// prepareLimit bounds Prepare as a whole: the kubelet waits 45 s for the call (defaultClientCallTimeout of
	// k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin v1.37.1), and a later error would be lost.
	prepareLimit = 42 * time.Second
	// releaseTimeout bounds the wait for claims that are leaving.
	releaseTimeout = 15 * time.Second
	// startTimeout bounds the wait for a plugin that has just started.
	startTimeout = 10 * time.Second
	// askTimeout bounds finding out which claims are leaving.
	askTimeout = 2 * time.Second
	// finishTimeout bounds one attempt to complete releases.
	finishTimeout = 5 * time.Second
	// releaseRetry is the time between two attempts to finish a release. No event reports that a process has ended, or that
	// another plugin process has released a claim.
	releaseRetry = time.Second
)

// releaseWait is a Prepare call that waits.
type releaseWait struct {
	Named
	// gone tells for each claim that was checked whether it is leaving. If it is allocated the same device again meanwhile,
	// that only costs the wait: its release checks again.
	gone map[types.UID]bool
	// finishing is the error of the last unfinished release; nil if there was none.
	finishing error
}

// prepareAfter prepares a claim once the claims that block it have been released. It holds no lock while it waits.
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
			if !blocked.counted || blocked.canPass(w.stays) { // the state of some is unknown
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

// ask finds out which claims are leaving, until the answer is clear. If the API server does not answer,
// a claim counts as staying.
func (w *releaseWait) ask(ctx context.Context, blocked *blockedError) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, other := range blocked.by {
		// A record that is not Prepared while its GPU's lock is free was interrupted or released: it only needs cleaning up.
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
			klog.FromContext(ctx).V(4).Info("Cannot determine whether a claim is leaving", "claim", other.record.Claim, "reason", err.Error())
			return
		}
		w.gone[uid] = gone
	}
}

// finish completes releases that have started, as far as possible now. A claim that is still Prepared is left to the
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
		w.Ledger.changed() // its devices are no longer occupied
	}
}

// await returns when another attempt is worthwhile; an error once the timeout has expired.
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

func (w *releaseWait) giveUp(ctx context.Context, names string, refusal error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for claims %s to be released: %w", names, err)
	}
	err := fmt.Errorf("timed out after %s waiting for claims %s to be released (deallocated, but their containers may still run): %w",
		releaseTimeout, names, refusal)
	if w.finishing != nil {
		err = fmt.Errorf("%w (%w)", err, w.finishing)
	}
	return err
}

// unchanged fails if a claim has changed while it waited: the kubelet read it before.
func (w *releaseWait) unchanged(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	now, err := w.api.Claim(ctx, claim.Namespace, claim.Name)
	if err != nil {
		return fmt.Errorf("read the claim again after waiting for its devices: %w", err)
	}
	if now == nil || now.UID != claim.UID || !apiequality.Semantic.DeepEqual(now.Status.Allocation, claim.Status.Allocation) {
		return errors.New("the claim was deleted or allocated again while it waited for its devices")
	}
	return nil
}
