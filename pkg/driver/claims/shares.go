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

// Shares makes GPUs and partitions shared as claims need it, in time or by MPS, and undoes it after the last of them.
type Shares struct {
	ledger *Ledger
	// sharing is nil where GPUs are not shared.
	sharing Sharing
	// restored is the hardware on which the intervals of time slices have been set since it was there.
	restored atomic.Pointer[backend]
}

// errNoSharing is what claims for shares get without Sharing.
var errNoSharing = errors.New("this plugin does not share GPUs")

// start makes GPUs shared as a claim's devices need it, and fills in where their servers are.
func (s *Shares) start(ctx context.Context, b *backend, r *records.Record, others map[string]gpuRecords) error {
	for _, d := range withInterval(r) {
		if by, _ := others[d.GPU].paced(); len(by) > 0 {
			continue // it is so already, and nothing is run without need
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

// restart starts the servers of a prepared claim that are missing. It reports whether the claim's GPUs are there.
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

// startServer has the MPS server of a device's GPU or partition serve a claim.
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
	return s.sharing.StartMPS(ctx, r.Claim.UID, served, d.OwnUUID(), b.hardware.Node().Offer(g), d.Share.Limits())
}

// stop gives back what start did for a claim, as far as no other claim needs it.
func (s *Shares) stop(ctx context.Context, b *backend, r *records.Record) error {
	if s.sharing == nil {
		return nil
	}
	var errs []error
	for _, d := range withInterval(r) {
		if by, _ := s.ledger.index.on(d.GPU, r.Claim.UID).paced(); len(by) == 0 {
			errs = append(errs, s.setInterval(ctx, b, d, string(v1alpha1.IntervalDefault)))
		}
	}
	for _, d := range r.Shares(gpu.MPS) {
		errs = append(errs, s.stopServer(ctx, r.Claim.UID, d))
	}
	return errors.Join(errs...)
}

// stopServer takes a claim from the MPS server of a device. After the last claim that shares a partition no server may run
// there, not for a claim either that a plugin registered before it was killed: the partition is destroyed next.
func (s *Shares) stopServer(ctx context.Context, uid types.UID, d *records.Device) error {
	err := s.sharing.StopMPS(ctx, uid, d.Server())
	if err != nil || d.Partition == nil || len(s.ledger.index.on(d.GPU, uid).served(d.Server())) > 0 {
		return err
	}
	return s.retain(ctx, d.Server())
}

// withInterval lists a record's time slices that ask for an interval, one for each GPU: those of one GPU ask for the same.
func withInterval(r *records.Record) []*records.Device {
	var found []*records.Device
	for _, d := range r.Shares(gpu.TimeSlice) {
		if d.Share.Interval != "" && !slices.ContainsFunc(found, func(o *records.Device) bool { return o.GPU == d.GPU }) {
			found = append(found, d)
		}
	}
	return found
}

func (s *Shares) setInterval(ctx context.Context, b *backend, d *records.Device, interval string) error {
	if b.hardware == nil {
		// That the plugin does not know the driver yet does not mean that none is loaded, which forgets no interval.
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, b.reason)
	}
	g, err := locate(b, d)
	switch {
	case err != nil:
		return fmt.Errorf("set the time slices of %s to %s: %w", d.Device, interval, err)
	case g == nil:
		return nil // gone, and its interval with it
	case s.sharing == nil:
		return errNoSharing
	}
	return s.sharing.SetTimeSlice(ctx, g, interval)
}
