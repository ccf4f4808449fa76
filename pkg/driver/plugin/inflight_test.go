// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// stopBed is a plugin that is stopped, or in which something fails.
type stopBed struct {
	inflight
	stop context.CancelFunc
	end  context.CancelCauseFunc
	// rest answers the calls that nobody answered.
	rest []func()
}

// call makes a call that is under way until it is answered.
func (b *stopBed) call(method string) (answer func()) {
	done := make(chan struct{})
	go func() {
		_, _ = b.intercept(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/" + method},
			func(context.Context, any) (any, error) { <-done; return struct{}{}, nil })
	}()
	synctest.Wait()
	answer = sync.OnceFunc(func() { close(done) })
	b.rest = append(b.rest, answer)
	return answer
}

func TestUnderWay_Outlast(t *testing.T) {
	errFatal := errors.New("disk gone")
	for _, tc := range []struct {
		name string
		do   func(b *stopBed)
		// after is how long ctx goes on after do, cause why it ends.
		after time.Duration
		cause error
	}{
		{"nothing under way", func(b *stopBed) { b.stop() }, 0, context.Canceled},
		{"all answered before", func(b *stopBed) { b.call("NodePrepareResources")(); <-time.After(time.Second); b.stop() }, time.Second, context.Canceled},
		{"just answered", func(b *stopBed) { b.call("NodePrepareResources")(); synctest.Wait(); b.stop() }, answerTime, context.Canceled},
		{"another kind of call", func(b *stopBed) { b.call("GetInfo"); b.stop() }, 0, context.Canceled},
		{"a call that takes a while", func(b *stopBed) {
			answer := b.call("NodePrepareResources")
			time.AfterFunc(3*time.Second, answer)
			b.stop()
		}, 3*time.Second + answerTime, context.Canceled},
		{"the last of several", func(b *stopBed) {
			first, second := b.call("NodePrepareResources"), b.call("NodeUnprepareResources")
			b.stop()
			first()
			time.AfterFunc(2*time.Second, second)
		}, 2*time.Second + answerTime, context.Canceled},
		{"calls that come later", func(b *stopBed) {
			time.AfterFunc(time.Second, b.call("NodePrepareResources"))
			b.stop()
			synctest.Wait()
			b.call("NodePrepareResources")
		}, time.Second + answerTime, context.Canceled},
		{"a call that hangs", func(b *stopBed) { b.call("NodePrepareResources"); b.stop() }, 10 * time.Second, context.Canceled},
		{"something fails meanwhile", func(b *stopBed) { b.call("NodePrepareResources"); b.stop(); synctest.Wait(); b.end(errFatal) }, 0, errFatal},
		{"something fails", func(b *stopBed) { b.call("NodePrepareResources"); b.end(errFatal) }, 0, errFatal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, stop := context.WithCancel(context.Background())
				defer stop()
				b := &stopBed{stop: stop}
				ctx, end := b.drain(parent, 10*time.Second)
				defer end(nil)
				b.end = end
				defer func() {
					for _, answer := range b.rest {
						answer()
					}
				}()
				if ctx.Err() != nil {
					t.Fatal("it ends before anything happened")
				}
				start := time.Now()
				tc.do(b)
				<-ctx.Done()
				if took := time.Since(start); took != tc.after {
					t.Errorf("it ended after %s, want %s", took, tc.after)
				}
				if cause := context.Cause(ctx); !errors.Is(cause, tc.cause) {
					t.Errorf("it ended because %v, want %v", cause, tc.cause)
				}
			})
		})
	}
}

// The kubelet unprepares the claim of a force-deleted pod, whose synchronisation is still preparing it.
func TestInflight_UnprepareWhilePreparing(t *testing.T) {
	prepare := &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "other"}, {Uid: "a"}}}
	for name, tt := range map[string]struct {
		prepare, unprepare any
		// waits: the call to prepare is cancelled, and the other one waits for its end, for so long if not zero.
		waits  bool
		atMost time.Duration
	}{
		"the claim":     {prepare, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "a"}}}, true, 0},
		"gives up":      {prepare, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "a"}}}, true, time.Second},
		"another claim": {prepare, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "b"}}}, false, 0},
		"again":         {&drav1.NodeUnprepareResourcesRequest{Claims: prepare.Claims}, &drav1.NodeUnprepareResourcesRequest{Claims: prepare.Claims}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const change = 3 * time.Second // of hardware, which cannot be cancelled
				u, method := &inflight{}, "/NodePrepareResources"
				if _, ok := tt.prepare.(*drav1.NodeUnprepareResourcesRequest); ok {
					method = "/NodeUnprepareResources"
				}
				var first sync.WaitGroup
				first.Go(func() {
					_, _ = u.intercept(t.Context(), tt.prepare, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
						<-time.After(change)
						if (ctx.Err() != nil) != tt.waits {
							t.Errorf("the context of the earlier call: got %v, want cancelled %t", ctx.Err(), tt.waits)
						}
						return struct{}{}, nil
					})
				})
				synctest.Wait()
				start, took := time.Now(), time.Duration(-1)
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.atMost, time.Hour))
				defer cancel()
				_, err := u.intercept(ctx, tt.unprepare, &grpc.UnaryServerInfo{FullMethod: "/NodeUnprepareResources"},
					func(ctx context.Context, _ any) (any, error) { took = time.Since(start); return nil, ctx.Err() })
				want, wantErr := time.Duration(0), error(nil)
				if tt.waits {
					want = change
				}
				if tt.atMost > 0 {
					want, wantErr = -1, context.DeadlineExceeded // it does not unprepare
				}
				if !errors.Is(err, wantErr) || took != want {
					t.Errorf("it unprepares after %s, %v, want after %s", took, err, want)
				}
				first.Wait()
			})
		})
	}
}
