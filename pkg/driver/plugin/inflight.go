// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

const (
	// stopTimeout bounds how long a stopping plugin keeps running for calls in flight. It equals the time that Prepare waits for other
	// claims to be released, and leaves the rest of a pod's grace period of 30 seconds for shutdown. Longer calls are aborted.
	stopTimeout = 15 * time.Second
	// answerTime is the time that an answer may take from its handler to the kubelet's connection: gRPC writes it later, and drops
	// unwritten answers when its server is stopped (google.golang.org/grpc, internal/transport, http2Server.Close).
	answerTime = 200 * time.Millisecond
)

// inflight tracks the kubelet's unanswered calls about claims. During a rolling update the kubelet sends calls to the
// plugin that registered last. It reports calls that the previous plugin leaves unanswered as failed, and repeats them only at a pod's
// next synchronisation, some seconds later.
type inflight struct {
	mu sync.Mutex
	// calls are closed when their handlers return, in the order in which they began.
	calls []chan struct{}
	// answered is when a handler last returned.
	answered time.Time
}

// intercept tracks a call until its handler returns.
func (u *inflight) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/NodePrepareResources") || strings.HasSuffix(info.FullMethod, "/NodeUnprepareResources") {
		defer u.begin()()
	}
	return handler(ctx, req)
}

func (u *inflight) begin() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	done := make(chan struct{})
	u.calls = append(u.calls, done)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.calls = slices.DeleteFunc(u.calls, func(c chan struct{}) bool { return c == done })
		u.answered = time.Now()
		close(done)
	}
}

// now returns the calls in flight.
func (u *inflight) now() []chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.calls)
}

// settled returns the time until the last answer has most likely been sent.
func (u *inflight) settled() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return answerTime - time.Since(u.answered)
}

// drain returns a context that ends after its parent: once the calls in flight are answered, or the timeout expires. The
// returned function ends it at once, with a cause.
func (u *inflight) drain(parent context.Context, timeout time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		if err := u.wait(ctx, timeout); err != nil {
			klog.FromContext(ctx).Error(err, "Stopping before all calls were answered")
		}
		end(context.Cause(parent))
	})
	return ctx, func(cause error) {
		stop()
		end(cause)
	}
}

// wait waits until the calls in flight are answered, but not for later ones, which keep coming if no other plugin
// takes them. It fails when ctx ends or the timeout expires.
func (u *inflight) wait(ctx context.Context, timeout time.Duration) error {
	calls := u.now()
	if len(calls) > 0 {
		klog.FromContext(ctx).Info("Answering calls of the kubelet before stopping", "calls", len(calls))
	}
	over := time.NewTimer(timeout)
	defer over.Stop()
	for i, done := range calls {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet's calls to be answered: %w", context.Cause(ctx))
		case <-over.C:
			return fmt.Errorf("wait for the kubelet's calls to be answered: up to %d of %d are still in flight after %s",
				len(calls)-i, len(calls), timeout)
		}
	}
	settle := time.NewTimer(max(u.settled(), 0))
	defer settle.Stop()
	select {
	case <-settle.C:
	case <-ctx.Done():
	}
	return nil
}
