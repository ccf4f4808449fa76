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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
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
	// calls are those in flight, in the order in which they began.
	calls []*call
	// answered is when a handler last returned.
	answered time.Time
}

// call is a call in flight.
type call struct {
	// prepares are the claims that the call prepares.
	prepares []types.UID
	// cancel ends the context of the handler, done is closed when the handler returns.
	cancel context.CancelFunc
	done   chan struct{}
}

// intercept tracks a call until its handler returns. A claim is unprepared only after all earlier calls that prepare it have ended.
//
// Both may be in flight: once a minute the kubelet unprepares the claims of pods that its pod manager no longer has, and the
// synchronisation of a pod, which may be preparing them, does not end with the pod (reconcileLoop of
// k8s.io/kubernetes/pkg/kubelet/cm/dra v1.37.2; kubelet.go, SyncPod: context.WithoutCancel). The kubelet then forgets the claim: what
// is prepared later is never unprepared.
func (u *inflight) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	switch {
	case strings.HasSuffix(info.FullMethod, "/NodePrepareResources"):
		ctx, end := u.begin(ctx, claimUIDs(req))
		defer end()
		return handler(ctx, req)
	case strings.HasSuffix(info.FullMethod, "/NodeUnprepareResources"):
		ctx, end := u.begin(ctx, nil)
		defer end()
		if err := u.endPrepare(ctx, claimUIDs(req)); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
	return handler(ctx, req)
}

// claimUIDs returns the claims of a request to prepare or unprepare some.
func claimUIDs(req any) []types.UID {
	switch r := req.(type) {
	case *drav1.NodePrepareResourcesRequest:
		return uidsOf(r.GetClaims())
	case *drav1.NodeUnprepareResourcesRequest:
		return uidsOf(r.GetClaims())
	}
	return nil
}

func uidsOf(claims []*drav1.Claim) []types.UID {
	uids := make([]types.UID, 0, len(claims))
	for _, c := range claims {
		uids = append(uids, types.UID(c.GetUid()))
	}
	return uids
}

func (u *inflight) begin(ctx context.Context, prepares []types.UID) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := &call{prepares: prepares, cancel: cancel, done: make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, c)
	return ctx, func() {
		cancel()
		u.mu.Lock()
		defer u.mu.Unlock()
		u.calls = slices.DeleteFunc(u.calls, func(o *call) bool { return o == c })
		u.answered = time.Now()
		close(c.done)
	}
}

// endPrepare cancels the calls in flight that prepare one of these claims, and waits for their end.
func (u *inflight) endPrepare(ctx context.Context, claims []types.UID) error {
	for _, c := range u.now() {
		if !slices.ContainsFunc(c.prepares, func(uid types.UID) bool { return slices.Contains(claims, uid) }) {
			continue
		}
		klog.FromContext(ctx).Info("Unpreparing claims that are being prepared; aborting that first", "claimUIDs", claims)
		c.cancel()
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of an earlier call that prepares the claim: %w", ctx.Err())
		}
	}
	return nil
}

// now returns the calls in flight.
func (u *inflight) now() []*call {
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
	for i, c := range calls {
		select {
		case <-c.done:
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
