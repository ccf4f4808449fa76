// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// Serve plans and takes steps again and again until ctx ends. After surprises it leaves the cluster alone for longer.
func (r *Repacker) Serve(ctx context.Context, every time.Duration, most int) error {
	logger := klog.FromContext(ctx)
	r.Say = func(format string, args ...any) { logger.Info(fmt.Sprintf(format, args...)) }
	for surprises, left := 0, true; ; {
		done, err := r.round(ctx, most, left)
		stop := (*Stop)(nil)
		left = false
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was asked to end
		case err == nil:
			surprises = 0
			logger.V(2).Info("No step is left", "steps", done)
		case errors.As(err, &stop) && stop.Reason == Closed && !errors.Is(err, errTaintStays):
			logger.V(2).Info("No pod may be evicted now", "because", stop.Message, "steps", done)
		default:
			surprises++
			left = true
			logger.Error(err, "The repack stops", "steps", done, "again", pauseAfter(every, surprises).String())
		}
		timer := time.NewTimer(pauseAfter(every, surprises))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// round is one repack. The first one, and one after a surprise, looks for what the run before has left, even if no pod may be evicted now.
func (r *Repacker) round(ctx context.Context, most int, left bool) (done int, err error) {
	if !left {
		if err := r.permitted(ctx, 1); err != nil {
			return 0, err
		}
	}
	advice, err := r.Begin(ctx)
	if err != nil {
		return 0, err
	}
	return r.Apply(ctx, advice, most)
}

// mostPauses bounds the pause after surprises, in multiples of the usual one.
const mostPauses = 64

// pauseAfter doubles the pause with each surprise in a row.
func pauseAfter(every time.Duration, surprises int) time.Duration {
	return every * time.Duration(min(1<<min(surprises, 30), mostPauses))
}
