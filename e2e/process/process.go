// SPDX-License-Identifier: Apache-2.0

// Package process starts the programs under test, waits for them and ends them, and lists what runs on this machine.
package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// poll is how often a program is asked whether it is ready.
const poll = 20 * time.Millisecond

// askTimeout is how long a program may take to answer. Nobody may answer at the address of a pod that is about to go.
const askTimeout = 10 * time.Second

// Program is a run of a program, with its output in a file.
type Program struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // once ended is closed
}

// Start starts a command in a session of its own, unless it has attributes already. Made without a context, it outlives
// this process; no signal of the terminal reaches it.
func Start(cmd *exec.Cmd, logFile string) (*Program, error) {
	name := filepath.Base(cmd.Path)
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	err = cmd.Start()
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Program{cmd: cmd, log: logFile, ended: make(chan struct{})}
	go func() { // ends with the process
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// PID of the program, 0 for nil.
func (p *Program) PID() int {
	if p == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Ended is closed once the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Err is how the program ended; nil while it runs, and after exit status 0.
func (p *Program) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// WaitReady waits until ready returns nil, the program ends, or ctx does.
func (p *Program) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		last := ready(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("wait for %s: it ended with %s; its log ends with:\n%s", p.cmd.Args[1], p.cmd.ProcessState, p.LogTail(15))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w; its log ends with:\n%s", p.cmd.Args[1], ctx.Err(), last, p.LogTail(15))
		case <-tick.C:
		}
	}
}

// WaitAnswer waits until the program answers at a URL.
func (p *Program) WaitAnswer(ctx context.Context, url string) error {
	return p.WaitReady(ctx, func(ctx context.Context) error { return Ask(ctx, url) })
}

// Ask is an error unless a URL is answered with success.
func Ask(ctx context.Context, url string) error {
	status, _, err := Read(ctx, url, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, http.StatusText(status))
	}
	return err
}

// Read reads a page, with a token unless it is empty. Programs may show certificates that they made themselves.
func Read(ctx context.Context, url, token string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: askTimeout}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), errors.Join(err, response.Body.Close())
}

// LogTail is the end of the program's log.
func (p *Program) LogTail(lines int) string { return Tail(p.log, lines) }

// Tail is the end of a text file.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// End sends a signal and waits for the end, which is no error if the signal caused it. It does nothing on nil.
func (p *Program) End(sig syscall.Signal) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.cmd.Args[1], err)
	}
	<-p.ended
	if exit := (*exec.ExitError)(nil); errors.As(p.err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return nil
	}
	return p.err
}

// Process runs on this machine, in a container or not.
type Process struct {
	PID int
	// Parent is the PID of its parent.
	Parent int
	// Name is the kernel's, of at most 15 bytes.
	Name string
	// Command and Environment have their parts separated: by blanks, and by NUL bytes.
	Command, Environment string
}

// List lists the processes that run now. One that ends meanwhile is left out.
func List() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var list []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err1 := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		command, err2 := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environment, err3 := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		parent, err4 := parentOf(pid)
		if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(command) == 0 {
			continue
		}
		list = append(list, Process{
			PID: pid, Parent: parent, Name: strings.TrimSpace(string(name)), Environment: string(environment),
			Command: string(bytes.ReplaceAll(bytes.TrimRight(command, "\x00"), []byte{0}, []byte{' '})),
		})
	}
	return list, nil
}

func parentOf(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}
