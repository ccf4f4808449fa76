// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ErrRunning is NVIDIA's error if another daemon has the pipe directory.
var ErrRunning = errors.New("An instance of this daemon is already running") //nolint:staticcheck // in the words of NVIDIA's

// Options of a daemon.
type Options struct {
	PipeDir, LogDir string
	// MultiUser makes one server serve the programs of all users.
	MultiUser bool
	// Threads and Limits are the defaults of servers, as the environment words them.
	Threads, Limits string
	// Server returns the command of a server's process, which must call Serve with file 3.
	Server func() *exec.Cmd
	// Start, if set, is called when the daemon has created its files, before it answers; an error ends it.
	Start func(context.Context) error
	// Command, if set, is called before each command of an administrator; its error is the reply.
	Command func(context.Context) error
}

// daemon is one that runs in this process.
type daemon struct {
	opts Options
	log  *logFile
	ctx  context.Context // ends the daemon
	done func()

	mu       sync.Mutex
	defaults settings
	children []*child // servers, by start
	pending  []*applicant
	quitting bool
	conns    map[net.Conn]bool
	changed  *sync.Cond     // children
	waiting  sync.WaitGroup // connections and children
}

// Run runs a daemon. It returns when ctx ends, when an administrator quits it, or at once if it cannot work, as when another daemon
// has the pipe directory (ErrRunning).
func Run(ctx context.Context, opts Options) (err error) {
	defaults, err := settingsOf(opts.Threads, opts.Limits)
	if err != nil {
		return err
	}
	release, err := takePipe(opts.PipeDir)
	if err != nil {
		return err
	}
	release = sync.OnceValue(release)
	defer func() { err = errors.Join(err, release()) }()
	log, closeLog, err := openLog(opts.LogDir, "control.log", "Control")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	control, privileged, err := listenAll(opts.PipeDir)
	if err != nil {
		log.printf("Failed to start: %v", err)
		return err
	}
	closeAll := func() error { return errors.Join(control.Close(), privileged.Close()) }
	stopLog, err := readLog(opts.PipeDir, log)
	if err != nil {
		return errors.Join(err, closeAll())
	}
	defer stopLog()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &daemon{opts: opts, log: log, ctx: ctx, done: cancel, defaults: defaults, conns: map[net.Conn]bool{}}
	d.changed = sync.NewCond(&d.mu)
	log.printf("Starting control daemon using socket %s", socketPath(opts.PipeDir))
	if opts.Start != nil {
		if err := opts.Start(ctx); err != nil {
			log.printf("Failed to start: %v", err)
			return errors.Join(fmt.Errorf("start MPS control daemon: %w", err), closeAll())
		}
	}
	log.printf("To connect CUDA applications to this daemon, set env %s=%s", EnvPipeDirectory, opts.PipeDir)
	stop := context.AfterFunc(ctx, func() { _ = closeAll() })
	defer stop()
	d.waiting.Go(func() { d.accept(privileged, true) })
	d.accept(control, false)
	_ = closeAll() // closed already or not: after this the socket is gone, so that it is not another daemon's that goes
	d.endServers()
	// First the files, then the connections: whoever quit the daemon may start another at once.
	err = release()
	d.endConnections()
	log.printf("Exit")
	return err
}

// takePipe takes over the pipe directory for the daemon's lifetime by locking its PID file. It removes leftovers of an earlier
// daemon.
func takePipe(pipe string) (release func() error, err error) {
	if err := os.MkdirAll(pipe, 0o755); err != nil { //nolint:gosec // programs of all users come here
		return nil, fmt.Errorf("make pipe directory: %w", err)
	}
	name := filepath.Join(pipe, pidName)
	f, err := lockPIDFile(name)
	if err != nil {
		return nil, err
	}
	err = errors.Join(f.Truncate(0), removePipes(pipe))
	if err == nil {
		err = makeShared(pipe)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take pipe directory: %w", err), f.Close())
	}
	// The file goes before the lock: who opens it after this has another.
	return func() error { return errors.Join(removePipes(pipe), os.Remove(name), f.Close()) }, nil
}

// lockPIDFile locks the PID file for as long as this process lives.
func lockPIDFile(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // a PID is no secret
		if err != nil {
			return nil, fmt.Errorf("open PID file: %w", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return nil, errors.Join(ErrRunning, f.Close())
		}
		ours, err := f.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock PID file: %w", err), f.Close())
		}
		if there, err := os.Stat(name); err == nil && os.SameFile(ours, there) {
			return f, nil
		}
		_ = f.Close() // another daemon has taken the file away, which was its own
	}
}

func removeStale(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// accept serves connections until the listener is closed.
func (d *daemon) accept(listener *net.UnixListener, privileged bool) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		if d.ctx.Err() != nil {
			_ = conn.Close()
			return
		}
		d.log.printf("Accepting connection...")
		d.mu.Lock()
		d.conns[conn] = true
		d.mu.Unlock()
		d.waiting.Go(func() { d.serve(conn, privileged) })
	}
}

// forget closes a connection that the daemon no longer handles.
func (d *daemon) forget(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, conn)
	_ = conn.Close()
}

// helloTime bounds the time for a connection to identify itself.
const helloTime = 10 * time.Second

// serve identifies a connection and handles it.
func (d *daemon) serve(conn *net.UnixConn, privileged bool) {
	lines := newLines(conn)
	var h hello
	err := conn.SetReadDeadline(time.Now().Add(helloTime))
	if err == nil {
		err = readLine(lines, &h)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		d.log.printf("User did not send valid credentials")
		d.forget(conn)
		return
	}
	if h.Program == nil {
		defer d.forget(conn)
		d.log.printf("NEW UI")
		d.administer(conn, lines, privileged)
		d.log.printf("UI closed")
		return
	}
	pid, uid, err := peer(conn)
	if err != nil {
		d.log.printf("User did not send valid credentials: %v", err)
		d.forget(conn)
		return
	}
	d.apply(&applicant{conn: conn, request: h.Program, pid: pid, uid: uid})
}

// graceTime bounds the time for a server to end on request.
const graceTime = 5 * time.Second

// endServers rejects waiting programs, and ends the servers. The socket is gone already.
func (d *daemon) endServers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quitting = true
	d.refusePending(func(*applicant) bool { return true }, "the MPS control daemon has ended")
	for _, c := range d.children {
		c.end()
	}
	kill := time.AfterFunc(graceTime, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, c := range d.children {
			_ = c.cmd.Process.Kill() // it may have ended by now
		}
	})
	for len(d.children) > 0 {
		d.changed.Wait()
	}
	kill.Stop()
}

// endConnections ends the remaining connections.
func (d *daemon) endConnections() {
	d.mu.Lock()
	for conn := range d.conns {
		_ = conn.Close()
	}
	d.mu.Unlock()
	d.waiting.Wait()
}
