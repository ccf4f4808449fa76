// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// admit is the second step: it checks that nothing prevents the claim from getting its devices, and returns them if the claim is
// prepared already. It undoes an earlier allocation or interrupted preparation of the claim, and sets the MIG modes that the
// devices need, but does not create partitions or set up shares.
func (a *preparation) admit(ctx context.Context) ([]records.Device, error) {
	if err := usable(a.backend, a.devices); err != nil { // again: a mode may have changed while waiting for the lock
		return nil, err
	}
	if have := a.view.have; have != nil && have.Driver != a.id.Driver {
		return nil, &refusal{fmt.Errorf("the claim still has devices %s of driver %s: it can be prepared once that driver has unprepared it",
			strings.Join(have.GPUs(), ", "), have.Driver), ErrAllocated}
	}
	if err := a.checkFree(); err != nil {
		return nil, err
	}
	if err := admitShares(a.devices, a.view, a.counted); err != nil {
		return nil, err
	}
	if err := a.verify(ctx); err != nil {
		return nil, err
	}
	if a.view.have != nil {
		if have, err := a.again(ctx, a.view.have); have != nil || err != nil {
			return have, err
		}
	} else if err := a.checkCorrupt(ctx); err != nil {
		return nil, err
	}
	if !a.adopt { // otherwise its pods may be running, whatever the mode
		if err := a.Shares.checkComputeModes(ctx, a.backend, a.devices, true); err != nil {
			return nil, err
		}
	}
	// Modes before places: changing a mode may take long, and as little time as possible should pass between checking a place and
	// recording the claim to it.
	a.deadline = time.Now().Add(inUseTimeout)
	waiting, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	if err := setModes(waiting, a.backend, a.devices); err != nil {
		return nil, err
	}
	if !a.adopt {
		if err := a.Shares.checkComputeModes(ctx, a.backend, a.devices, false); err != nil {
			return nil, err
		}
	}
	return nil, a.place(ctx)
}

// checkFree fails if another claim or an unclaimed partition blocks this claim's devices.
func (a *preparation) checkFree() error {
	for i := range a.devices {
		d := &a.devices[i]
		if d.admin {
			continue
		}
		want, g := d.extent(), d.shape.GPU
		if others := a.view.others[want.gpu].unfinished(want); len(others) > 0 && !a.adopt {
			return blockedBy(others, fmt.Errorf("request %q: partition %s of GPU %s is being created or destroyed for claim %s: it can be shared "+
				"once that is finished",
				d.request, d.name, g.UUID, others[0].Claim))
		}
		if others := a.view.others[want.gpu].taking(want); len(others) > 0 {
			return blockedBy(others, fmt.Errorf("request %q: device %s of GPU %s is allocated to claim %s: it is exclusive, "+
				"and free once that claim's pods have ended and it is unprepared",
				d.request, d.name, g.UUID, others[0].Claim))
		}
		if other := conflictWith(a.view.conflicts[want.gpu], want); other != nil {
			return &refusal{fmt.Errorf("request %q: device %s of GPU %s is allocated to %s (another name of Cleave on this node): "+
				"it is free once that claim's pods have ended",
				d.request, d.name, g.UUID, other), ErrAllocated}
		}
		// The current offer: the policy may have changed while waiting for the lock.
		offer := a.hardware.Node().Offer(g)
		lies := takenPlaces{a.Ledger}.occupantOf(a.Partitions.unclaimed.of(want.gpu), offer, want)
		if lies.blocks() && !a.adopt && !hasPartition(a.view.have, want.gpu, lies.partition.Place()) {
			return &refusal{fmt.Errorf("request %q: device %s of GPU %s is occupied by %s",
				d.request, d.name, g.UUID, a.Partitions.describe(want.gpu, lies.partition)), ErrAllocated}
		}
	}
	return nil
}

// hasPartition reports whether a claim's record has the partition at a place: the claim keeps it even if the policy removes it.
func hasPartition(r *records.Record, gpuDevice string, at gpu.Place) bool {
	return r != nil && slices.ContainsFunc(r.Partitions(),
		func(d *records.Device) bool { return d.GPU == gpuDevice && d.Partition.Place() == at })
}

// verify checks that the GPUs exist and that a container runtime can inject them.
func (a *preparation) verify(ctx context.Context) error {
	seen := map[*gpu.GPU]bool{}
	var ids []string
	for i := range a.devices {
		d := &a.devices[i]
		if seen[d.shape.GPU] {
			continue
		}
		seen[d.shape.GPU] = true
		if err := a.hardware.VerifyGPU(ctx, d.shape.GPU); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		ids = append(ids, a.cdi.DeviceID(d.gpu))
	}
	return a.cdi.Ensure(ctx, ids)
}

// again returns the devices of a claim that is already prepared, and undoes any other state of it.
func (a *preparation) again(ctx context.Context, have *records.Record) ([]records.Device, error) {
	have, err := a.Ledger.renew(ctx, a.backend, have) // Recover may not have come to it yet
	if err != nil {
		return nil, err
	}
	if sameDevices(have, a.toRecord()) {
		if err := a.Ledger.sessions.check(ctx, a.backend, have, a.view.others); err != nil {
			return nil, err
		}
		whole, err := a.intact(ctx, a.backend, have)
		if err != nil {
			return nil, err
		}
		if whole {
			klog.FromContext(ctx).V(4).Info("Claim is prepared already", "claim", have.Claim)
			if err := note(a.Ledger, have, a.claim); err != nil { // a restarted kubelet calls for any of the claim's pods
				return nil, err
			}
			return have.Devices, nil
		}
	}
	if err := a.checkLeft(ctx, have); err != nil {
		return nil, err
	}
	gone, _, err := a.Preparer.undo(ctx, a.backend, have)
	if err != nil {
		return nil, err
	}
	a.Ledger.index.undone(have, nil)
	return nil, writeGone(a.Ledger, have, gone)
}

// checkCorrupt fails if one of the GPUs may be in use by a claim whose record is corrupt: only the driver could tell.
func (a *preparation) checkCorrupt(ctx context.Context) error {
	var corrupt []types.UID
	for _, name := range gpuNames(a.devices) {
		corrupt = append(corrupt, a.Ledger.corruptOn(name)...)
	}
	if len(corrupt) == 0 || a.Ledger.corrupt.has(a.claim.UID) {
		return nil
	}
	if err := a.users().checkIdle(ctx, a.toRecord(), false); err != nil {
		return fmt.Errorf("the records of claims %v are corrupt: %w", corrupt, err)
	}
	return nil
}

// place finds out what exists in the places of the claim's partitions, and so whether anything has to be created. A claim
// that takes over all of its partitions creates nothing, so nothing may be undone: its pods run in them.
func (a *preparation) place(ctx context.Context) error {
	var lost func(device string) string
	if a.adopt {
		lost = func(device string) string { return a.cdi.ClaimSession(a.claim.UID, device) }
	}
	for i := range a.devices {
		d := &a.devices[i]
		if err := a.Partitions.place(ctx, a.backend, d, a.view.others[d.gpu], lost); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		if !a.adopt {
			a.creates = a.creates || d.shape.IsPartition() || d.share != nil
		} else {
			a.creates = a.creates || d.shape.IsPartition() && !d.admin && d.partition == nil
		}
	}
	return nil
}
