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

// search generates the spec of a node. A search that hangs, or outlives ctx, continues, and no other one starts before it has ended. The
// caller must hold generating.
func (s *Static) search(ctx context.Context, node *gpu.Node) (*generated, error) {
	if s.searching != nil {
		select {
		case <-s.searching:
			s.searching = nil
		default:
			return nil, fmt.Errorf("search the driver's files: an earlier search has not ended: %w", gpu.ErrHangs)
		}
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
	select {
	case <-ended:
		if ctx.Err() == nil {
			return found, nil
		}
		// What was found may be incomplete.
		return nil, fmt.Errorf("search the driver's files: %w", context.Cause(ctx))
	case <-timer.C:
		s.searching = ended
		return nil, fmt.Errorf("search the driver's files: it took more than %s: %w", searchLimit, gpu.ErrHangs)
	case <-ctx.Done():
		s.searching = ended
		return nil, fmt.Errorf("search the driver's files: %w", context.Cause(ctx))
	}
}
