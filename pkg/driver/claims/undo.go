// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// undo undoes a failed preparation, so that nothing is left behind; if that fails too, the record stays and shows that
// work remains. If nothing was created, an earlier record stays unchanged.
func (a *preparation) undo(ctx context.Context, cause error) error {
	if !a.creates {
		return cause
	}
	r := a.toRecord()
	if errors.Is(cause, gpu.ErrLeftBehind) {
		r.State = records.Preparing // the leftover is found by its place
	}
	ctx = context.WithoutCancel(ctx) // the changes must be undone even if the kubelet has given up waiting
	gone, _, err := a.Preparer.undo(ctx, a.backend, r)
	if err != nil {
		return errors.Join(cause, err)
	}
	if have := a.view.have; have != nil {
		if left := a.users().checkFree(ctx, have); left != nil && !isUnseen(left) {
			r.State = records.Preparing // its pods run on what else it has, such as whole GPUs
			return errors.Join(cause, left, a.Ledger.write(withoutGone(r, gone)))
		}
	}
	return errors.Join(cause, a.forget(r))
}

// Unprepare releases a claim. It needs no GPU driver: without one, partitions are destroyed once it is back. A claim
// without devices is not an error. Devices of pods that have left processes are not allocated again
// before those have ended, see awaitEnded.
func (p Named) Unprepare(ctx context.Context, claim records.Claim) error {
	have, err := p.recall(ctx, claim)
	if errors.Is(err, errOtherName) {
		return p.specs(p.id.Driver).RemoveClaim(claim.UID)
	}
	if err != nil {
		return err
	}
	pods := podsUnseen
	switch {
	case have == nil:
	case have.State != records.Prepared && awaitsChange(p.Ledger, have): // Recover continues
		if have.Unprepared {
			return nil
		}
		return fmt.Errorf("claim %s is not released yet: one of its GPUs %v is being reset", have.Claim, have.GPUs())
	default:
		if pods, err = p.users().awaitEnded(ctx, have); err != nil { // Quiesce does not wait for this
			return err
		}
	}
	p.calls.RLock()
	defer p.calls.RUnlock()
	defer p.Ledger.corrupt.drop(claim.UID) // its record must not be created again
	if have, err = p.find(claim.UID); err != nil {
		return err
	}
	if have == nil {
		p.Shares.stopServed(ctx, claim.UID)
		return p.specs(p.id.Driver).RemoveClaim(claim.UID) // for a claim whose record was set aside
	}
	held, err := p.Ledger.lockFor(ctx, claim.UID, have.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	if p.Record(claim.UID) == nil {
		return nil // released meanwhile, and the claim may have been prepared under another name since
	}
	return p.release(ctx, claim.UID, pods, true)
}

// find returns the record of a claim that is prepared under this driver name; nil if there is none.
func (p Named) find(uid types.UID) (*records.Record, error) {
	r, err := p.Ledger.find(uid)
	if r != nil && r.Driver != p.id.Driver {
		return nil, err
	}
	return r, err
}

// errOtherName: a claim with a corrupt record is allocated under another driver name.
var errOtherName = errors.New("the claim is allocated under another driver name")

// recall finds the record of a claim to unprepare. A corrupt one is created again, so that the claim's devices are not
// left behind. The API server usually still has the claim; without it the devices cannot be found.
func (p Named) recall(ctx context.Context, of records.Claim) (*records.Record, error) {
	have, err := p.find(of.UID)
	if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
		err = p.Ledger.setAside(ctx, of.UID, corrupt.Err)
	}
	if err != nil || have != nil || p.api == nil || !p.Ledger.corrupt.has(of.UID) {
		return have, err
	}
	claim, err := p.api.Claim(ctx, of.Namespace, of.Name)
	if err != nil {
		return nil, fmt.Errorf("read claim %s, whose record is corrupt, from the API server: %w", of, err)
	}
	driver := ""
	if claim != nil && claim.UID == of.UID {
		driver = p.Ledger.Names.of(claim)
	}
	switch driver {
	case "":
		return nil, nil //nolint:nilnil // it has no devices here
	case p.id.Driver:
	default:
		return nil, errOtherName
	}
	p.calls.RLock()
	defer p.calls.RUnlock()
	if _, err := p.prepare(ctx, claim, terms{adopt: true, counted: true}); err != nil {
		klog.FromContext(ctx).Error(err, "Could not find the devices of a claim with a corrupt record; its partitions become unmanaged",
			"claim", of)
	}
	return p.find(of.UID)
}

// release undoes and removes a claim's record, or marks it if its pods have left processes; the caller holds the
// locks of its GPUs. answers means that the kubelet need not call again if this succeeds, see records.Record.Unprepared.
func (p *Preparer) release(ctx context.Context, uid types.UID, pods podsState, answers bool) error {
	have := p.Ledger.index.get(uid)
	if have == nil {
		return nil
	}
	if have.State != records.Prepared {
		defer p.Ledger.changed() // its devices were occupied
	}
	b := p.backend.Load()
	if pods == podsLeft {
		if _, err := p.Shares.stop(ctx, b, have); err != nil { // ending an MPS server ends its clients
			klog.FromContext(ctx).Error(err, "Could not release a share yet; retrying soon", "claim", have.Claim)
		}
		return p.markReleasing(have, pods, answers, nil)
	}
	if b.hardware == nil && len(have.Partitions()) > 0 {
		return p.markReleasing(have, pods, answers, p.releasable(ctx, b, have, settledOf(have, nil, have.InSpec()), pods, nil))
	}
	have, err := p.Ledger.renew(ctx, b, have) // Recover may not have come to it yet
	if err != nil {
		return err
	}
	gone, settled, err := p.undo(ctx, b, have)
	settled, used := p.withoutPassedOn(ctx, have, gone, settled)
	if err == nil && used == nil {
		p.Ledger.index.undone(have, gone)
		return p.forget(have)
	}
	settled = p.releasable(ctx, b, have, settled, pods, err)
	have = p.Ledger.index.get(uid)                                  // which says what is gone
	others := pods == podsEnded && errors.As(err, new(*InUseError)) // processes of others, not the pod's
	if err != nil && !have.Unprepared && !others && len(have.Partitions()) > 0 && !isOutOfReach(err) &&
		!errors.As(err, new(*serverError)) && !errors.As(err, new(*othersError)) {
		return errors.Join(err, p.markReleasing(have, pods, false, nil))
	}
	// On a GPU that is out of reach, or that others use, itself or a partition, the pod has no process left to wait for; its partitions
	// are destroyed once that is possible. The pod need not wait for its shares either: they are released once the sharing backend answers,
	// and until then only shares of the same kind can be allocated on the device.
	klog.FromContext(ctx).Error(cmp.Or(err, used), "Could not release a claim completely yet; retrying soon", "claim", have.Claim)
	return p.markReleasing(have, pods, answers, settled)
}

// isOutOfReach reports whether an error says that nothing can be done to a GPU before it is back, for which the node may first have to
// be drained: a reset or a reboot ends its partitions, too.
func isOutOfReach(err error) bool {
	return slices.ContainsFunc([]error{gpu.ErrUnreadable, gpu.ErrLost, gpu.ErrHangs, gpu.ErrResetRequired, gpu.ErrDriverNotLoaded},
		func(state error) bool { return errors.Is(err, state) })
}

// undo removes the spec of a record, releases its shares and destroys its partitions, and returns those that no longer exist, and the
// settled devices, of which nothing is left to undo. The record itself stays: if something is left to do, it says which partitions are
// gone. The caller holds the locks of its GPUs. A server keeps its partition open, so a partition stays until its share is released.
func (p *Preparer) undo(ctx context.Context, b *backend, r *records.Record) (gone, settled []*records.Device, err error) {
	if err := p.specs(r.Driver).RemoveClaim(r.Claim.UID); err != nil {
		return nil, nil, err // everything else still exists, as the record says
	}
	kept, stopped := p.Shares.stop(ctx, b, r)
	gone, err = p.Partitions.destroy(ctx, b, r, kept)
	if stopped != nil {
		err = errors.Join(err, &serverError{stopped})
	}
	if err != nil {
		err = errors.Join(err, writeGone(p.Ledger, r, gone))
	}
	return gone, settledOf(r, gone, kept), err
}

// writeGone notes on the record of a claim which partitions of r no longer exist. If it cannot be written, at least this process knows.
func writeGone(l *Ledger, r *records.Record, gone []*records.Device) error {
	now := l.index.get(r.Claim.UID)
	if now == nil || len(gone) == 0 {
		return nil
	}
	left := withoutGone(now, gone)
	err := l.write(left)
	if err != nil {
		l.index.set(left)
	}
	return err
}

// serverError: a share may not be released, so its MPS server may not have ended. It is retried, and no pod waits for it.
type serverError struct{ err error }

func (e *serverError) Error() string { return e.err.Error() }
func (e *serverError) Unwrap() error { return e.err }

// othersError: a partition may be in use by claims whose records are corrupt. It is destroyed once that is known, and no pod
// waits for it.
type othersError struct{ err error }

func (e *othersError) Error() string { return e.err.Error() }
func (e *othersError) Unwrap() error { return e.err }

// forget removes a claim's spec and record; the caller holds the locks of its GPUs.
func (p *Preparer) forget(r *records.Record) error {
	if err := p.specs(r.Driver).RemoveClaim(r.Claim.UID); err != nil {
		return err
	}
	return p.Ledger.remove(r.Claim.UID)
}

// markReleasing records that a claim is no longer allocated while its partitions, servers or processes still exist. Pods that
// have ended are removed from the record: their amounts of a shared device are free then. So are the settled devices.
func (p *Preparer) markReleasing(r *records.Record, pods podsState, answers bool, settled []*records.Device) error {
	if err := p.specs(r.Driver).RemoveClaim(r.Claim.UID); err != nil {
		return err
	}
	releasing := r.Clone()
	if r.State == records.Prepared {
		releasing.State = records.Releasing
	}
	if pods != podsLeft {
		releasing.Pods, releasing.OtherConsumers = nil, false
	}
	releasing.Unprepared = r.Unprepared || answers
	releasing = withReleased(releasing, settled)
	if reflect.DeepEqual(releasing, r) {
		return nil
	}
	if err := p.Ledger.write(releasing); err != nil {
		return err
	}
	p.Ledger.changed()
	return nil
}
