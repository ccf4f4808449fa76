// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Shares makes GPUs shared as claims need it, in time or by MPS, and undoes it after the last of them.
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
		node := b.hardware.Node()
		g := node.Find(d.GPU)
		if s.sharing == nil || g == nil {
			return fmt.Errorf("request %q: %w", d.Request, errNoSharing)
		}
		var err error
		if d.Share.MPS.PipeDir, d.Share.MPS.ShmDir, err = s.sharing.StartMPS(ctx, r.Claim.UID, g, node.Offer(g), d.Share.Limits()); err != nil {
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
		if _, _, err := s.sharing.StartMPS(ctx, r.Claim.UID, g, b.hardware.Node().Offer(g), d.Share.Limits()); err != nil {
			return false, err
		}
	}
	return true, nil
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
		errs = append(errs, s.sharing.StopMPS(ctx, r.Claim.UID, d.GPU))
	}
	return errors.Join(errs...)
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
