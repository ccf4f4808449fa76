// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Time       time.Time
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail
	Test       string
	Elapsed    float64
	Output     string
	// FailedBuild is the ImportPath whose build failed, so that the package did not run.
	FailedBuild string
}

// result is how a test, or a package as a whole, ended.
type result string

const (
	running result = ""
	passed  result = "ok"
	failed  result = "FAIL"
	skipped result = "skip"
)

// test is a top-level test with its subtests, or a package's own output where the name is empty.
type test struct {
	name    string
	result  result
	began   time.Time
	elapsed time.Duration
	output  []string
	// parts are the subtests by time; quiet is the longest time without output, and after what.
	parts []part
	quiet part
	last  part
}

// part is a part of a test that took some time.
type part struct {
	name    string
	elapsed time.Duration
	at      time.Time
}

// pkg is what is known of a package whose tests run.
type pkg struct {
	path   string
	result result
	own    test
	tests  []*test
	// unbuilt is whether it does not compile.
	unbuilt bool
}

// find is the test of a name, which may be a subtest's.
func (p *pkg) find(name string) *test {
	if name == "" {
		return &p.own
	}
	top, _, _ := strings.Cut(name, "/")
	for _, t := range p.tests {
		if t.name == top {
			return t
		}
	}
	t := &test{name: top}
	p.tests = append(p.tests, t)
	return t
}

// current are the tests that run.
func (p *pkg) current() []*test {
	var now []*test
	for _, t := range p.tests {
		if t.result == running && !t.began.IsZero() {
			now = append(now, t)
		}
	}
	return now
}

// take applies an event. It returns the test that it ended, if that is one of the top level.
func (p *pkg) take(e event) *test {
	t := p.find(e.Test)
	if t.began.IsZero() {
		t.began, t.last = e.Time, part{name: "its start", at: e.Time}
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		if quiet := e.Time.Sub(t.last.at); quiet > t.quiet.elapsed {
			t.quiet = part{name: t.last.name, elapsed: quiet}
		}
		if text := strings.TrimSpace(e.Output); text != "" {
			t.last = part{name: text, at: e.Time}
		}
	case "pass", "fail", "skip":
		end := map[string]result{"pass": passed, "fail": failed, "skip": skipped}[e.Action]
		elapsed := time.Duration(e.Elapsed * float64(time.Second))
		switch {
		case e.Test == "":
			p.result = end
		case strings.Contains(e.Test, "/"):
			if strings.Count(e.Test, "/") == 1 {
				_, name, _ := strings.Cut(e.Test, "/")
				t.parts = append(t.parts, part{name: name, elapsed: elapsed})
			}
		default:
			t.result, t.elapsed = end, elapsed
			return t
		}
	}
	return nil
}

// broken ends what was running as the package did, such as by a panic or a time limit.
func (p *pkg) broken() {
	for _, t := range p.current() {
		t.result = failed
	}
}

// where says what the time of a test went to.
func (t *test) where() string {
	parts := slices.Clone(t.parts)
	slices.SortStableFunc(parts, func(a, b part) int { return int(b.elapsed - a.elapsed) })
	var said []string
	for _, p := range parts[:min(3, len(parts))] {
		said = append(said, p.name+" "+seconds(p.elapsed))
	}
	if len(said) == 0 && t.quiet.elapsed > 0 {
		name := t.quiet.name
		if len(name) > 60 {
			name = name[:60] + "..."
		}
		said = append(said, seconds(t.quiet.elapsed)+" without output after: "+name)
	}
	return strings.Join(said, ", ")
}
