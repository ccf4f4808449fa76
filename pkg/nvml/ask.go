// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// handle gives access to a GPU in one epoch of a session.
type handle struct {
	Device
	dog *watchdog
	// epoch of the session that the handle belongs to: NVML handles do not outlive nvmlShutdown.
	epoch int
	// replaced is the error for a GPU of the inventory whose address another GPU now has.
	replaced error
}

// handle returns the handle of the GPU at an address.
func (s *Session) handle(pci gpu.PCIAddress) (handle, error) {
	s.mu.RLock()
	h, ok := s.last.handles[pci]
	s.mu.RUnlock()
	if ok {
		return h, h.replaced
	}
	if s.Absent(pci) {
		return handle{}, fmt.Errorf("find GPU at %s: %w: %w", pci, gpu.ErrNotFound, gpu.ErrAbsent)
	}
	return handle{}, fmt.Errorf("find GPU at %s: %w", pci, gpu.ErrNotFound)
}

// ask queries the GPU at an address. Errors and logs name the call. See bounded.
func ask[T any](ctx context.Context, s *Session, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, s, pci, call, s.patience.Read, false, f)
}

// alter changes the GPU at an address.
func alter[T any](ctx context.Context, s *Session, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, s, pci, call, s.patience.Change, true, f)
}

// errorOnly adapts a call without a result to ask and alter.
func errorOnly(f func(Device) error) func(Device) (struct{}, error) {
	return func(dev Device) (struct{}, error) { return struct{}{}, f(dev) }
}

func on[T any](
	ctx context.Context, s *Session, pci gpu.PCIAddress, call string, limit time.Duration, changes bool, f func(Device) (T, error),
) (T, error) {
	var none T
	h, err := s.handle(pci)
	if err != nil {
		return none, err
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", call, "pci", pci)
	return bounded(ctx, h.dog, call+" on the GPU at "+pci.String(), limit, changes, func() (T, error) {
		if s.epoch.Load() != int64(h.epoch) {
			return none, fmt.Errorf("%s on the GPU at %s: %w", call, pci, errRestarted)
		}
		value, err := f(h.Device)
		if errors.Is(err, gpu.ErrLost) && s.Absent(pci) {
			err = fmt.Errorf("%w: %w", gpu.ErrAbsent, err)
		}
		return value, err
	})
}

// errRestarted is returned to calls that were queued while the session restarted.
var errRestarted = errors.New("the NVML session was restarted meanwhile; try again")

// askLibrary makes calls that concern no single GPU.
func (s *Session) askLibrary(ctx context.Context, call string, f func() error) error {
	_, err := bounded(ctx, s.dogs.library, call, s.patience.Change, true, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// lacking reports whether the board or its driver does not support a call.
func lacking(err error) bool {
	return errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument)
}
