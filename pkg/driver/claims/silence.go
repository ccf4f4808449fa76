// SPDX-License-Identifier: Apache-2.0

package claims

import (
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
)

// silence keeps the MPS supervisor from being asked again and again while it does not answer.
type silence struct {
	mu    sync.Mutex
	until time.Time
	err   error
}

// ask calls the supervisor unless it did not answer a moment ago; then it fails at once with that error.
func (s *silence) ask(call func() error) error {
	began := time.Now()
	s.mu.Lock()
	if began.Before(s.until) {
		defer s.mu.Unlock()
		return fmt.Errorf("the MPS supervisor has not answered and is not asked before %s: %w", s.until.UTC().Format(time.RFC3339), s.err)
	}
	s.mu.Unlock()
	err := call()
	if now := time.Now(); err != nil && now.Sub(began) >= silentAfter {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.until, s.err = now.Add(silentFor), err
	}
	return err
}
