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

// handle is a GPU as this session reaches it.
type handle struct {
	Device
	dog *watchdog
	// epoch of the session that the handle is of: NVML's handles do not outlive nvmlShutdown.
	epoch int
	// replaced is why the GPU of the inventory cannot be reached by it, where another one is in its place; nil if none is.
	replaced error
}

// handle returns how to reach the GPU at an address.
func (s *Session) handle(pci gpu.PCIAddress) (handle, error) {
	s.mu.RLock()
	h, ok := s.last.handles[pci]
	s.mu.RUnlock()
	if ok {
		return h, h.replaced
	}
	if s.Presence(pci) == Absent {
		return handle{}, fmt.Errorf("find GPU at %s: %w: %w", pci, gpu.ErrNotFound, gpu.ErrAbsent)
	}
	return handle{}, fmt.Errorf("find GPU at %s: %w", pci, gpu.ErrNotFound)
}

// ask asks the GPU at an address something, by the call that names it in errors and in the log. See bounded.
func ask[T any](ctx context.Context, s *Session, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, s, pci, call, s.patience.Read, false, f)
}

// alter changes the GPU at an address.
func alter[T any](ctx context.Context, s *Session, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, s, pci, call, s.patience.Change, true, f)
}

func on[T any](ctx context.Context, s *Session, pci gpu.PCIAddress, call string, limit time.Duration, changes bool, f func(Device) (T, error)) (T, error) {
	h, err := s.handle(pci)
	if err != nil {
		var none T
		return none, err
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", call, "pci", pci)
	return bounded(ctx, h.dog, call+" on the GPU at "+pci.String(), limit, changes, func() (T, error) {
		if s.epoch.Load() != int64(h.epoch) {
			var none T
			return none, fmt.Errorf("%s on the GPU at %s: %w", call, pci, errAnew)
		}
		value, err := f(h.Device)
		if errors.Is(err, gpu.ErrLost) && s.Presence(pci) == Absent {
			err = fmt.Errorf("%w: %w", gpu.ErrAbsent, err)
		}
		return value, err
	})
}

// errAnew is what those get who waited while the session was started anew.
var errAnew = errors.New("the NVML session was started anew meanwhile; try again")

// askLibrary calls what is about no GPU.
func (s *Session) askLibrary(ctx context.Context, call string, f func() error) error {
	_, err := bounded(ctx, s.dogs.library, call, s.patience.Change, true, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// lacking reports whether an error says that a board or its driver does not have something.
func lacking(err error) bool {
	return errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument)
}
