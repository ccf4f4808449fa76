// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// The session ends, nothing is allocated meanwhile, and the program re-executes itself when the driver can be used again.
func TestLoop_Release(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "a30")
		l.Begin(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(t.Context()) }()
		synctest.Wait()
		f.took()
		f.set(func() { f.state.Node.ReleaseDriver = true })
		l.Mark(Cluster)
		why := <-done
		if !errors.Is(why, ErrReleaseRequested) {
			t.Fatalf("got %v, want %v", why, ErrReleaseRequested)
		}
		for _, devices := range read(f, &f.slices) {
			for _, d := range devices {
				if !strings.HasSuffix(d, "!") {
					t.Errorf("device %s is not tainted", d)
				}
			}
		}
		f.took()
		f.set(func() { f.endErr = errors.New("disk full") })
		go func() { done <- l.Release(t.Context(), why) }()
		synctest.Wait()
		if got, want := f.took(), "waiting quiesce end"; got != want || read(f, &f.closed) {
			t.Errorf("the session cannot be ended: got %q, closed %t; want %q, and the driver in use", got, read(f, &f.closed), want)
		}
		for _, step := range []struct {
			change func()
			want   string
		}{
			{func() { f.endErr, f.closeErr = nil, gpu.ErrHangs }, "end released close"},
			{func() { f.state.Node.ReleaseDriver, f.missing = false, gpu.ErrDriverNotLoaded }, "close inUse waiting"},
			// Who deletes the plugin because the call hangs must not have it back before the label is gone.
			{func() { f.state.Node.ReleaseDriver, f.missing = true, nil }, "close released waiting"},
			{func() { f.closeErr = nil }, "close"},
			{func() {}, ""},
		} {
			f.set(step.change)
			<-time.After(l.DriverRetry)
			synctest.Wait()
			if got := f.took(); got != step.want {
				t.Errorf("got %q, want %q: the session is ended once, and the driver released once no call hangs", got, step.want)
			}
			if err := read(f, &f.driver); errors.Is(err, gpu.ErrHangs) != (read(f, &f.closeErr) != nil) {
				t.Errorf("got readiness %v, want why the driver is not released", err)
			}
		}
		f.set(func() { f.state.Node.ReleaseDriver, f.missing = false, gpu.ErrDriverNotLoaded }) // it is being replaced
		l.Mark(Cluster)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("got %v while there is no driver", err)
		default:
		}
		if err := read(f, &f.driver); err == nil || !strings.Contains(err.Error(), "went away") {
			t.Errorf("got readiness %v, want the next reason", err)
		}
		for _, step := range []struct {
			label bool
			want  string
		}{{true, "inUse waiting released waiting"}, {false, "inUse waiting"}} { // while it is gone by itself
			f.set(func() { f.state.Node.ReleaseDriver = step.label })
			l.Mark(Cluster)
			synctest.Wait()
			if got := f.took(); got != step.want {
				t.Errorf("label %t: got %q, want %q", step.label, got, step.want)
			}
		}
		f.set(func() { f.missing = nil })
		if err := <-done; !errors.Is(err, ErrDriverAvailable) { // the clock of the bubble goes on to the next attempt
			t.Errorf("got %v, want %v", err, ErrDriverAvailable)
		}
		want := []string{"DriverNotReleased", "DriverNotReleased", "DriverReleased", "DriverAvailable"} // once it is closed
		if diff := cmp.Diff(want, read(f, &f.events)); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}
	})
}

func TestLoop_ReleaseContextCanceled(t *testing.T) {
	l, f := newFakeLoop(t, "a30")
	f.state.Node.ReleaseDriver = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Release(ctx, ErrReleaseRequested); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
