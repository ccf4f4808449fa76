// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// calls bounds the calls of a library.
type calls struct {
	lib       Library
	inventory *inventory
	dogs      *watchdogs
	// open is openNode.
	open func(root string, minor int) (*os.File, error)
	// epoch counts the restarts of the session.
	epoch atomic.Int64

	mu sync.Mutex
	// events are the open subscriptions.
	events map[*Events]bool
	// ending are called before NVML is shut down by a restart, while no other call runs.
	ending []func()
}

// ask queries the GPU at an address. Errors and logs name the call. See bounded.
func ask[T any](ctx context.Context, c *calls, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, c, pci, call, readTimeout, false, f)
}

// alter changes the GPU at an address.
func alter[T any](ctx context.Context, c *calls, pci gpu.PCIAddress, call string, f func(Device) (T, error)) (T, error) {
	return on(ctx, c, pci, call, changeTimeout, true, f)
}

// errorOnly adapts a call without a result to ask and alter.
func errorOnly(f func(Device) error) func(Device) (struct{}, error) {
	return func(dev Device) (struct{}, error) { return struct{}{}, f(dev) }
}

func on[T any](
	ctx context.Context, c *calls, pci gpu.PCIAddress, call string, limit time.Duration, changes bool, f func(Device) (T, error),
) (T, error) {
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", call, "pci", pci)
	for {
		h, err := c.inventory.handle(pci)
		if err != nil {
			var none T
			return none, err
		}
		value, err := once(ctx, c, h, pci, call, limit, changes, f)
		if next, nextErr := c.inventory.handle(pci); errors.Is(err, errRestarted) && nextErr == nil && next.epoch != h.epoch {
			continue // nothing was called, and the restarted session has a new handle
		}
		return value, err
	}
}

// once is on with a handle.
func once[T any](
	ctx context.Context, c *calls, h handle, pci gpu.PCIAddress, call string, limit time.Duration, changes bool, f func(Device) (T, error),
) (T, error) {
	var none T
	return bounded(ctx, h.dog, call+" on the GPU at "+pci.String(), limit, changes, func() (T, error) {
		if c.epoch.Load() != int64(h.epoch) {
			return none, fmt.Errorf("%s on the GPU at %s: %w", call, pci, errRestarted)
		}
		value, err := f(h.Device)
		if errors.Is(err, gpu.ErrLost) && c.inventory.absent(pci) {
			err = fmt.Errorf("%w: %w", gpu.ErrAbsent, err)
		}
		return value, err
	})
}

// errRestarted is returned to calls that were queued while the session restarted.
var errRestarted = errors.New("the NVML session was restarted meanwhile; try again")

// library makes calls that concern no single GPU.
func (c *calls) library(ctx context.Context, call string, f func() error) error {
	_, err := bounded(ctx, c.dogs.library, call, changeTimeout, true, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// lacking reports whether the board or its driver does not support a call.
func lacking(err error) bool {
	return errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument)
}
