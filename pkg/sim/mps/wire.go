// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// All messages on the control socket are lines of JSON. The first line of a connection identifies the peer: an administrator, who
// continues with commands, or a program, whose connection the daemon hands over to a server.

// maxLine bounds a line.
const maxLine = 64 << 10

// hello is the first line.
type hello struct {
	// Program is nil for an administrator.
	Program *Request `json:"program,omitempty"`
}

// uiCommand and uiReply are the messages of an administrator.
type (
	uiCommand struct {
		Command string `json:"command"`
	}
	uiReply struct {
		Text string `json:"text"`
	}
)

// Request is a CUDA program's request to a server.
type Request struct {
	// PID as the program itself sees it.
	PID     int    `json:"pid"`
	Command string `json:"command"`
	// Visible is CUDA_VISIBLE_DEVICES, nil if that is not set: devices among those of the server.
	Visible *string `json:"visible,omitempty"`
	// Device is the ordinal among those, and Memory its memory use there.
	Device int    `json:"device"`
	Memory uint64 `json:"memory"`
	// Threads and Limits are the program's own limits, as its environment has them.
	Threads string `json:"threads,omitempty"`
	Limits  string `json:"limits,omitempty"`
}

// Admission is a server's grant to a program.
type Admission struct {
	PID       int     `json:"pid"`
	ServerPID int     `json:"serverPID"`
	ID        int     `json:"id"`
	Device    string  `json:"device"`
	Threads   float64 `json:"activeThreadPercentage"`
	// MemoryLimit in bytes; 0 if there is none.
	MemoryLimit uint64 `json:"memoryLimitBytes"`
	Memory      uint64 `json:"memoryBytes"`
}

// Names of CUDA errors, as cuda.h has them.
const (
	ErrorInvalidValue     = "CUDA_ERROR_INVALID_VALUE"
	ErrorOutOfMemory      = "CUDA_ERROR_OUT_OF_MEMORY"
	ErrorNoDevice         = "CUDA_ERROR_NO_DEVICE"
	ErrorInvalidDevice    = "CUDA_ERROR_INVALID_DEVICE"
	ErrorLaunchFailed     = "CUDA_ERROR_LAUNCH_FAILED"
	ErrorSystemNotReady   = "CUDA_ERROR_SYSTEM_NOT_READY" // 802
	ErrorConnectionFailed = "CUDA_ERROR_MPS_CONNECTION_FAILED"
	ErrorRPCFailure       = "CUDA_ERROR_MPS_RPC_FAILURE"
	ErrorServerNotReady   = "CUDA_ERROR_MPS_SERVER_NOT_READY"
	ErrorMaxClients       = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
	ErrorTerminated       = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
)

// Error is a CUDA error that a program gets.
type Error struct {
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Name
	}
	return e.Name + ": " + e.Detail
}

func cudaError(name, format string, args ...any) *Error {
	return &Error{name, fmt.Sprintf(format, args...)}
}

// answer is a server's message to a program: first whether it is accepted, later possibly an error.
type answer struct {
	Admission *Admission `json:"admission,omitempty"`
	Error     *Error     `json:"error,omitempty"`
}

// writeLine writes a value as a line.
func writeLine(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// newLines reads lines of values.
func newLines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	return s
}

// readLine reads the next value; io.EOF at the end.
func readLine(s *bufio.Scanner, v any) error {
	if !s.Scan() {
		return errors.Join(s.Err(), io.EOF)
	}
	if err := json.Unmarshal(s.Bytes(), v); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}

// peer identifies the other end of a connection; the PID is as this process sees it, 0 if it cannot.
func peer(conn *net.UnixConn) (pid, uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, 0, fmt.Errorf("find out who is connected: %w", err)
	}
	return int(cred.Pid), int(cred.Uid), nil
}

// The daemon and a server communicate over a pair of message sockets. The daemon asks, the server answers, one at a time; but the
// first message is the server's, when it has started or failed to.

// ask is a daemon's request to a server.
type ask struct {
	Op string `json:"op"`
	// Start
	Settings  *settings `json:"settings,omitempty"`
	UID       int       `json:"uid,omitempty"`
	MultiUser bool      `json:"multiUser,omitempty"`
	// The program handed over, with its connection.
	Program    *Request `json:"program,omitempty"`
	ProgramPID int      `json:"programPID,omitempty"`
	// Settings of this server
	Device     string  `json:"device,omitempty"`
	Bytes      uint64  `json:"bytes,omitempty"`
	Percentage float64 `json:"percentage,omitempty"`
	CSV        bool    `json:"csv,omitempty"`
}

// Requests of the daemon.
const (
	opStart     = "start"
	opProgram   = "program"
	opFinish    = "finish" // end when the last program is gone
	opStatus    = "status"
	opClients   = "clients"
	opPS        = "ps"
	opDevices   = "devices"
	opThreads   = "threads"
	opLimit     = "limit"
	opTerminate = "terminate"
	opFault     = "fault"
)

// outcome is a server's answer.
type outcome struct {
	Text  string `json:"text,omitempty"`
	Error string `json:"error,omitempty"`
}

// maxMessage bounds a message between daemon and server.
const maxMessage = 128 << 10

// socketPair creates the two ends; the second is for a process to inherit.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "server")
	ours, err := fileConn(os.NewFile(uintptr(fds[0]), "daemon"))
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

// fileConn converts a file, which it closes, to a connection.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use an inherited socket: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("use an inherited socket: it is not a Unix socket"), c.Close())
	}
	return conn, nil
}

// send sends a message, with a connection if there is one.
func send(conn *net.UnixConn, v any, with *net.UnixConn) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	var oob []byte
	if with != nil {
		f, err := with.File()
		if err != nil {
			return fmt.Errorf("hand over a connection: %w", err)
		}
		defer f.Close()
		oob = syscall.UnixRights(int(f.Fd()))
	}
	_, _, err = conn.WriteMsgUnix(data, oob, nil)
	return err
}

// receive receives a message, and the connection that came with it, or nil.
func receive(conn *net.UnixConn, v any) (*net.UnixConn, error) {
	data, oob := make([]byte, maxMessage), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, err
	}
	with, err := received(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data[:n], v); err != nil {
		err = fmt.Errorf("decode message: %w", err)
		if with != nil {
			err = errors.Join(err, with.Close())
		}
		return nil, err
	}
	return with, nil
}

// received finds the connection that came with a message.
func received(oob []byte) (*net.UnixConn, error) {
	if len(oob) == 0 {
		return nil, nil //nolint:nilnil // most messages come without
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("take over a connection: %w", err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, fmt.Errorf("take over a connection: %w", err)
	}
	syscall.CloseOnExec(fds[0]) // there is room for one only
	return fileConn(os.NewFile(uintptr(fds[0]), "program"))
}
