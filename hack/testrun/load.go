// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// repeat runs the last of the phases runs times under load, after the others once. load makes it, and returns what ends it.
func (r *runner) repeat(ctx context.Context, phases []phase, runs int, load func() (stop func())) error {
	last := len(phases) - 1
	if err := r.run(ctx, phases[:last]); err != nil {
		return err
	}
	defer load()()
	logs := r.logs
	defer func() { r.logs = logs }()
	for n := range runs {
		r.logs = filepath.Join(logs, fmt.Sprintf("run-%d", n+1))
		if err := r.run(ctx, phases[last:]); err != nil {
			return err
		}
	}
	return nil
}

// busy keeps every processor busy until stop is called.
func busy() (stop func()) {
	var loops sync.WaitGroup
	var ended atomic.Bool
	for range runtime.NumCPU() {
		loops.Go(func() {
			for !ended.Load() {
			}
		})
	}
	return func() {
		ended.Store(true)
		loops.Wait()
	}
}
