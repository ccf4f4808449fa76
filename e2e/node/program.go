// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// program is a run of cleave.
type program struct {
	cmd  *exec.Cmd
	done chan error
}

// launch runs cleave with its output in a file. It is bound to no context: a demo's programs go on when its command ends.
func (n *Node) launch(logFile string, args []string) (*program, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of cleave %s: %w", args[0], err)
	}
	defer log.Close()
	p := &program{cmd: exec.Command(filepath.Join(n.opts.Bin, "cleave"), args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = slices.Concat(os.Environ(), n.opts.Cluster.Environment(), n.opts.Environment)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start cleave %s: %w", args[0], err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
}

// end sends a signal and waits for the end, which is no error if the signal caused it. It is no error on nil.
func (p *program) end(sig syscall.Signal) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.cmd.Args[1], err)
	}
	err := <-p.done
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return nil
	}
	return err
}
