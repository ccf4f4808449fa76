// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
)

// TestMain discards the log, which is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}

// fakeSource answers what it was told to, or hangs until its context ends.
type fakeSource struct {
	name string

	mu    sync.Mutex
	says  []Notice
	err   error
	hangs bool
	polls int
}

func (f *fakeSource) Name() string { return f.name }

func (f *fakeSource) Poll(ctx context.Context) ([]Notice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.polls++
	if f.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.says, f.err
}

func (f *fakeSource) set(err error, says ...Notice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.says, f.err, f.hangs = says, err, false
}

func (f *fakeSource) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.polls
}

func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, node, changes := &fakeSource{name: AWS}, &fakeSource{name: Node, err: errors.New("unknown")}, 0
		w := NewWatcher(func() { changes++ }, cloud, node)
		end := w.Start(t.Context())
		defer end()
		expect := func(what string, notices, changed int) {
			t.Helper()
			synctest.Wait()
			if got := len(w.Standing()); got != notices || changes != changed {
				t.Errorf("%s: %d notices after %d changes, want %d after %d", what, got, changes, notices, changed)
			}
		}
		expect("nothing", 0, 0)
		node.set(nil, Notice{ID: "taint", Kind: Reclaim})
		w.Look()
		expect("the Node is known", 1, 1)
		start := time.Now()
		w.Await(t.Context(), time.Hour)
		if took := time.Since(start); took != 0 {
			t.Errorf("waited %s though each source was asked", took)
		}
		cloud.set(nil, Notice{ID: "spot", Kind: Reclaim})
		<-time.After(pollEvery)
		expect("spot", 2, 2)
		cloud.set(errors.New("timeout"))
		<-time.After(5 * time.Minute)
		expect("the cloud does not answer", 2, 2)
		cloud.set(errors.New("half of it is rubbish"), Notice{ID: "reboot", Kind: Maintenance})
		<-time.After(pollEvery)
		expect("the cloud answers in part", 3, 3)
		cloud.set(nil)
		node.set(nil)
		<-time.After(settle + pollEvery)
		expect("withdrawn", 0, 6)
	})
}

// A source that hangs, or is not there, costs a start no more than it waits for it, and is asked rarely.
func TestWatcher_NoAnswer(t *testing.T) {
	for name, s := range map[string]*fakeSource{"hangs": {name: AWS, hangs: true}, "not there": {name: GCE, err: errors.New("refused")}} {
		synctest.Test(t, func(t *testing.T) {
			changes := 0
			w := NewWatcher(func() { changes++ }, s)
			end := w.Start(t.Context())
			start := time.Now()
			w.Await(t.Context(), 3*time.Second)
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("%s: waited %s", name, took)
			}
			<-time.After(time.Hour)
			if got := s.polls; got > 66 || len(w.Standing()) > 0 || changes > 0 {
				t.Errorf("%s: asked %d times in an hour, %d notices, %d changes; want 66 at most, 0, 0", name, got, len(w.Standing()), changes)
			}
			s.set(nil)
			<-time.After(pollRarely + pollTimeout)
			before := s.count()
			<-time.After(time.Minute)
			if got := s.count() - before; got < 29 {
				t.Errorf("%s: asked %d times in a minute since it answers, want 29", name, got)
			}
			end()
		})
	}
}

func TestWatcher_Nil(t *testing.T) {
	var w *Watcher
	w.Look()
	w.Await(t.Context(), time.Hour)
	end := w.Start(t.Context())
	end()
	if got := w.Standing(); got != nil {
		t.Errorf("got %v", got)
	}
}
