// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
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
