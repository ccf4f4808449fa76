// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"sync"
	"time"
)

// modeRunner changes the MIG mode of one GPU at a time, or resets it, concurrently with the loop, which waits for it on exit.
type modeRunner struct {
	running sync.WaitGroup

	mu       sync.Mutex
	order    ModeOrder // zero while no change is running
	failures map[string]ModeFailure
}

// state returns the running change, and why the last attempts failed.
func (r *modeRunner) state() (running ModeOrder, failures map[string]ModeFailure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order, maps.Clone(r.failures)
}

// start runs a change; ended is called after it.
func (r *modeRunner) start(ctx context.Context, order ModeOrder, run func(ctx context.Context) error, ended func()) {
	r.mu.Lock()
	r.order = order
	r.mu.Unlock()
	r.running.Go(func() {
		err := run(ctx)
		r.mu.Lock()
		defer ended()
		defer r.mu.Unlock()
		r.order = ModeOrder{}
		delete(r.failures, order.GPU)
		if err == nil {
			return
		}
		if r.failures == nil {
			r.failures = map[string]ModeFailure{}
		}
		r.failures[order.GPU] = ModeFailure{order.Enable, order.Reset, err, time.Now()}
	})
}
