// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"fmt"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// searchLimit bounds a search for the driver's files and device nodes. It opens GPUs, and may run nvidia-modprobe: both may hang.
// Calls of the kubelet wait for it, for 45 s.
const searchLimit = 20 * time.Second

// lateSearch is a search that outlived its caller.
type lateSearch struct {
	ended <-chan struct{}
	// limit is when it hangs.
	limit time.Time
}

// await returns when the search has ended.
func (l *lateSearch) await(ctx context.Context) error {
	timer := time.NewTimer(time.Until(l.limit))
	defer timer.Stop()
	select {
	case <-l.ended:
		return nil
	default:
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier search of the driver's files: %w", context.Cause(ctx))
	case <-timer.C:
		return fmt.Errorf("search the driver's files: an earlier search has not ended: %w", gpu.ErrHangs)
	}
}

// search generates the spec of a node. A search that hangs, or outlives ctx, continues, and no other one starts before it has ended. The
// caller must hold generating.
func (s *Static) search(ctx context.Context, node *gpu.Node) (*generated, error) {
	if s.searching != nil {
		if err := s.searching.await(ctx); err != nil {
			return nil, err
		}
		s.searching = nil
	}
	done := func() {}
	if s.opts.Search != nil {
		var err error
		if done, err = s.opts.Search(); err != nil {
			return nil, err
		}
	}
	s.tried = s.now()
	ended := make(chan struct{})
	var found *generated
	go func() {
		defer close(ended)
		defer done()
		found = generate(ctx, &s.opts, node)
	}()
	timer := time.NewTimer(searchLimit)
	defer timer.Stop()
	late := &lateSearch{ended, time.Now().Add(searchLimit)}
	select {
	case <-ended:
		if ctx.Err() == nil {
			return found, nil
		}
		// What was found may be incomplete.
		return nil, fmt.Errorf("search the driver's files: %w", context.Cause(ctx))
	case <-timer.C:
		s.searching = late
		return nil, fmt.Errorf("search the driver's files: it took more than %s: %w", searchLimit, gpu.ErrHangs)
	case <-ctx.Done():
		s.searching = late
		return nil, fmt.Errorf("search the driver's files: %w", context.Cause(ctx))
	}
}
