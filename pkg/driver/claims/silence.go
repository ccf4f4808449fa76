// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// silentAfter is how long a call of the MPS supervisor takes that counts as unanswered; the client gives up after 30 s (package mps).
	silentAfter = 25 * time.Second
	// silentFor is how long it is not asked again. The kubelet waits 45 s for all calls that it takes to release a claim, and for those
	// that have its GPU locked.
	silentFor = 30 * time.Second
	// aliveWithin is how soon a supervisor lists what it serves, which waits for no server.
	aliveWithin = time.Second
)

// silence notes what the MPS supervisor has not answered.
type silence struct {
	mu sync.Mutex
	// last are the calls without an answer: by server, or by anyServer.
	last map[string]unanswered
}

type unanswered struct {
	until time.Time
	err   error
}

// SilentError is an error of a supervisor that did not answer, or that is not asked again yet. Its text differs between attempts.
type SilentError struct{ Err error }

func (e *SilentError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *SilentError) Unwrap() error { return e.Err }

// anyServer stands for all servers of the node.
const anyServer = ""

// ask calls the supervisor about a server unless it did not answer a moment ago; then it fails at once with that error. A server that
// hangs in the driver does not keep the supervisor from being asked about others.
func (s *Shares) ask(ctx context.Context, server string, call func() error) error {
	for _, about := range []string{anyServer, server} {
		if err := s.silence.of(about); err != nil {
			return err
		}
	}
	began := time.Now()
	err := call()
	if err == nil || time.Since(began) < silentAfter {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aliveWithin)
	defer cancel()
	if _, silent := s.sharing.ServedMPS(ctx); silent != nil {
		server = anyServer
	}
	err = &SilentError{err}
	s.silence.note(server, err)
	return err
}

// of is why the supervisor is not asked about a server.
func (s *silence) of(server string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.last[server]
	if !time.Now().Before(last.until) {
		return nil
	}
	return &SilentError{fmt.Errorf("the MPS supervisor has not answered and is not asked before %s: %w",
		last.until.UTC().Format(time.RFC3339), last.err)}
}

func (s *silence) note(server string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]unanswered{}
	}
	s.last[server] = unanswered{time.Now().Add(silentFor), err}
}
