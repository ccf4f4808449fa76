// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// The node's MPS supervisor keeps a list of claims of its own. What stands on it must leave with its claim, also where
// the record of the claim was lost, was corrupt or was removed while no plugin ran. Several plugins share one supervisor,
// by different driver names: what another one's claims have is never taken here but where the API server says that the
// claim is gone.

// recoverSharing brings the MPS servers of the node in line with the records, and after a start the time slices, which
// a reload of the driver forgets.
func (e *Engine) recoverSharing(ctx context.Context, b *backend, started bool) {
	if e.sharing == nil {
		return
	}
	logger := klog.FromContext(ctx)
	node := b.hardware.Node()
	for i := range node.GPUs {
		if err := e.recoverInterval(ctx, &node.GPUs[i], started); err != nil {
			logger.Error(err, "Could not set the time slices of a GPU; it is tried again at the next reconcile", "gpu", node.GPUs[i].PCI.DeviceName())
		}
	}
	e.recoverMPS(ctx)
}

// recoverInterval sets the interval of a GPU's time slices after a start.
func (e *Engine) recoverInterval(ctx context.Context, g *gpu.GPU, started bool) error {
	if !started {
		return nil
	}
	name := g.PCI.DeviceName()
	held, err := e.lockFor(ctx, "", []string{name})
	if err != nil {
		e.again(true)
		return err
	}
	defer held.Release()
	holder, interval := e.index.interval(name, "")
	if holder == nil {
		return nil
	}
	err = e.sharing.SetTimeSlice(ctx, g, interval)
	e.again(err != nil)
	return err
}

// recoverMPS takes claims of ours from MPS servers that no record has, wherever they are: on GPUs that the policy shares
// no more and on GPUs that are gone, too.
func (e *Engine) recoverMPS(ctx context.Context) {
	logger := klog.FromContext(ctx)
	served, err := e.sharing.ServedMPS(ctx)
	if err != nil {
		logger.Error(err, "Could not bring MPS servers in line with claims; it is tried again at the next reconcile")
		return
	}
	for _, name := range servedGPUs(served, func(s records.Served) bool { return s.Owner == e.id.Driver }) {
		if err := e.lockAndRetain(ctx, name); err != nil {
			logger.Error(err, "Could not bring the MPS server of a GPU in line with claims; it is tried again at the next reconcile", "gpu", name)
		}
	}
}

// servedGPUs lists the GPUs of which a test holds for some claim, sorted.
func servedGPUs(served []records.Served, test func(records.Served) bool) []string {
	var names []string
	for _, s := range served {
		if test(s) {
			names = append(names, s.GPU)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (e *Engine) lockAndRetain(ctx context.Context, name string) error {
	held, err := e.lockFor(ctx, "", []string{name})
	if err != nil {
		return err
	}
	defer held.Release()
	return e.retain(ctx, name)
}

// retain takes from a GPU's MPS server the claims of ours that have nothing of it by their records. The caller holds the
// GPU's lock: nobody registers a claim of ours meanwhile.
func (e *Engine) retain(ctx context.Context, name string) error {
	served, err := e.sharing.ServedMPS(ctx)
	if err != nil {
		return err
	}
	// Pods of claims with corrupt records may be among the server's clients: it must not end under them.
	keep := slices.Concat(e.index.mpsClaims(name), e.corrupt.all())
	for _, s := range served {
		// A supervisor of an earlier release knows no owners, and would take these, too.
		if s.GPU == name && s.Owner != e.id.Driver {
			keep = append(keep, s.Claim)
		}
	}
	slices.Sort(keep)
	return e.sharing.RetainMPS(ctx, name, slices.Compact(keep))
}

// stopServed takes a claim without a record from the MPS servers that serve it. What fails is tried again by recoverMPS;
// till then the compute mode of the GPU keeps it from claims that do not share it by MPS (checkComputeModes).
func (e *Engine) stopServed(ctx context.Context, uid types.UID) {
	if e.sharing == nil {
		return
	}
	served, err := e.sharing.ServedMPS(ctx)
	for _, name := range servedGPUs(served, func(s records.Served) bool { return s.Claim == uid }) {
		err = errors.Join(err, e.lockAndStop(ctx, uid, name, func() (bool, error) { return e.index.get(uid) == nil, nil }))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not take a claim without a record from MPS servers; it is tried again at the next reconcile", "claimUID", uid)
	}
}

// stopUnrecorded is stopServed for a claim whose record was corrupt, unless it has one again.
func (e *Engine) stopUnrecorded(ctx context.Context, uid types.UID) {
	if e.index.get(uid) == nil {
		e.stopServed(ctx, uid)
	}
}

// lockAndStop takes a claim from a GPU's MPS server if a test holds while the GPU is locked.
func (e *Engine) lockAndStop(ctx context.Context, uid types.UID, name string, test func() (bool, error)) error {
	held, err := e.lockFor(ctx, uid, []string{name})
	if err != nil {
		return err
	}
	defer held.Release()
	if ok, err := test(); err != nil || !ok {
		return err
	}
	klog.FromContext(ctx).Info("Taking a claim without a record from an MPS server", "gpu", name, "claimUID", uid)
	return e.sharing.StopMPS(ctx, uid, name)
}

// reconcileServed takes from MPS servers the claims of no or another owner that have no record here and are gone from
// the API server: those of a driver name that this node has no plugin of any more, and those that a plugin of a release
// before owners left behind.
func (e *Engine) reconcileServed(ctx context.Context, api API) {
	if e.sharing == nil {
		return
	}
	logger := klog.FromContext(ctx)
	served, err := e.sharing.ServedMPS(ctx)
	if err != nil {
		return // recoverMPS says so
	}
	for _, s := range served {
		if s.Owner == e.id.Driver || e.accounted(s.Claim) {
			continue
		}
		gone := func() (bool, error) {
			claim, err := api.ClaimByUID(ctx, s.Claim)
			if err != nil {
				return false, fmt.Errorf("look for claim %s: %w", s.Claim, err)
			}
			return !e.accounted(s.Claim) && (claim == nil || claim.Status.Allocation == nil), nil
		}
		ok, err := gone()
		if err == nil && ok {
			err = e.lockAndStop(ctx, s.Claim, s.GPU, gone)
		}
		if err != nil {
			logger.Error(err, "Could not take a claim that is gone from an MPS server; it is tried again at the next reconcile", "gpu", s.GPU, "claimUID", s.Claim)
		}
	}
}

// again has the next Recover set time slices as it does after a start.
func (e *Engine) again(failed bool) {
	if failed {
		e.recovered.Store(false)
	}
}

// keepThreads lets a claim that is prepared again have what an earlier release gave it: all of the multiprocessors in so
// many words, where its parameters say nothing of them. It would count as another claim else, and its MPS server would
// end under its containers.
func keepThreads(share, before *records.Share) {
	if share.MPS != nil && before != nil && before.MPS != nil && share.MPS.ThreadPercentage == 0 && before.MPS.ThreadPercentage == wholeGPU {
		share.MPS.ThreadPercentage = wholeGPU
	}
}
