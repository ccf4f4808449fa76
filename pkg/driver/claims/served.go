// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// The node's MPS supervisor keeps a list of claims of its own. An entry must leave with its claim, also where
// the record of the claim was lost, was corrupt or was removed while no plugin ran. Several plugins share one supervisor,
// by different driver names: what another one's claims have is never taken here but where the API server says that the
// claim is gone.

// recover brings the MPS servers of the node in line with the records, and after a start the time slices, which
// a reload of the driver forgets.
func (s *Shares) recover(ctx context.Context, b *backend) {
	if s.sharing == nil {
		return
	}
	started := s.restored.Swap(b) != b
	logger := klog.FromContext(ctx)
	node := b.hardware.Node()
	for i := range node.GPUs {
		if !started {
			break
		}
		if err := s.recoverInterval(ctx, &node.GPUs[i]); err != nil {
			logger.Error(err, "Could not set the time slices of a GPU; retrying at the next reconcile",
				"gpu", node.GPUs[i].PCI.DeviceName())
		}
	}
	s.recoverMPS(ctx)
}

// recoverInterval sets the interval of a GPU's time slices after a start.
func (s *Shares) recoverInterval(ctx context.Context, g *gpu.GPU) error {
	name := g.PCI.DeviceName()
	if by, _ := s.ledger.index.on(name, "").paced(); len(by) == 0 {
		return nil // its lock may be taken for long, as by a change of its MIG mode
	}
	held, err := s.ledger.lockFor(ctx, "", []string{name})
	if err != nil {
		s.restored.Store(nil)
		return err
	}
	defer held.Release()
	by, interval := s.ledger.index.on(name, "").paced()
	if len(by) == 0 {
		return nil
	}
	if err = s.sharing.SetTimeSlice(ctx, g, interval); err != nil {
		s.restored.Store(nil) // the next recover sets all of them again
	}
	return err
}

// recoverMPS takes claims of ours from MPS servers that no record has, wherever they are: on GPUs that the policy shares
// no more and on GPUs that are gone, too.
func (s *Shares) recoverMPS(ctx context.Context) {
	logger := klog.FromContext(ctx)
	served, err := s.sharing.ServedMPS(ctx)
	if err != nil {
		logger.Error(err, "Could not bring MPS servers in line with claims; retrying at the next reconcile")
		return
	}
	for _, name := range servers(served, func(on records.Served) bool { return on.Owner == s.ledger.id.Driver }) {
		if s.ledger.isChanging(gpuOfServer(name)) {
			continue // the next recover does it
		}
		if err := s.lockAndRetain(ctx, name); err != nil {
			logger.Error(err, "Could not bring an MPS server in line with claims; retrying at the next reconcile", "server", name)
		}
	}
}

// servers lists those of which a test holds for some claim, sorted.
func servers(served []records.Served, test func(records.Served) bool) []string {
	var names []string
	for _, on := range served {
		if test(on) {
			names = append(names, on.Server)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// gpuOfServer is the name of the GPU whose lock an MPS server needs.
func gpuOfServer(name string) string {
	if pci, err := gpu.ParseDeviceName(name); err == nil {
		return pci.DeviceName()
	}
	return name
}

func (s *Shares) lockAndRetain(ctx context.Context, name string) error {
	held, err := s.ledger.lockFor(ctx, "", []string{gpuOfServer(name)})
	if err != nil {
		return err
	}
	defer held.Release()
	return s.retain(ctx, name)
}

// retain takes from an MPS server the claims of ours that have nothing of it by their records. The caller holds the lock of
// its GPU: nobody registers a claim of ours meanwhile.
func (s *Shares) retain(ctx context.Context, name string) error {
	// Pods of claims with corrupt records may be among the server's clients: it must not end under them.
	keep := slices.Concat(s.ledger.index.on(gpuOfServer(name), "").served(name), s.ledger.corrupt.all())
	slices.Sort(keep)
	return s.sharing.RetainMPS(ctx, name, slices.Compact(keep))
}

// stopServed takes a claim without a record from the MPS servers that serve it. What fails is tried again by recoverMPS;
// till then the compute mode of the GPU keeps it from claims that do not share it by MPS (checkComputeModes).
func (s *Shares) stopServed(ctx context.Context, uid types.UID) {
	if s.sharing == nil {
		return
	}
	served, err := s.sharing.ServedMPS(ctx)
	for _, name := range servers(served, func(on records.Served) bool { return on.Claim == uid }) {
		err = errors.Join(err, s.lockAndStop(ctx, uid, name, func() (bool, error) { return s.ledger.index.get(uid) == nil, nil }))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not take a claim without a record from MPS servers; retrying at the next reconcile",
			"claimUID", uid)
	}
}

// stopUnrecorded is stopServed for a claim whose record was corrupt, unless it has one again.
func (s *Shares) stopUnrecorded(ctx context.Context, uid types.UID) {
	if s.ledger.index.get(uid) == nil {
		s.stopServed(ctx, uid)
	}
}

// lockAndStop takes a claim from an MPS server if a test holds while its GPU is locked.
func (s *Shares) lockAndStop(ctx context.Context, uid types.UID, name string, test func() (bool, error)) error {
	held, err := s.ledger.lockFor(ctx, uid, []string{gpuOfServer(name)})
	if err != nil {
		return err
	}
	defer held.Release()
	if ok, err := test(); err != nil || !ok {
		return err
	}
	klog.FromContext(ctx).Info("Taking a claim without a record from an MPS server", "server", name, "claimUID", uid)
	return s.sharing.StopMPS(ctx, uid, name)
}

// reconcileServed takes from MPS servers the claims of no or another owner that have no record here and are gone from
// the API server: those of a driver name that this node has no plugin of any more, and those that a plugin of a release
// before owners left behind.
func (s *Shares) reconcileServed(ctx context.Context, api API) {
	if s.sharing == nil {
		return
	}
	logger := klog.FromContext(ctx)
	served, err := s.sharing.ServedMPS(ctx)
	if err != nil {
		return // recoverMPS says so
	}
	for _, on := range served {
		if on.Owner == s.ledger.id.Driver || s.ledger.accountsFor(on.Claim) {
			continue
		}
		gone := func() (bool, error) {
			claim, err := api.ClaimByUID(ctx, on.Claim)
			if err != nil {
				return false, fmt.Errorf("look for claim %s: %w", on.Claim, err)
			}
			return !s.ledger.accountsFor(on.Claim) && (claim == nil || claim.Status.Allocation == nil), nil
		}
		ok, err := gone()
		if err == nil && ok {
			err = s.lockAndStop(ctx, on.Claim, on.Server, gone)
		}
		if err != nil {
			logger.Error(err, "Could not take a claim that is gone from an MPS server; retrying at the next reconcile", "server", on.Server,
				"claimUID", on.Claim)
		}
	}
}
