// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// beat is how often what runs is said where nothing ends.
const beat = 30 * time.Second

// say prints a line with the time since the start. The caller holds the lock.
func (r *runner) say(format string, args ...any) {
	since := time.Since(r.began)
	fmt.Fprintf(r.out, "%3d:%02d  %s\n", int(since.Minutes()), int(since.Seconds())%60, fmt.Sprintf(format, args...))
}

// tested counts a test that ended. Those of clusters are said one by one, and what failed wherever.
func (r *runner) tested(s stage, t *test) {
	if !r.once {
		r.done++
		r.results = append(r.results, timed{s.name, t})
	}
	if s.cluster || t.result == failed {
		r.say("%4d of %d  %-4s  %s: %s (%s)", r.done, r.total, t.result, s.name, t.name, seconds(t.elapsed))
	}
	if t.result != failed {
		t.output = nil // what passed needs no log of its own
	}
}

// entered notes that a package runs.
func (r *runner) entered(s stage, p *pkg) {
	if !slices.ContainsFunc(r.active, func(a *activity) bool { return a.pkg == p }) {
		r.active = append(r.active, &activity{stage: s.name, pkg: p, began: time.Now()})
	}
}

// left notes that a package ended.
func (r *runner) left(s stage, p *pkg, elapsed time.Duration) {
	r.active = slices.DeleteFunc(r.active, func(a *activity) bool { return a.pkg == p })
	if len(p.tests) > 0 || p.result == failed {
		r.say("%4d of %d  %-4s  %s: %s (%s)", r.done, r.total, p.result, s.name, shortPath(p.path), seconds(elapsed))
	}
}

// shortPath leaves out the host and the owner of the module.
func shortPath(path string) string {
	_, below, found := strings.Cut(path, "/cleave/")
	if !found {
		return path
	}
	return below
}

// beats says every half minute what runs, until the context ends.
func (r *runner) beats(ctx context.Context) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.mu.Lock()
			r.say("%4d of %d  running: %s", r.done, r.total, r.running(now))
			r.mu.Unlock()
		}
	}
}

// running is what runs, and since when.
func (r *runner) running(now time.Time) string {
	var said []string
	for _, a := range r.active {
		what := a.stage
		if a.pkg != nil {
			what += " " + shortPath(a.pkg.path)
			if tests := a.pkg.current(); len(tests) > 0 {
				what, a.began = a.stage+" "+tests[len(tests)-1].name, tests[len(tests)-1].began
			}
		}
		said = append(said, fmt.Sprintf("%s (%s)", what, seconds(now.Sub(a.began))))
	}
	if len(said) == 0 {
		return "compiling"
	}
	return strings.Join(said, ", ")
}

// seconds is a time to read.
func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
