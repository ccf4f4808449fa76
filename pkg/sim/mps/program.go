// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// program is a client program of a server.
type program struct {
	id      int
	pid     int // as the server sees it
	conn    *net.UnixConn
	request *Request
	device  *device
	ended   bool // it was notified that it cannot go on
}

// answerTime is how long a program may take to read a reply.
const answerTime = 5 * time.Second

// reply writes to a program.
func reply(conn *net.UnixConn, a answer) error {
	return errors.Join(conn.SetWriteDeadline(time.Now().Add(answerTime)), writeLine(conn, a))
}

// take decides whether to accept a program from the daemon.
func (s *server) take(a *ask, conn *net.UnixConn) {
	if conn == nil || a.Program == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.printf("Received new client request from %d", a.ProgramPID)
	granted, p, refusal := s.admit(a)
	if refusal != nil {
		s.log.printf("Client %d refused: %v", a.ProgramPID, refusal)
		_ = reply(conn, answer{Error: refusal}) // if it does not hear it, it is gone
		_ = conn.Close()
		return
	}
	p.conn = conn
	s.programs = append(s.programs, p)
	if err := reply(conn, answer{Admission: granted}); err != nil {
		s.log.printf("Client %d does not listen: %v", p.pid, err)
	}
	s.waiting.Go(func() { s.watch(p) })
}

// admit checks a program against the limits of the server; mu is held.
func (s *server) admit(a *ask) (*Admission, *program, *Error) {
	r := a.Program
	if s.finishing || s.state != stateActive {
		return nil, nil, cudaError(ErrorServerNotReady, "the MPS server is in state %s or shutting down", s.state)
	}
	d, refusal := selectDevice(s.devices, r)
	if refusal != nil {
		return nil, nil, refusal
	}
	if pending, err := s.clients.FabricPending(d.index); pending || err != nil {
		return nil, nil, cudaError(ErrorSystemNotReady, "system not yet initialized")
	}
	threads := s.settings.Threads
	if r.Threads != "" {
		own, err := parsePercentage(r.Threads)
		if err != nil {
			return nil, nil, cudaError(ErrorInvalidValue, "%s: %v", EnvThreads, err)
		}
		threads = min(threads, own)
	}
	limit, unlimited, err := ownLimit(s.devices, d, r)
	if err != nil {
		return nil, nil, cudaError(ErrorInvalidValue, "%s: %v", EnvMemory, err)
	}
	switch {
	case unlimited:
		limit = 0
	case limit == 0 || d.limit != 0 && d.limit < limit:
		limit = d.limit
	}
	if n := s.clientsOf(d); n >= d.maxClients {
		return nil, nil, cudaError(ErrorMaxClients, "%s has %d clients, the most it takes", d.uuid, n)
	}
	if limit != 0 && r.Memory > limit {
		return nil, nil, cudaError(ErrorOutOfMemory, "%d bytes asked, the limit is %d", r.Memory, limit)
	}
	if free := d.memory - min(d.memory, contextMemory+d.used); r.Memory > free {
		return nil, nil, cudaError(ErrorOutOfMemory, "%d bytes asked, %d are free", r.Memory, free)
	}
	d.used += r.Memory
	if err := s.use(d); err != nil {
		d.used -= r.Memory
		return nil, nil, cudaError(ErrorRPCFailure, "%v", err)
	}
	p := &program{id: s.lastID, pid: a.ProgramPID, request: r, device: d}
	if err := s.clients.BeginServed(d.index, p.served()); err != nil {
		d.used -= r.Memory
		return nil, nil, cudaError(ErrorRPCFailure, "%v", errors.Join(err, s.use(d)))
	}
	s.lastID++
	return &Admission{
		PID: r.PID, ServerPID: pid(), ID: p.id, Device: d.uuid, Threads: threads, MemoryLimit: limit, Memory: r.Memory,
	}, p, nil
}

// served is the program in the node's journal.
func (p *program) served() sim.Served {
	return sim.Served{PID: p.pid, Name: p.request.Command, GPUInstance: p.device.gi}
}

// clientsOf counts the programs on a device; mu is held.
func (s *server) clientsOf(d *device) int {
	n := 0
	for _, p := range s.programs {
		if p.device == d {
			n++
		}
	}
	return n
}

// watch waits until a program is gone, or reports a fault.
func (s *server) watch(p *program) {
	lines := newLines(p.conn)
	for lines.Scan() {
		if lines.Text() == commandFault {
			s.mu.Lock()
			s.fault(fmt.Sprintf("client %d", p.pid))
			s.mu.Unlock()
		}
	}
	s.leave(p)
	s.endIfIdle()
}

// leave removes a program from the list.
func (s *server) leave(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = p.conn.Close()
	s.programs = slices.DeleteFunc(s.programs, func(o *program) bool { return o == p })
	p.device.used -= p.request.Memory
	if s.hold.Check() == nil {
		if err := s.use(p.device); err != nil {
			s.log.printf("Client %d leaves memory behind: %v", p.pid, err)
		}
	}
	if err := s.clients.EndServed(p.device.index, p.served()); err != nil {
		s.log.printf("Client %d: %v", p.pid, err)
	}
	s.log.printf("Client %d disconnected", p.pid)
	if len(s.programs) == 0 && s.state == stateFault {
		s.state = stateActive
		s.log.printf("All clients are gone, recovered from the fault")
	}
}

// fault simulates the fatal fault of a program: it affects all of them, and the server accepts no others before they are gone. mu
// is held.
func (s *server) fault(cause string) {
	s.log.printf("Fatal GPU fault (%s): %d clients are hit", cause, len(s.programs))
	if len(s.programs) > 0 {
		s.state = stateFault
	}
	for _, p := range s.programs {
		s.end(p, cudaError(ErrorLaunchFailed, "fatal fault of a client of the MPS server"))
	}
}

// end notifies a program that it cannot go on; it is a client until it goes. mu is held.
func (s *server) end(p *program, e *Error) {
	if p.ended {
		return
	}
	p.ended = true
	if err := reply(p.conn, answer{Error: e}); err != nil {
		s.log.printf("Client %d does not listen: %v", p.pid, err)
	}
}

// endAll closes the connections of all programs.
func (s *server) endAll(e *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.programs {
		s.end(p, e)
		_ = p.conn.Close()
	}
}

// terminate ends one program; mu is held.
func (s *server) terminate(pid int) error {
	for _, p := range s.programs {
		if p.pid == pid {
			s.end(p, cudaError(ErrorTerminated, "terminated by the administrator"))
			return nil
		}
	}
	return fmt.Errorf("no client with PID %d", pid)
}

// clientList is the output of get_client_list.
func (s *server) clientList() string {
	var b strings.Builder
	for _, p := range s.programs {
		fmt.Fprintln(&b, p.pid)
	}
	return b.String()
}

// partOfUUID is the length of the UUID prefix printed by ps.
const partOfUUID = len("GPU-cb1213a3-d6a4")

// processes is the output of ps, without the line of titles.
func (s *server) processes() string {
	var b strings.Builder
	for _, p := range s.programs {
		uuid := p.device.uuid[:min(len(p.device.uuid), partOfUUID)]
		name, _, _ := strings.Cut(p.request.Command, "\n")
		fmt.Fprintf(&b, psFormat, fmt.Sprint(p.pid), fmt.Sprint(p.id), fmt.Sprint(pid()), uuid,
			fmt.Sprint(p.request.PID), name[:min(len(name), 120)])
	}
	return b.String()
}

// psFormat is a line of ps.
const psFormat = "%-9s %-5s %-9s %-18s %-9s %s\n"

// psTitles is its first line.
func psTitles() string {
	return fmt.Sprintf(psFormat, "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
}

// deviceList is the output of device_query for a server.
func (s *server) deviceList(csv bool) string {
	var b strings.Builder
	format := "%-16s %-18s %-42s %s\n"
	if csv {
		format = "%s,%s,%s,%s\n"
	}
	fmt.Fprintf(&b, format, "Device Ordinal", "PCI IDs", "UUID", "Name")
	for i, d := range s.devices {
		fmt.Fprintf(&b, format, fmt.Sprint(i), d.pci, d.uuid, d.name)
	}
	return b.String()
}
