// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// The sources.
const (
	// Node is taints and conditions of the Node object.
	Node = "node"
	// AWS, GCE and Azure are the metadata services of these clouds.
	AWS   = "aws"
	GCE   = "gce"
	Azure = "azure"
)

// Names lists the sources.
func Names() []string { return []string{Node, AWS, GCE, Azure} }

// Source announces notices.
type Source interface {
	Name() string
	// Poll returns the notices that stand; with an error, those of them that it knows all the same. It is called by one goroutine at
	// a time.
	Poll(ctx context.Context) ([]Notice, error)
}

// NewSource makes a source. url is that of the metadata service, read returns what handlers have written on the Node.
func NewSource(name, url string, read func() ([]Notice, error)) (Source, error) {
	switch name {
	case Node:
		return nodeSource{read}, nil
	case AWS:
		return &aws{service: newService(url), now: time.Now}, nil
	case GCE:
		return gce{newService(url)}, nil
	case Azure:
		return &azure{service: newService(url), now: time.Now}, nil
	}
	return nil, fmt.Errorf("source of notices %q is unknown: want some of %v", name, Names())
}

const (
	// pollEvery is how often a source is asked: Google Cloud gives 30 seconds, Azure as little. Amazon EC2 recommends at least every
	// five seconds.
	pollEvery = 2 * time.Second
	// pollTimeout bounds one poll, of several requests.
	pollTimeout = 8 * time.Second
	// pollRarely is the longest pause of a source that has never answered.
	pollRarely = time.Minute
)

// Watcher asks sources. A nil one has none.
type Watcher struct {
	sources []Source
	changed func()
	wake    chan struct{}
	// first is closed once each source was asked.
	first chan struct{}

	mu       sync.Mutex
	standing []Standing
}

// NewWatcher asks sources; changed is called when Standing has changed, and must not block.
func NewWatcher(changed func(), sources ...Source) *Watcher {
	return &Watcher{sources: sources, changed: changed, wake: make(chan struct{}, 1), first: make(chan struct{})}
}

// Standing are the notices that stand. The caller does not change them.
func (w *Watcher) Standing() []Standing {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.standing
}

// Look has the Node read again. It does not block.
func (w *Watcher) Look() {
	if w == nil {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Await returns once each source was asked, the time is over, or ctx ends.
func (w *Watcher) Await(ctx context.Context, atMost time.Duration) {
	if w == nil {
		return
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-w.first:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Start asks the sources until ctx ends or the returned function is called.
func (w *Watcher) Start(ctx context.Context) (end func()) {
	if w == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		all.Wait()
	}
}

// run asks the sources until ctx ends. It is called once.
func (w *Watcher) run(ctx context.Context) {
	var all, first sync.WaitGroup
	first.Add(len(w.sources))
	for _, s := range w.sources {
		all.Go(func() { w.follow(ctx, s, sync.OnceFunc(first.Done)) })
	}
	all.Go(func() {
		first.Wait()
		close(w.first)
	})
	all.Wait()
}

// follow asks one source until ctx ends; asked is called once it was, or ctx has ended.
func (w *Watcher) follow(ctx context.Context, s Source, asked func()) {
	defer asked()
	var wake <-chan struct{}
	if s.Name() == Node {
		wake = w.wake
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "source", s.Name())
	pause, answered, reason := pollEvery, false, ""
	for ctx.Err() == nil {
		polling, cancel := context.WithTimeout(ctx, pollTimeout)
		said, err := s.Poll(polling)
		cancel()
		if ctx.Err() != nil {
			return
		}
		w.learn(Answer{s.Name(), said, err}, time.Now())
		switch {
		case err == nil:
			if reason != "" {
				logger.Info("The source of notices answers")
			}
			pause, answered, reason = pollEvery, true, ""
			asked()
		case reason == "": // others may differ between attempts, such as ports: one line is enough
			reason = clean(err.Error())
			logger.Info("The source of notices gives no full answer: what it leaves out is unknown", "reason", reason)
		}
		if err != nil && s.Name() != Node {
			asked()
			if answered = answered || len(said) > 0; !answered {
				pause = min(2*pause, pollRarely)
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// learn notes an answer.
func (w *Watcher) learn(a Answer, now time.Time) {
	w.mu.Lock()
	was := w.standing
	w.standing = Learn(was, a, now)
	same := slices.EqualFunc(was, w.standing, func(a, b Standing) bool { return a.Notice == b.Notice && a.Since.Equal(b.Since) })
	w.mu.Unlock()
	if !same {
		w.changed()
	}
}
