// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Shares sets up time slicing and MPS on GPUs and partitions for claims, and reverts it after the last claim.
type Shares struct {
	ledger *Ledger
	// sharing is nil if GPUs are not shared.
	sharing Sharing
	silence silence
	// restored is the hardware whose time-slice intervals have been set since it became available.
	restored atomic.Pointer[backend]
}

// errNoSharing refuses shares without Sharing.
var errNoSharing = errors.New("this plugin does not share GPUs")

// start sets up sharing for a claim's devices, and fills in the directories of their servers.
func (s *Shares) start(ctx context.Context, b *backend, r *records.Record, others map[string]gpuRecords) error {
	for _, d := range withInterval(r) {
		if by, _ := others[d.GPU].paced(); len(by) > 0 {
			continue // already set
		}
		if err := s.setInterval(ctx, b, d, d.Share.Interval); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
	}
	for _, d := range r.Shares(gpu.MPS) {
		g := b.hardware.Node().Find(d.GPU)
		if s.sharing == nil || g == nil {
			return fmt.Errorf("request %q: %w", d.Request, errNoSharing)
		}
		var err error
		if d.Share.MPS.PipeDir, d.Share.MPS.ShmDir, err = s.startServer(ctx, b, r, g, d); err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
	}
	return nil
}

// restart starts missing servers of a prepared claim. It reports whether the claim's GPUs are present.
func (s *Shares) restart(ctx context.Context, b *backend, r *records.Record) (bool, error) {
	for _, d := range r.Shares(gpu.MPS) {
		g, err := locate(b, d)
		if err != nil || g == nil || s.sharing == nil {
			return false, err
		}
		if _, _, err := s.startServer(ctx, b, r, g, d); err != nil {
			return false, err
		}
	}
	return true, nil
}

// startServer makes the MPS server of a device's GPU or partition serve a claim.
func (s *Shares) startServer(ctx context.Context, b *backend, r *records.Record, g *gpu.GPU, d *records.Device) (
	pipeDir, shmDir string, err error) {
	served := g.Whole()
	if d.Partition != nil {
		partitions := shapesOf(g, []gpu.Partition{*d.Partition})
		if len(partitions) == 0 {
			return "", "", fmt.Errorf("GPU %s has no profile %d any more", g.UUID, d.Partition.ProfileID)
		}
		served = partitions[0]
	}
	err = s.ask(ctx, served.Name(), func() (err error) {
		pipeDir, shmDir, err = s.sharing.StartMPS(ctx, r.Claim.UID, served, d.OwnUUID(), b.hardware.Node().Offer(g), d.Share.Limits())
		return err
	})
	return pipeDir, shmDir, err
}

// stop reverts start for a claim, except what other claims still need. It returns the devices whose share is not released.
func (s *Shares) stop(ctx context.Context, b *backend, r *records.Record) (kept []*records.Device, err error) {
	if s.sharing == nil {
		return nil, nil
	}
	var errs []error
	note := func(d *records.Device, err error) {
		if err != nil {
			kept, errs = append(kept, d), append(errs, err)
		}
	}
	for _, d := range withInterval(r) {
		if by, _ := s.ledger.index.on(d.GPU, r.Claim.UID).paced(); len(by) == 0 {
			if err := s.setInterval(ctx, b, d, string(v1alpha1.IntervalDefault)); !takenOut(err) {
				note(d, err)
			}
		}
	}
	for _, d := range r.Shares(gpu.MPS) {
		if !d.Released {
			note(d, s.stopServer(ctx, r.Claim.UID, d))
		}
	}
	return kept, errors.Join(errs...)
}

// stopServer removes a claim from the MPS server of a device. After the last claim of a partition no server may keep running,
// not even for a claim that a plugin registered before it was killed: the partition is destroyed next.
func (s *Shares) stopServer(ctx context.Context, uid types.UID, d *records.Device) error {
	err := s.ask(ctx, d.Server(), func() error { return s.sharing.StopMPS(ctx, uid, d.Server()) })
	if err != nil || d.Partition == nil || len(s.ledger.index.on(d.GPU, uid).served(d.Server())) > 0 {
		return err
	}
	return s.retain(ctx, d.Server())
}

// withInterval lists a record's time slices that request an interval and are not Released, one per GPU: those of one GPU request the
// same interval.
func withInterval(r *records.Record) []*records.Device {
	var found []*records.Device
	for _, d := range r.Shares(gpu.TimeSlice) {
		if d.Share.Interval != "" && !d.Released && !slices.ContainsFunc(found, func(o *records.Device) bool { return o.GPU == d.GPU }) {
			found = append(found, d)
		}
	}
	return found
}

func (s *Shares) setInterval(ctx context.Context, b *backend, d *records.Device, interval string) error {
	if b.hardware == nil {
		// That the plugin does not use the driver yet does not mean that none is loaded, so the interval may still be set.
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, b.reason)
	}
	g, err := locate(b, d)
	switch {
	case err != nil:
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, err)
	case g == nil:
		return nil // the GPU is gone, with its interval
	case s.sharing == nil:
		return errNoSharing
	}
	err = s.sharing.SetTimeSlice(ctx, g, interval)
	if err != nil && !errors.Is(err, gpu.ErrHangs) {
		err = errors.Join(err, b.hardware.VerifyGPU(ctx, g)) // an allocated GPU stays in the inventory when it is removed or replaced
	}
	return err
}
