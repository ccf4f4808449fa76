// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTimeout is how long what was interrupted may take to clean up, such as to take a cluster down.
const stopTimeout = 3 * time.Minute

// failure is a test that failed, or several that did not run since their package ended before.
type failure struct {
	stage stage
	pkg   string
	tests []string
	log   string
	// reason is why there is no single test to name.
	reason string
	// final is whether there is no point in running it again.
	final bool
}

func (f failure) String() string {
	what := strings.Join(f.tests, ", ")
	if f.reason != "" {
		what = fmt.Sprintf("%s (%d tests)", f.reason, len(f.tests))
		if len(f.tests) == 0 {
			what = f.reason
		}
	}
	if f.pkg == "" {
		return what
	}
	return f.stage.name + ": " + f.pkg + ": " + what
}

// process is a program in a process group of its own, so that all that it started can be told to end.
func process(ctx context.Context, root string, s stage, args, env []string, nice bool) *exec.Cmd {
	if nice && !s.urgent {
		args = append([]string{"nice", "-n", "19"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(root, s.dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	return cmd
}

// goTest runs go test with its events, and returns what it says of each package.
func (r *runner) goTest(ctx context.Context, s stage, args, env []string, nice bool, logs string) (found []*pkg, err error) {
	args = append([]string{args[0], args[1], "-json"}, args[2:]...)
	if err := os.MkdirAll(logs, 0o750); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(logs, "output.log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := process(ctx, r.root, s, args, env, nice)
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	var done sync.WaitGroup
	packages := &packages{builds: map[string][]string{}}
	done.Go(func() { r.read(s, out, log, packages) })
	// The events say what failed; the exit status says no more, unless there are none.
	status := cmd.Wait()
	_ = in.Close() // a pipe's end, which cannot fail
	done.Wait()
	if status != nil && packages.allPassed() {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), status)
	}
	return packages.list, err
}

// packages are those that events name, in their order.
type packages struct {
	list []*pkg
	// builds are what the compiler says, by ImportPath of events.
	builds map[string][]string
}

func (p *packages) find(path string) *pkg {
	for _, known := range p.list {
		if known.path == path {
			return known
		}
	}
	found := &pkg{path: path}
	p.list = append(p.list, found)
	return found
}

func (p *packages) allPassed() bool {
	for _, known := range p.list {
		if known.result == failed {
			return false
		}
	}
	return true
}

// read applies events, and writes what tests print to the log. A line that is no event is from go itself.
func (r *runner) read(s stage, from io.Reader, log io.Writer, packages *packages) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(s, line, log, packages)
		}
		if err != nil {
			return // the pipe has ended
		}
	}
}

func (r *runner) line(s stage, line string, log io.Writer, packages *packages) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		e = event{Action: "output", Output: line}
	}
	if e.Output != "" {
		fmt.Fprintf(log, "%s %s", e.Time.Format("15:04:05.000"), e.Output)
	}
	if e.Action == "build-output" {
		packages.builds[e.ImportPath] = append(packages.builds[e.ImportPath], e.Output)
	}
	if e.Package == "" {
		return
	}
	p := packages.find(e.Package)
	if e.FailedBuild != "" {
		p.unbuilt = true
		p.own.output = append(p.own.output, packages.builds[e.FailedBuild]...)
	}
	switch ended := p.take(e); {
	case ended != nil:
		r.tested(s, ended)
	case e.Test == "" && p.result != running:
		p.broken()
		r.left(s, p, time.Duration(e.Elapsed*float64(time.Second)))
	default:
		r.entered(s, p)
	}
}
