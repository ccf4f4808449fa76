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

// The node's MPS supervisor keeps its own list of claims. An entry must be removed with its claim, even if
// the record of the claim was lost, was corrupt or was removed while no plugin was running. Several plugins share one supervisor
// under different driver names: another one's claims are removed here only if the API server reports that the
// claim is gone.

// recover makes the MPS servers of the node match the records, and after a start also the time slices, which
// a reload of the driver resets.
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
		return nil // its lock may be held for long, for example during a change of its MIG mode
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

// recoverMPS removes this driver's claims without a record from MPS servers, including those on GPUs that the policy no
// longer shares and on GPUs that are gone.
func (s *Shares) recoverMPS(ctx context.Context) {
	logger := klog.FromContext(ctx)
	served, err := s.served(ctx)
	if err != nil {
		logger.Error(err, "Could not bring MPS servers in line with claims; retrying at the next reconcile")
		return
	}
	for _, name := range servers(served, func(on records.Served) bool { return on.Owner == s.ledger.id.Driver }) {
		if s.ledger.isChanging(gpuOfServer(name)) {
			continue // left to the next recover
		}
		if err := s.lockAndRetain(ctx, name); err != nil {
			logger.Error(err, "Could not bring an MPS server in line with claims; retrying at the next reconcile", "server", name)
		}
	}
}

// served lists the claims that the MPS servers of the node serve.
func (s *Shares) served(ctx context.Context) (all []records.Served, err error) {
	err = s.ask(ctx, anyServer, func() (err error) {
		all, err = s.sharing.ServedMPS(ctx)
		return err
	})
	return all, err
}

// servers lists the servers with a claim that satisfies a test, sorted.
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

// gpuOfServer returns the name of the GPU whose lock an MPS server needs.
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

// retain removes from an MPS server this driver's claims that have no share of it on record. The caller holds the lock of
// its GPU, so no claim of this driver is registered meanwhile.
func (s *Shares) retain(ctx context.Context, name string) error {
	// Pods of claims with corrupt records may be among the server's clients, so it must not end.
	keep := slices.Concat(s.ledger.index.on(gpuOfServer(name), "").served(name), s.ledger.corrupt.all())
	slices.Sort(keep)
	return s.ask(ctx, name, func() error { return s.sharing.RetainMPS(ctx, name, slices.Compact(keep)) })
}

// stopServed removes a claim without a record from the MPS servers that serve it. Failures are retried by recoverMPS;
// until then the GPU's compute mode prevents claims that do not share it by MPS from using it (checkComputeModes).
func (s *Shares) stopServed(ctx context.Context, uid types.UID) {
	if s.sharing == nil {
		return
	}
	served, err := s.served(ctx)
	for _, name := range servers(served, func(on records.Served) bool { return on.Claim == uid }) {
		err = errors.Join(err, s.lockAndStop(ctx, uid, name, func() (bool, error) { return s.ledger.index.get(uid) == nil, nil }))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove a claim without a record from MPS servers; retrying at the next reconcile",
			"claimUID", uid)
	}
}

// stopUnrecorded is stopServed for a claim whose record was corrupt, unless it has one again.
func (s *Shares) stopUnrecorded(ctx context.Context, uid types.UID) {
	if s.ledger.index.get(uid) == nil {
		s.stopServed(ctx, uid)
	}
}

// lockAndStop removes a claim from an MPS server if a test passes while its GPU is locked.
func (s *Shares) lockAndStop(ctx context.Context, uid types.UID, name string, test func() (bool, error)) error {
	held, err := s.ledger.lockFor(ctx, uid, []string{gpuOfServer(name)})
	if err != nil {
		return err
	}
	defer held.Release()
	if ok, err := test(); err != nil || !ok {
		return err
	}
	klog.FromContext(ctx).Info("Removing a claim without a record from an MPS server", "server", name, "claimUID", uid)
	return s.ask(ctx, name, func() error { return s.sharing.StopMPS(ctx, uid, name) })
}

// reconcileServed removes from MPS servers the claims of no owner or another one that have no record here and are gone from
// the API server: those of a driver name that no longer has a plugin on this node, and those left by a plugin of a release
// that did not register owners.
func (s *Shares) reconcileServed(ctx context.Context, api API) {
	if s.sharing == nil {
		return
	}
	logger := klog.FromContext(ctx)
	served, err := s.served(ctx)
	if err != nil {
		return // recoverMPS logs it
	}
	for _, on := range served {
		if on.Owner == s.ledger.id.Driver || s.ledger.accountsFor(on.Claim) {
			continue
		}
		if err := s.stopGone(ctx, api, on); err != nil {
			logger.Error(err, "Could not remove a claim that is gone from an MPS server; retrying at the next reconcile", "server", on.Server,
				"claimUID", on.Claim)
		}
	}
}

// stopGone removes a claim from an MPS server if it is gone. All claims are listed before the GPU is locked, for which others wait: a
// UID that the API server once lacks never returns.
func (s *Shares) stopGone(ctx context.Context, api API, on records.Served) error {
	found, err := api.ClaimByUID(ctx, on.Claim)
	if err != nil {
		return fmt.Errorf("look for claim %s: %w", on.Claim, err)
	}
	if found != nil && found.Status.Allocation != nil {
		return nil
	}
	return s.lockAndStop(ctx, on.Claim, on.Server, func() (bool, error) {
		if known := s.ledger.accountsFor(on.Claim); known || found == nil {
			return !known, nil
		}
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		now, err := api.Claim(ctx, found.Namespace, found.Name)
		if err != nil {
			return false, fmt.Errorf("look for claim %s again: %w", on.Claim, err)
		}
		return now == nil || now.UID != on.Claim || now.Status.Allocation == nil, nil
	})
}
