// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
)

// ErrNoDaemon is NVIDIA's error if no daemon listens in the pipe directory.
var ErrNoDaemon = errors.New("Cannot find MPS control daemon process") //nolint:staticcheck // in the words of NVIDIA's

func pid() int { return os.Getpid() }

// dial connects to a socket of the daemon.
func dial(ctx context.Context, pipe, socket string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(pipe, socket))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	return conn, nil
}

// Client is a CUDA program's connection to its server.
type Client struct {
	Admission Admission
	conn      net.Conn
	lines     *bufio.Scanner
	stop      func() bool
}

// Connect simulates CUDA's initialisation: it connects to the daemon of a pipe directory and waits for a server to accept the
// program. An *Error is the reason if none did.
func Connect(ctx context.Context, pipe string, r *Request) (*Client, error) {
	conn, err := dial(ctx, pipe, socketName)
	if err != nil {
		return nil, &Error{ErrorConnectionFailed, err.Error()}
	}
	c := &Client{conn: conn, lines: newLines(conn), stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	var a answer
	if err := writeLine(conn, hello{Program: r}); err != nil {
		return nil, errors.Join(&Error{ErrorConnectionFailed, err.Error()}, c.Close())
	}
	if err := readLine(c.lines, &a); err != nil {
		return nil, errors.Join(cudaError(ErrorConnectionFailed, "the MPS control daemon does not answer: %v", err), c.Close())
	}
	if a.Admission == nil {
		if a.Error == nil {
			a.Error = &Error{Name: ErrorRPCFailure}
		}
		return nil, errors.Join(a.Error, c.Close())
	}
	c.Admission = *a.Admission
	sayToLog(pipe, fmt.Sprintf("[client %d] connected", r.PID))
	return c, nil
}

// Wait waits until the server has ended or reports that the program cannot continue, and returns the reason as an *Error. It
// returns nil when ctx of Connect has ended.
func (c *Client) Wait(ctx context.Context) error {
	var a answer
	err := readLine(c.lines, &a)
	switch {
	case err == nil && a.Error != nil:
		return a.Error // also where ctx has ended since
	case ctx.Err() != nil:
		return nil //nolint:nilerr // reading was ended
	case err != nil:
		return cudaError(ErrorRPCFailure, "the MPS server is gone")
	default:
		return cudaError(ErrorRPCFailure, "the MPS server makes no sense")
	}
}

// WaitGone waits until the server has closed the connection or ctx of Connect has ended.
func (c *Client) WaitGone() {
	_, _ = io.Copy(io.Discard, c.conn) // either way it ends
}

// Fault causes a fatal fault of the program, which affects all programs of the server.
func (c *Client) Fault() error {
	if _, err := io.WriteString(c.conn, commandFault+"\n"); err != nil {
		return cudaError(ErrorRPCFailure, "%v", err)
	}
	return nil
}

// Close leaves the server.
func (c *Client) Close() error {
	if !c.stop() {
		return nil // ctx has ended, and that closed it
	}
	return c.conn.Close()
}

// Control is an administrator's client: it sends the lines of in to the daemon, one by one, and writes the replies to out.
func Control(ctx context.Context, pipe string, in io.Reader, out io.Writer) error {
	conn, err := dial(ctx, pipe, privilegedName)
	if err != nil {
		conn, err = dial(ctx, pipe, socketName) // what it may do there is little
	}
	if err != nil {
		return ErrNoDaemon // and no more: scripts look for these words
	}
	defer func() { _ = conn.Close() }() // all replies were read
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := writeLine(conn, hello{}); err != nil {
		return fmt.Errorf("talk to the MPS control daemon: %w", err)
	}
	replies := newLines(conn)
	commands := newLines(in)
	for commands.Scan() {
		if len(commands.Bytes()) == 0 {
			continue
		}
		if err := writeLine(conn, uiCommand{commands.Text()}); err != nil {
			return fmt.Errorf("talk to the MPS control daemon: %w", err)
		}
		var reply uiReply
		err := readLine(replies, &reply)
		if c, parseErr := parseCommand(commands.Text()); errors.Is(err, io.EOF) && parseErr == nil && c.name == "quit" {
			return nil // the daemon is gone, as it should be
		}
		if err != nil {
			return fmt.Errorf("hear from the MPS control daemon: %w", err)
		}
		if _, err := io.WriteString(out, reply.Text); err != nil {
			return err
		}
	}
	return commands.Err()
}
