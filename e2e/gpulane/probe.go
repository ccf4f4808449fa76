// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// answerTimeout bounds what a CUDA program may take for one command, its start included: the first program wakes the
// GPU and starts the MPS server.
const answerTimeout = time.Minute

// answer is a line of cuda-probe, or of Enter where it did not come to run.
type answer struct {
	Event string `json:"event"`
	// Of "skip", "refused" and "error".
	Reason string `json:"reason"`
	Error  string `json:"error"`
	Call   string `json:"call"`
	Code   int    `json:"code"`
	Name   string `json:"name"`
	// Of "ready".
	PID                    int   `json:"pid"`
	Version                int   `json:"version"`
	Devices                int   `json:"devices"`
	MultiprocessorsAtFirst int   `json:"multiprocessorsAtFirst"`
	Multiprocessors        int   `json:"multiprocessors"`
	Affinity               int   `json:"affinity"`
	DeviceTotal            int64 `json:"deviceTotal"`
	Total                  int64 `json:"total"`
	Free                   int64 `json:"free"`
	// Of "took", in bytes.
	Asked int64 `json:"asked"`
	Got   int64 `json:"got"`
	Held  int64 `json:"held"`
	// Of "worked".
	Rounds int     `json:"rounds"`
	MS     float64 `json:"ms"`
	Right  bool    `json:"right"`
}

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const outOfMemory = 2

// serverNotReady is CUDA_ERROR_MPS_SERVER_NOT_READY, with which a program is asked to try again.
const serverNotReady = 807

// err is what went wrong, nil if nothing did. Less memory than was asked for is an answer, not an error.
func (a *answer) err() error {
	switch a.Event {
	case "skip":
		return skipError{a.Reason}
	case eventRefused:
		return skipf("this machine does not let a program have namespaces of its own: %s", a.Error)
	case "error":
		return fmt.Errorf("%s says %s (%d)", a.Call, a.Name, a.Code)
	}
	return nil
}

// client says how a CUDA program is run.
type client struct {
	// name is for people.
	name   string
	env    []string
	mounts []mount
	// apart gives it process ids and System V IPC of its own, as containers have.
	apart bool
	user  int
}

// with is the same client with other environment variables; an empty value takes one away.
func (c client) with(name string, variables ...string) client {
	c.name = name
	c.env = slices.Clone(c.env)
	for _, v := range variables {
		key, value, _ := strings.Cut(v, "=")
		c.env = slices.DeleteFunc(c.env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
		if value != "" {
			c.env = append(c.env, v)
		}
	}
	return c
}

// probe is a CUDA program that runs.
type probe struct {
	client
	ready   answer
	command *exec.Cmd
	in      io.WriteCloser
	answers chan answer
	log     *transcript
	// complaints is its standard error; it may be read after the end.
	complaints bytes.Buffer
}

// start runs a CUDA program and waits until it has a context.
func (l *lane) start(ctx context.Context, c client) (*probe, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for try := 1; ; try++ {
		p, err := l.startOnce(ctx, c)
		if err == nil {
			return p, nil
		}
		if p == nil || p.ready.Code != serverNotReady || try == 10 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// startOnce gives a probe alongside the error, where it said why it does not work.
func (l *lane) startOnce(ctx context.Context, c client) (*probe, error) {
	e := entry{
		Mounts: append([]mount{{l.work, l.work}}, c.mounts...), Proc: c.apart, User: c.user,
		Program: l.path("cuda-probe"), Env: append([]string{"PATH=" + strings.Join(programDirs, ":"), "HOME=/tmp"}, c.env...),
	}
	if root := l.opts.DriverRoot; root != "/" {
		e.Args = []string{l.machine.CUDA}
		e.Env = append(e.Env, "LD_LIBRARY_PATH="+filepath.Dir(l.machine.CUDA))
		if strings.HasPrefix(root, "/tmp/") {
			e.Mounts = append(e.Mounts, mount{root, root})
		}
	}
	argument, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("say what to run: %w", err)
	}
	p := &probe{client: c, answers: make(chan answer, 1), log: l.commands}
	p.command = exec.Command(l.opts.Self[0], append(slices.Clone(l.opts.Self[1:]), string(argument))...) //nolint:noctx // end ends it
	p.command.Dir = "/"
	p.command.Stderr = &p.complaints
	p.command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true}
	if c.apart {
		p.command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC
	}
	if err := p.launch(); err != nil {
		return nil, err
	}
	fmt.Fprintf(l.commands, "$ # %s: %s\n", c.name, strings.Join(e.Env, " "))
	if p.ready, err = p.wait(ctx); err != nil {
		p.end()
		return p, fmt.Errorf("start a CUDA program (%s): %w", c.name, err)
	}
	return p, nil
}

// launch starts the process and reads its answers until it ends.
func (p *probe) launch() (err error) {
	if p.in, err = p.command.StdinPipe(); err != nil {
		return fmt.Errorf("start cuda-probe: %w", err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start cuda-probe: %w", err)
	}
	err = p.command.Start()
	if errors.Is(err, syscall.EPERM) {
		return skipf("this machine does not let a program have namespaces of its own: %v", err)
	}
	if err != nil {
		return fmt.Errorf("start cuda-probe: %w", err)
	}
	go func() { // ends with the process
		defer close(p.answers)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintf(p.log, "%s: %s\n", p.name, lines.Text())
			var a answer
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				a = answer{Event: "error", Call: "cuda-probe", Name: lines.Text()}
			}
			p.answers <- a
		}
	}()
	return nil
}

// say gives a command; wait takes its answer.
func (p *probe) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return fmt.Errorf("send %s a command: %w", p.name, err)
	}
	return nil
}

func (p *probe) wait(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	select {
	case a, open := <-p.answers:
		if !open {
			return a, fmt.Errorf("%s ended without an answer", p.name)
		}
		return a, a.err()
	case <-ctx.Done():
		return answer{}, fmt.Errorf("%s does not answer: %w", p.name, ctx.Err())
	}
}

// ask gives a command and takes its answer.
func (p *probe) ask(ctx context.Context, format string, args ...any) (answer, error) {
	if err := p.say(format, args...); err != nil {
		return answer{}, err
	}
	return p.wait(ctx)
}

// take asks for memory in pieces, and reports how much of it came.
func (p *probe) take(ctx context.Context, amount int64) (answer, error) {
	a, err := p.ask(ctx, "take %d %d", amount, piece)
	if err != nil {
		return a, fmt.Errorf("%s takes memory: %w", p.name, err)
	}
	return a, nil
}

// piece is in what amounts memory is taken, in bytes.
const piece = 64 << 20

// work runs the kernel and reports for how many milliseconds it ran.
func (p *probe) work(ctx context.Context, rounds int) (float64, error) {
	a, err := p.ask(ctx, "work %d", rounds)
	if err == nil && !a.Right {
		err = errors.New("the kernel computed nonsense")
	}
	if err != nil {
		return 0, fmt.Errorf("%s works: %w", p.name, err)
	}
	return a.MS, nil
}

// fastest is the shortest of a few runs: the first warms the GPU up.
func (p *probe) fastest(ctx context.Context, rounds int) (float64, error) {
	var times []float64
	for range 4 {
		ms, err := p.work(ctx, rounds)
		if err != nil {
			return 0, err
		}
		times = append(times, ms)
	}
	return slices.Min(times), nil
}

// end ends the program, which the end of its input does by itself.
func (p *probe) end() {
	if p == nil {
		return
	}
	p.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = p.command.Process.Kill() }) // Wait reports it
	defer kill.Stop()
	for range p.answers {
		continue // until its output ends
	}
	err := p.command.Wait()
	fmt.Fprintf(p.log, "%s: [%s] %s\n", p.name, ending(err), p.complaints.String())
}
