// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// stopPatience bounds how long a plugin that is to end goes on for calls that are under way: as long as Prepare waits for other
// claims to end, and short enough for a pod's grace period of 30 seconds.
const stopPatience = 15 * time.Second

// underWay counts the kubelet's calls about claims that have no answer yet. During a rolling update the kubelet sends calls to the
// plugin that registered last, but does not repeat those that the one before it leaves unanswered until a pod's next
// synchronisation, some seconds later, and reports them as failed.
type underWay struct {
	mu    sync.Mutex
	calls int
	// idle is closed when the last call is answered; nil while nobody waits for that.
	idle chan struct{}
}

// intercept counts a call until it is answered.
func (u *underWay) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/NodePrepareResources") || strings.HasSuffix(info.FullMethod, "/NodeUnprepareResources") {
		u.begin()
		defer u.end()
	}
	return handler(ctx, req)
}

func (u *underWay) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
}

func (u *underWay) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls--; u.calls == 0 && u.idle != nil {
		close(u.idle)
		u.idle = nil
	}
}

// answered returns how many calls are under way, and a channel that is closed when none is.
func (u *underWay) answered() (calls int, idle <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls > 0 && u.idle == nil {
		u.idle = make(chan struct{})
	}
	return u.calls, u.idle
}

// outlast returns a context that ends after its parent: once no call is under way, or patience is over. Its end function ends it
// at once, with a cause.
func (u *underWay) outlast(parent context.Context, patience time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		if err := u.wait(ctx, patience); err != nil {
			klog.FromContext(ctx).Error(err, "Stopping before all calls were answered")
		}
		end(context.Cause(parent))
	})
	return ctx, func(cause error) {
		stop()
		end(cause)
	}
}

// wait waits until no call is under way. It fails when ctx ends or patience is over.
func (u *underWay) wait(ctx context.Context, patience time.Duration) error {
	calls, idle := u.answered()
	if calls == 0 {
		return nil
	}
	klog.FromContext(ctx).Info("Answering calls of the kubelet before stopping", "calls", calls)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the kubelet's calls to be answered: %w", context.Cause(ctx))
	case <-timer.C:
		calls, _ = u.answered()
		return fmt.Errorf("wait for the kubelet's calls to be answered: %d still are under way after %s", calls, patience)
	}
}
