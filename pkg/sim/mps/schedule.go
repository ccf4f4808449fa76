// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// applicant is a program that waits for a server.
type applicant struct {
	conn     *net.UnixConn
	request  *Request
	pid, uid int
}

// child is the daemon's view of a server.
type child struct {
	pid, uid int
	cmd      *exec.Cmd
	conn     *net.UnixConn
	// ready and finishing are the daemon's, under its mu.
	ready, finishing bool

	mu sync.Mutex // one question at a time
}

// timeout bounds a server's answer.
const timeout = 10 * time.Second

// ask sends a request to the server.
func (c *child) ask(a *ask, with *net.UnixConn) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var t outcome
	err := c.conn.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		err = send(c.conn, a, with)
	}
	if err == nil {
		_, err = receive(c.conn, &t)
	}
	if err != nil {
		// A late answer would be mistaken for that of another request. Without its daemon the server ends.
		return "", errors.Join(fmt.Errorf("server %d does not answer: %w", c.pid, err), c.conn.Close())
	}
	if t.Error != "" {
		return "", errors.New(t.Error)
	}
	return t.Text, nil
}

// end makes the server end now. It ends by itself once it cannot hear its daemon; the signal is for one that is still
// starting.
func (c *child) end() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
}

// apply queues a program.
func (d *daemon) apply(a *applicant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.quitting {
		d.refuse(a, "the MPS control daemon is shutting down")
		return
	}
	d.pending = append(d.pending, a)
	d.dispatch(a)
}

// refuse rejects a program; mu is held.
func (d *daemon) refuse(a *applicant, reason string) {
	d.log.printf("CLIENT %d from user %d refused: %s", a.pid, a.uid, reason)
	_ = reply(a.conn, answer{Error: &Error{ErrorConnectionFailed, reason}}) // if it does not hear it, it is gone
	delete(d.conns, a.conn)
	_ = a.conn.Close()
}

// refusePending rejects waiting programs that match a filter; mu is held.
func (d *daemon) refusePending(pick func(*applicant) bool, reason string) {
	d.pending = slices.DeleteFunc(d.pending, func(a *applicant) bool {
		if pick(a) {
			d.refuse(a, reason)
			return true
		}
		return false
	})
}

// serverUser is the user whose server serves a program.
func (d *daemon) serverUser(a *applicant) int {
	if d.opts.MultiUser {
		return 0
	}
	return a.uid
}

// dispatch hands over the waiting programs, in order, as far as there is a server for them. If there is none it starts one; if it
// is another user's, that one ends when its programs are gone. latest, if not nil, is the program that has just come. mu is held.
func (d *daemon) dispatch(latest *applicant) {
	for len(d.pending) > 0 && !d.quitting {
		a := d.pending[0]
		c := d.current()
		var wait string
		switch {
		case c == nil:
			wait = "Server is not ready"
		case c.uid != d.serverUser(a):
			wait = fmt.Sprintf("Server of user %d has to end first", c.uid)
			d.finish(c)
		case !c.ready || c.finishing:
			wait = "Server is not ready"
		default:
			d.log.printf("NEW CLIENT %d from user %d: Server already exists", a.pid, a.uid)
			if d.handOver(c, a) {
				d.pending = d.pending[1:]
				continue
			}
			c.finishing = true // whatever it is, another takes its place when it has ended
			wait = "Server does not answer"
		}
		if a == latest {
			d.log.printf("NEW CLIENT %d from user %d: %s, push client to pending list", a.pid, a.uid, wait)
		}
		if c != nil {
			return
		}
		err := d.start(d.serverUser(a))
		if err == nil {
			return
		}
		d.log.printf("Failed to start server: %v", err)
		d.pending = d.pending[1:]
		d.refuse(a, err.Error())
	}
}

// current is the one server that there is, or nil; mu is held.
func (d *daemon) current() *child {
	if len(d.children) == 0 {
		return nil
	}
	return d.children[0]
}

// handOver hands a program over to a server, and reports whether that accepted it; mu is held.
func (d *daemon) handOver(c *child, a *applicant) bool {
	if _, err := c.ask(&ask{Op: opProgram, Program: a.request, ProgramPID: a.pid}, a.conn); err != nil {
		d.log.printf("%v", err)
		_ = c.cmd.Process.Kill() // it is ending, or hangs
		return false
	}
	delete(d.conns, a.conn)
	_ = a.conn.Close() // the server has it
	return true
}

// finish makes a server end when its programs are gone; mu is held.
func (d *daemon) finish(c *child) {
	if c.finishing {
		return
	}
	c.finishing = true
	if !c.ready {
		c.end()
		return
	}
	if _, err := c.ask(&ask{Op: opFinish}, nil); err != nil {
		d.log.printf("Server %d: %v", c.pid, err)
	}
}

// start starts a server; mu is held.
func (d *daemon) start(uid int) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := d.opts.Server()
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start MPS server: %w", err), ours.Close())
	}
	c := &child{pid: cmd.Process.Pid, uid: uid, cmd: cmd, conn: ours}
	d.log.printf("Starting new server %d for user %d", c.pid, uid)
	now := d.defaults
	if err := send(ours, &ask{Op: opStart, Settings: &now, UID: uid, MultiUser: d.opts.MultiUser}, nil); err != nil {
		d.log.printf("Server %d: %v", c.pid, err)
	}
	d.children = append(d.children, c)
	d.waiting.Go(func() { d.attend(c) })
	return nil
}

// attend waits until a server is ready, and then until it has ended.
func (d *daemon) attend(c *child) {
	var t outcome
	_, err := receive(c.conn, &t)
	if err == nil && t.Error != "" {
		err = errors.New(t.Error)
	}
	if err == nil {
		d.mu.Lock()
		d.log.printf("NEW SERVER %d: Ready", c.pid)
		c.ready = true
		if c.finishing { // the command came too early for it
			c.finishing = false
			d.finish(c)
		}
		d.dispatch(nil)
		d.mu.Unlock()
	}
	exit := c.cmd.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.children = slices.DeleteFunc(d.children, func(o *child) bool { return o == c })
	_ = c.conn.Close()
	if exit == nil {
		d.log.printf("Server %d exited with status 0", c.pid)
	} else {
		d.log.printf("Server %d exited: %v", c.pid, exit)
	}
	if !c.ready && !c.finishing {
		d.log.printf("Server %d could not start: %v", c.pid, err)
		d.refusePending(func(a *applicant) bool { return d.serverUser(a) == c.uid }, fmt.Sprintf("the MPS server could not start: %v", err))
	}
	d.dispatch(nil)
	d.changed.Broadcast()
}
