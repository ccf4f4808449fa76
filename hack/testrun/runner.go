// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// runner runs phases and keeps what came of them.
type runner struct {
	root string
	// logs is the directory of all logs and the report.
	logs  string
	out   io.Writer
	began time.Time

	mu sync.Mutex
	// total and done count tests of the top level, once each.
	total, done int
	// once is whether tests run that are counted already.
	once bool
	// active are the packages and commands that run.
	active []*activity
	// results are the tests that ended, in their order.
	results  []timed
	failures []failure
}

// activity is a package or a command that runs.
type activity struct {
	stage string
	pkg   *pkg // nil of commands
	began time.Time
}

// timed is a test that ended.
type timed struct {
	stage string
	*test
}

// run runs the phases. The error is for what kept tests from running; tests that failed are in failures.
func (r *runner) run(ctx context.Context, phases []phase) error {
	for _, p := range phases {
		selected, ended := map[string][]pkgTests{}, map[string]chan struct{}{}
		for _, l := range p.lanes {
			for _, s := range l.stages {
				ended[s.name] = make(chan struct{})
				found, err := s.find(ctx, r.root)
				if err != nil {
					return err
				}
				selected[s.name] = found
				for _, f := range found {
					r.total += len(f.tests)
				}
			}
		}
		before := len(r.failures)
		var lanes sync.WaitGroup
		queues := make([]chan stage, len(p.lanes))
		for i, l := range p.lanes {
			queues[i] = make(chan stage, len(l.stages))
			for _, s := range l.stages {
				queues[i] <- s
			}
			close(queues[i])
		}
		work := func(of int) {
			for s := range queues[of] {
				if s.after != "" {
					<-ended[s.after]
				}
				if ctx.Err() == nil {
					r.stage(ctx, s, selected[s.name], p.lanes[of].nice)
				}
				close(ended[s.name])
			}
		}
		for i, l := range p.lanes {
			lanes.Go(func() {
				var own sync.WaitGroup
				for range l.workers {
					own.Go(func() { work(i) })
				}
				own.Wait()
				// One worker of this lane goes on with what nice ones have left. Others have as many at a time as their tests' limits allow for.
				for other, l := range p.lanes {
					if l.nice {
						work(other)
					}
				}
			})
		}
		lanes.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.needed && len(r.failures) > before {
			return errors.New("what the tests need could not be built")
		}
	}
	return nil
}

// stage runs one stage and notes its failures.
func (r *runner) stage(ctx context.Context, s stage, selected []pkgTests, nice bool) {
	logs := filepath.Join(r.logs, strings.ReplaceAll(s.name, "/", "-"))
	began := time.Now()
	var failures []failure
	if len(s.command) > 0 {
		failures = r.command(ctx, s, nice, logs)
	} else if len(selected) > 0 {
		packages, tests := s.packages, []string(nil)
		if s.only != nil {
			packages, tests = only(selected)
		}
		args, env := s.goTest(r.root, packages, tests)
		found, err := r.goTest(ctx, s, args, env, nice, logs)
		failures = r.failed(s, selected, found, logs)
		if err != nil {
			failures = append(failures, failure{stage: s, log: filepath.Join(logs, "output.log"), reason: err.Error(), final: true})
		}
	}
	if ctx.Err() != nil {
		return // what was interrupted did not fail
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, failures...)
	r.say("%s: done in %s, %d failed", s.name, seconds(time.Since(began)), len(failures))
}

// only names packages and tests one by one.
func only(selected []pkgTests) (packages, tests []string) {
	for _, p := range selected {
		packages = append(packages, p.path)
		tests = append(tests, p.tests...)
	}
	slices.Sort(tests)
	return packages, slices.Compact(tests)
}

// failed lists what failed of packages, with a log for each, and what did not run because of it.
func (r *runner) failed(s stage, selected []pkgTests, found []*pkg, logs string) []failure {
	var failures []failure
	for _, p := range found {
		if p.result == passed || p.result == skipped {
			continue
		}
		seen := map[string]bool{}
		for _, t := range p.tests {
			seen[t.name] = t.result != running
			if t.result == failed {
				failures = append(failures, failure{stage: s, pkg: p.path, tests: []string{t.name}, log: keep(logs, p, t)})
			}
		}
		if i := slices.IndexFunc(selected, func(of pkgTests) bool { return of.path == p.path }); i >= 0 {
			left := slices.DeleteFunc(slices.Clone(selected[i].tests), func(name string) bool { return seen[name] })
			if len(left) > 0 || len(seen) == 0 {
				f := failure{stage: s, pkg: p.path, tests: left, log: keep(logs, p, &p.own), reason: "did not run"}
				if p.unbuilt {
					f.reason, f.final = "does not compile", true
				}
				failures = append(failures, f)
				continue
			}
		}
		if !slices.ContainsFunc(p.tests, func(t *test) bool { return t.result == failed }) {
			// Such as what a cluster left behind. One test is enough to see it again.
			last := failure{stage: s, pkg: p.path, log: keep(logs, p, &p.own), reason: "failed after its tests"}
			if len(p.tests) > 0 {
				last.tests = []string{p.tests[0].name}
			}
			failures = append(failures, last)
		}
	}
	return failures
}

// keep writes the output of a test into a file of its own, and returns its path.
func keep(logs string, p *pkg, t *test) string {
	name := filepath.Base(p.path)
	if t.name != "" {
		name += "." + t.name
	}
	file := filepath.Join(logs, name+".log")
	if err := os.WriteFile(file, []byte(strings.Join(t.output, "")), 0o644); err != nil {
		return fmt.Sprintf("%s (not written: %v)", file, err)
	}
	return file
}

// command runs a stage that is no go test, and shows what it prints.
func (r *runner) command(ctx context.Context, s stage, nice bool, logs string) []failure {
	fails := func(log string, err error) []failure {
		return []failure{{stage: s, log: log, reason: fmt.Sprintf("%s: %v", strings.Join(s.command, " "), err), final: true}}
	}
	if err := os.MkdirAll(logs, 0o750); err != nil {
		return fails("", err)
	}
	path := filepath.Join(logs, "output.log")
	log, err := os.Create(path)
	if err != nil {
		return fails("", err)
	}
	defer log.Close()
	a := &activity{stage: s.name, began: time.Now()}
	r.mu.Lock()
	r.say("%s", s.name)
	r.active = append(r.active, a)
	r.mu.Unlock()
	cmd := process(ctx, r.root, s, s.command, s.env, nice)
	cmd.Stdout = log
	if !nice {
		cmd.Stdout = io.MultiWriter(log, r.out)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	r.mu.Lock()
	r.active = slices.DeleteFunc(r.active, func(b *activity) bool { return b == a })
	r.mu.Unlock()
	if err != nil {
		return fails(path, err)
	}
	return nil
}
