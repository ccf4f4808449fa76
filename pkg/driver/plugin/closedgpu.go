// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// searchLimit bounds the wait for searches of the driver's files, which take seconds.
const searchLimit = 20 * time.Second

// closedGPU prevents this process from opening a GPU that is closed for a reset: a search of the driver's files for a CDI spec
// has its own NVML session, which opens GPUs.
type closedGPU struct {
	searches *semaphore.Weighted

	mu     sync.Mutex
	closed bool
}

func newClosedGPU() *closedGPU { return &closedGPU{searches: semaphore.NewWeighted(math.MaxInt64)} }

// search starts a search; it fails immediately while a GPU is closed.
func (c *closedGPU) search() (done func(), err error) {
	if !c.searches.TryAcquire(1) {
		return nil, fmt.Errorf("search the driver's files, which opens GPUs: %w", gpu.ErrReleased)
	}
	return func() { c.searches.Release(1) }, nil
}

// close waits until no search is running, and prevents new ones until open is called. It can be repeated.
func (c *closedGPU) close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchLimit)
	defer cancel()
	if err := c.searches.Acquire(ctx, math.MaxInt64); err != nil {
		return fmt.Errorf("wait for a search of the driver's files, which opens GPUs: %w", errors.Join(err, gpu.ErrInUse))
	}
	c.closed = true
	return nil
}

// open reverts close.
func (c *closedGPU) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.closed = false
		c.searches.Release(math.MaxInt64)
	}
}
