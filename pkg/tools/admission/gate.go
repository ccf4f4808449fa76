// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// maxReviews bounds the requests that are read and checked at a time, each of maxReview bytes at most, and with them the
	// memory that a flood can take.
	maxReviews = 32
	// maxReviewsFrom bounds those of one address: a pod that floods the webhook leaves room for the API server. A check takes
	// less than a millisecond, so this does not slow that down.
	maxReviewsFrom = 8
	// maxWait is how long a request waits for its place. The API server waits for webhook.timeoutSeconds, 5 by default.
	maxWait = 3 * time.Second
)

// gate lets a bounded number of requests at a time through to a handler. The others wait.
type gate struct {
	next   http.Handler
	places chan struct{}

	mu   sync.Mutex
	from map[string]*sender
}

// sender has the places of one address.
type sender struct {
	places chan struct{}
	// requests that have a place or wait for one; at none the sender is forgotten.
	requests int
}

func newGate(next http.Handler) *gate {
	return &gate{next: next, places: make(chan struct{}, maxReviews), from: map[string]*sender{}}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	address, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		address = req.RemoteAddr
	}
	s := g.arrive(address)
	defer g.leave(address)
	wait, cancel := context.WithTimeout(req.Context(), maxWait)
	defer cancel()
	// The address's own first: a request that waits for that one occupies no place of others.
	for _, places := range []chan struct{}{s.places, g.places} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-wait.Done():
			klog.FromContext(req.Context()).V(2).Info("Rejected an admission review: too many at a time", "from", address)
			http.Error(w, "too many admission reviews at a time", http.StatusServiceUnavailable)
			return
		}
	}
	g.next.ServeHTTP(w, req)
}

func (g *gate) arrive(address string) *sender {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.from[address]
	if s == nil {
		s = &sender{places: make(chan struct{}, maxReviewsFrom)}
		g.from[address] = s
	}
	s.requests++
	return s
}

func (g *gate) leave(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.from[address]
	if s.requests--; s.requests == 0 {
		delete(g.from, address)
	}
}
