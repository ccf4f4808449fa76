// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"sync"
	"time"

	"golang.org/x/net/html"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// Figures are what a monitoring system knows of claims.
type Figures interface {
	// Used is what claims use of their devices now.
	Used(ctx context.Context) (map[inspect.UsedKey]inspect.Used, error)
	// Advise compares what workloads have with what they used. On a large cluster it takes seconds.
	Advise(ctx context.Context) (*sizing.Advice, error)
}

const (
	// usedEvery and adviceEvery are the shortest times between two questions.
	usedEvery   = 30 * time.Second
	adviceEvery = 10 * time.Minute
	// askTimeout bounds a question.
	askTimeout = time.Minute
)

// newest is the last answer to a question, which is asked anew when somebody looks and it is old.
type newest[T any] struct {
	what  string
	ask   func(context.Context) (T, error)
	every time.Duration
	wake  chan struct{}

	mu     sync.Mutex
	answer T
	err    error
	at     time.Time // when it was last asked; zero before
}

func newNewest[T any](what string, every time.Duration, ask func(context.Context) (T, error)) *newest[T] {
	return &newest[T]{what: what, ask: ask, every: every, wake: make(chan struct{}, 1)}
}

// get returns the last answer, or why there is none; false before the first.
func (n *newest[T]) get() (T, error, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.at) >= n.every {
		select {
		case n.wake <- struct{}{}:
		default: // it is awake
		}
	}
	return n.answer, n.err, !n.at.IsZero()
}

// run answers until ctx ends.
func (n *newest[T]) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		n.mu.Lock()
		fresh := time.Since(n.at) < n.every
		n.mu.Unlock()
		if fresh {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := n.ask(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("No figures", "of", n.what, "err", err.Error())
		}
		n.mu.Lock()
		n.answer, n.err, n.at = answer, err, time.Now()
		n.mu.Unlock()
	}
}

// figures are what pages show of Figures. nil has none.
type figures struct {
	used   *newest[map[inspect.UsedKey]inspect.Used]
	advice *newest[*sizing.Advice]
}

func newFigures(of Figures) *figures {
	if of == nil {
		return nil
	}
	return &figures{newNewest("what claims use", usedEvery, of.Used), newNewest("advice", adviceEvery, of.Advise)}
}

// version of a fragment with figures, which change without a snapshot.
func (f *figures) version(of uint64) uint64 {
	if f != nil {
		return 0
	}
	return of
}

// usedOf is what a claim uses of a device; nil if that is not known.
func (f *figures) usedOf(claim, device string) *inspect.Used {
	if f == nil {
		return nil
	}
	all, _, _ := f.used.get()
	if u, ok := all[inspect.UsedKey{Claim: claim, Device: device}]; ok {
		return &u
	}
	return nil
}

// idleSince is since when a claim uses none of its devices; false if it uses one, or that is not known.
func (f *figures) idleSince(c *fleet.Claim) (since time.Time, idle bool) {
	for i := range c.Devices {
		at, ok := f.usedOf(c.Key(), c.Devices[i].Device).IdleSince()
		if !ok {
			return time.Time{}, false
		}
		if at.After(since) {
			since = at
		}
	}
	return since, len(c.Devices) > 0
}

// notices say what the snapshot, and the figures, lack.
func (f *figures) notices(s *fleet.Snapshot) *html.Node {
	n := notices(s)
	if f != nil {
		if _, err, _ := f.used.get(); err != nil {
			n.AppendChild(el("p", class("notice"), attr{"role", "alert"}, "What claims use is not known: "+err.Error()))
		}
	}
	return n
}

// advicePage is what cleave advise prints.
func (f *figures) advicePage(shot *fleet.Snapshot) *page {
	p := &page{title: "Advice", section: "Advice", root: "./", parts: []part{one("notices", 0, f.notices(shot))}}
	advice, err, known := f.advice.get()
	body := el("section", el("h1", "Advice"))
	switch {
	case err != nil:
		body.AppendChild(el("p", class("notice"), attr{"role", "alert"}, "There is no advice: "+err.Error()))
	case !known:
		body.AppendChild(el("p", "The figures of the last days are being read."))
	default:
		for _, problem := range advice.Problems {
			body.AppendChild(el("p", class("notice"), problem))
		}
		body.AppendChild(el("p", advice.Summary()))
		var rows [][]any
		for i := range advice.Workloads {
			var cells []any
			for _, text := range advice.Workloads[i].Cells() {
				cells = append(cells, text)
			}
			rows = append(rows, cells)
		}
		if rows != nil {
			body.AppendChild(table(sizing.Columns(), rows))
		}
	}
	p.parts = append(p.parts, one("advice", 0, body))
	return p
}
