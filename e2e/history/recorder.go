// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Source reports what happens in one place.
type Source interface {
	// Run reports to the recorder until ctx ends, which is no error. It calls ready once nothing that happens from then on is
	// missed without a Gap that says so.
	Run(ctx context.Context, r *Recorder, ready func()) error
}

// Sources are what a recorder records, and where.
type Sources struct {
	// File is created, and written as events come.
	File string
	// Node and Driver are what is recorded of, for the file's first line.
	Node, Driver string
	// Of are all the sources.
	Of []Source
}

// Recorder writes a history. It keeps no events in memory.
type Recorder struct {
	clock  Clock
	path   string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	file *os.File
	errs []error
}

// Record starts to record, and returns when all sources are watched. The recorder ends with Stop; once ctx ends, its sources
// are no longer watched.
func Record(ctx context.Context, sources Sources) (*Recorder, error) {
	clock, err := StartClock()
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(sources.File, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the file of a history: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Recorder{clock: clock, path: sources.File, file: file, cancel: cancel}
	r.Add(Start{Format: Format, Node: sources.Node, Driver: sources.Driver})
	var ready sync.WaitGroup
	for _, s := range sources.Of {
		var once sync.Once
		ready.Add(1)
		r.done.Go(func() {
			defer once.Do(ready.Done)
			if err := s.Run(ctx, r, func() { once.Do(ready.Done) }); err != nil && ctx.Err() == nil {
				r.Fail(err)
			}
		})
	}
	ready.Wait()
	if ctx.Err() != nil {
		r.Fail(fmt.Errorf("wait for the sources: %w", ctx.Err()))
	}
	if r.Err() != nil {
		_, err := r.Stop()
		return nil, err
	}
	return r, nil
}

// Clock is the clock of the events.
func (r *Recorder) Clock() Clock { return r.clock }

// Add records a fact that happens now.
func (r *Recorder) Add(fact Fact) { r.AddAt(r.clock.Now(), fact) }

// AddAt records a fact that happened at a time of the recorder's clock. The order in which events are added does not matter.
func (r *Recorder) AddAt(at time.Duration, fact Fact) {
	ago := r.clock.Now() - at
	data, err := json.Marshal(Event{At: at, Wall: time.Now().UTC().Add(-ago), Fact: fact})
	if err != nil {
		r.Fail(fmt.Errorf("record an event: %w", err))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return // stopped
	}
	if _, err := r.file.Write(append(data, '\n')); err != nil {
		r.errs = append(r.errs, fmt.Errorf("record an event: %w", err))
	}
}

// Err is what went wrong so far: what is not recorded cannot be checked.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// Fail notes that something could not be recorded, with which Stop fails.
func (r *Recorder) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// SoFar is what was recorded until now.
func (r *Recorder) SoFar() (History, error) { return Read(r.path) }

// Stop ends the recording and returns all of it.
func (r *Recorder) Stop() (History, error) {
	r.cancel()
	r.done.Wait()
	r.mu.Lock()
	if r.file != nil {
		r.errs = append(r.errs, r.file.Close())
		r.file = nil
	}
	r.mu.Unlock()
	if err := r.Err(); err != nil {
		return History{}, fmt.Errorf("record history %s: %w", r.path, err)
	}
	return Read(r.path)
}
