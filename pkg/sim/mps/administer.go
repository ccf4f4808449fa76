// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"
)

// administer executes an administrator's commands, until that one leaves or ends the daemon. Clients of the unprivileged socket may
// query, but change nothing.
func (d *daemon) administer(conn *net.UnixConn, lines *bufio.Scanner, privileged bool) {
	for {
		var u uiCommand
		if err := readLine(lines, &u); err != nil {
			return
		}
		d.log.printf("Cmd:%s", strings.ReplaceAll(u.Command, "\n", " "))
		text, quit := d.execute(u.Command, privileged)
		if quit {
			d.done()
			lines.Scan() // until the connection is closed, when all else is done
			return
		}
		if text != "" {
			text = strings.TrimSuffix(text, "\n") + "\n"
			d.log.printf("%s", strings.TrimSuffix(text, "\n"))
		}
		if err := writeLine(conn, uiReply{text}); err != nil {
			return
		}
	}
}

// execute executes one command and returns the reply, and whether to end the daemon.
func (d *daemon) execute(line string, privileged bool) (text string, quit bool) {
	if d.opts.Command != nil {
		if err := d.opts.Command(d.ctx); err != nil {
			return err.Error(), false
		}
	}
	c, err := parseCommand(line)
	if err == nil && !privileged && !c.asks() {
		err = fmt.Errorf("%s: permission denied", c.name)
	}
	if err == nil && c.name == "quit" {
		d.quit(c.timeout)
		return "", true
	}
	if err == nil {
		text, err = d.do(&c)
	}
	if err != nil {
		return err.Error(), false
	}
	return text, false
}

// do executes a command other than quit.
func (d *daemon) do(c *command) (string, error) {
	switch c.name {
	case "start_server":
		return "", d.startServer(c.uid)
	case "shutdown_server":
		return "", d.shutdownServer(c)
	case "get_server_list":
		return d.serverList(), nil
	case "get_default_active_thread_percentage", "set_default_active_thread_percentage",
		"get_default_device_pinned_mem_limit", "set_default_device_pinned_mem_limit":
		return d.doDefault(c)
	case "get_default_client_priority":
		return "0", nil // normal, as driver 580.159.04 answers; nothing here sets another
	case "ps":
		return d.overServers(c.server, &ask{Op: opPS}, psTitles(), "")
	case "device_query":
		return d.overServers(c.server, &ask{Op: opDevices, CSV: c.csv}, "", "Server %d\n")
	case commandFault:
		return d.overServers(c.server, &ask{Op: opFault}, "", "")
	}
	server, ready, err := d.server(c.server)
	if err != nil {
		return "", err
	}
	if !ready {
		if c.name == "get_server_status" {
			return stateInitializing, nil
		}
		return "", fmt.Errorf("server %d is not ready", c.server)
	}
	switch c.name {
	case "get_server_status":
		return server.ask(&ask{Op: opStatus}, nil)
	case "get_client_list":
		return server.ask(&ask{Op: opClients}, nil)
	case "get_active_thread_percentage", "set_active_thread_percentage":
		return server.ask(&ask{Op: opThreads, Percentage: c.percentage}, nil)
	case "get_device_pinned_mem_limit", "set_device_pinned_mem_limit":
		return server.ask(&ask{Op: opLimit, Device: c.device, Bytes: c.bytes}, nil)
	case "terminate_client":
		return server.ask(&ask{Op: opTerminate, ProgramPID: c.client}, nil)
	default:
		return "", fmt.Errorf("unknown command: %q", c.name)
	}
}

// doDefault executes commands about future servers.
func (d *daemon) doDefault(c *command) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c.name {
	case "set_default_active_thread_percentage":
		d.defaults.Threads = c.percentage
		return formatPercentage(c.percentage), nil
	case "get_default_active_thread_percentage":
		return formatPercentage(d.defaults.Threads), nil
	case "set_default_device_pinned_mem_limit":
		d.defaults.set(deviceLimit{c.device, c.bytes})
		return "", nil
	default:
		return formatSize(d.defaults.get(c.device)), nil
	}
}

// server finds a server by PID.
func (d *daemon) server(pid int) (c *child, ready bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.children {
		if c.pid == pid {
			return c, c.ready, nil
		}
	}
	return nil, false, fmt.Errorf("no MPS server with PID %d", pid)
}

// serverList is the output of get_server_list.
func (d *daemon) serverList() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, c := range d.children {
		fmt.Fprintln(&b, c.pid)
	}
	return b.String()
}

// overServers queries the server with a PID, or all ready ones if pid is 0, and joins the answers, with titles and a separating
// line if set.
func (d *daemon) overServers(pid int, a *ask, titles, before string) (string, error) {
	d.mu.Lock()
	var asked []*child
	for _, c := range d.children {
		if c.ready && (pid == 0 || c.pid == pid) {
			asked = append(asked, c)
		}
	}
	d.mu.Unlock()
	if pid != 0 && len(asked) == 0 {
		return "", fmt.Errorf("no MPS server with PID %d, or it is not ready", pid)
	}
	var b strings.Builder
	for _, c := range asked {
		text, err := c.ask(a, nil)
		if err != nil {
			return "", err
		}
		if before != "" {
			fmt.Fprintf(&b, before, c.pid)
		}
		b.WriteString(text)
	}
	if b.Len() == 0 {
		return "", nil
	}
	return titles + b.String(), nil
}

// startServer starts a user's server before any program needs it. It does not wait until it is ready.
func (d *daemon) startServer(uid int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opts.MultiUser {
		uid = 0
	}
	switch c := d.current(); {
	case d.quitting:
		return fmt.Errorf("the MPS control daemon is shutting down")
	case c != nil && c.uid == uid && !c.finishing:
		return nil
	case c != nil:
		return fmt.Errorf("server %d of user %d is running", c.pid, c.uid)
	}
	return d.start(uid)
}

// shutdownServer ends a server, or all of them, now or when their programs are gone.
func (d *daemon) shutdownServer(c *command) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := false
	for _, s := range d.children {
		if c.server != 0 && s.pid != c.server {
			continue
		}
		found = true
		if c.force {
			s.finishing = true
			s.end()
		} else {
			d.finish(s)
		}
	}
	if !found && c.server != 0 {
		return fmt.Errorf("no MPS server with PID %d", c.server)
	}
	return nil
}

// quit accepts no more programs and waits until all servers have ended: on their own when their programs are gone, or after the
// timeout if that is not negative.
func (d *daemon) quit(timeout time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quitting = true
	d.refusePending(func(*applicant) bool { return true }, "the MPS control daemon is shutting down")
	for _, c := range d.children {
		d.finish(c)
	}
	if timeout >= 0 {
		force := time.AfterFunc(timeout, d.done) // endServers does the rest
		defer force.Stop()
	}
	for len(d.children) > 0 && d.ctx.Err() == nil {
		d.changed.Wait()
	}
}
