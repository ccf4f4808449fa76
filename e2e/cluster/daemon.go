// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/process"
)

// pollInterval is how often a condition is looked at.
const pollInterval = 50 * time.Millisecond

// daemon is a component that was started.
type daemon struct {
	component Component
	process   identity
	logFile   string
	// program is nil where another program started the process.
	program *process.Program
}

// startDaemon starts the component in a session of its own, so that it outlives
// this program and no signal of its terminal reaches it.
func (c Control) startDaemon() (*daemon, error) {
	l, s := c.cluster.layout, c.cluster.state
	path, args, err := command(l, s, c.node.machine, c.component)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = "/", daemonEnvironment(l, s)
	var program *process.Program
	start := func() (err error) {
		program, err = process.Start(cmd, l.logFile(c.component)) // its path inside
		return err
	}
	if c.component.onNode() {
		err = c.node.Inside(start)
	} else {
		err = start()
	}
	if err != nil {
		return nil, err
	}
	d, err := recordDaemon(c.files(), c.component, program.PID())
	if err == nil {
		d.program = program
	}
	return d, err
}

// recordDaemon writes down a process that was just started, for findDaemon.
func recordDaemon(l layout, c Component, pid int) (*daemon, error) {
	_, start, err := readStat(pid)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c, err)
	}
	d := &daemon{component: c, process: identity{pid, start}, logFile: l.logFile(c)}
	return d, writeFile(l.pidFile(c), []byte(d.process.String()+"\n"))
}

// daemonEnvironment is all that a component sees of the environment: nothing
// of the person who happens to start it.
func daemonEnvironment(l layout, s state) []string {
	path := []string{s.toolsDir(), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	return append([]string{
		"PATH=" + strings.Join(path, string(filepath.ListSeparator)),
		"HOME=/root",
		"LANG=C.UTF-8",
		ownerVariable + "=" + l.dir,
	}, s.Environment...)
}

// findDaemon returns a component that this or another program started.
func findDaemon(l layout, c Component) (*daemon, error) {
	data, err := os.ReadFile(l.pidFile(c))
	if err != nil {
		return nil, fmt.Errorf("find the process of %s: %w", c, err)
	}
	p, err := parseProcess(string(data))
	if err != nil {
		return nil, fmt.Errorf("find the process of %s: %w", c, err)
	}
	return &daemon{component: c, process: p, logFile: l.logFile(c)}, nil
}

// signal sends a signal to the process and to no other that got its number
// later: the handle is opened before the start time is compared.
func (p identity) signal(sig syscall.Signal) error {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.pid, err)
	}
	defer func() { _ = handle.Release() }() // it only drops the handle
	if !p.alive() {
		return nil
	}
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// waitGone waits until none of the processes runs and returns those that do
// when the context ends.
func waitGone(ctx context.Context, list []identity) []identity {
	ticker := time.NewTicker(pollInterval / 5)
	defer ticker.Stop()
	for {
		var left []identity
		for _, p := range list {
			if p.alive() {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return left
		case <-ticker.C:
		}
	}
}

// failure describes why a component does not do what it should: with the last
// lines of its log, which is where the reason is.
func (d *daemon) failure(cause error) error {
	if d.program != nil && d.program.Err() != nil {
		cause = fmt.Errorf("it ended: %w", d.program.Err())
	} else if !d.process.alive() {
		cause = errors.New("it ended")
	}
	text := "    (empty)"
	if data, err := os.ReadFile(d.logFile); err == nil && len(data) > 0 {
		text = indent(lastLines(data, 12))
	}
	return fmt.Errorf("wait for %s: %w\n  last lines of %s:\n%s", d.component, cause, d.logFile, text)
}
