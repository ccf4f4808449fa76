// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// ServerName is the name of the server program.
const ServerName = "nvidia-cuda-mps-server"

// States of a server.
const (
	stateInitializing = "INITIALIZING"
	stateActive       = "ACTIVE"
	stateFault        = "FAULT"
)

// contextMemory is a server's own use of memory on each GPU.
const contextMemory = 30 << 20

// server is a server in this process.
type server struct {
	daemon  *net.UnixConn
	log     *logFile
	hold    *sim.Hold
	clients *sim.Clients
	devices []*device

	mu        sync.Mutex
	settings  settings
	state     string
	finishing bool
	lastID    int
	programs  []*program // by ID
	done      func()     // ends the server
	waiting   sync.WaitGroup
}

// Serve is the process of a server, which a daemon has started with one end of a pair of sockets. It returns when the daemon has
// ended, when the daemon or ctx says so, or when it has no work left.
func Serve(ctx context.Context, socket *os.File, node func() (*sim.Node, error)) error {
	log, closeLog, err := openLog(LogDirectory(), "server.log", "Server")
	if err != nil {
		return err
	}
	conn, err := fileConn(socket)
	if err != nil {
		return errors.Join(err, closeLog())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the reading
	defer stop()
	s := &server{daemon: conn, log: log, state: stateActive, done: cancel}
	err = s.run(ctx, node)
	cancel()
	s.endAll(cudaError(ErrorRPCFailure, "the MPS server has ended"))
	s.waiting.Wait()
	if s.hold != nil {
		err = errors.Join(err, s.hold.Close())
	}
	log.printf("Server exited")
	return errors.Join(err, closeLog())
}

// run starts the server and executes the daemon's requests.
func (s *server) run(ctx context.Context, node func() (*sim.Node, error)) error {
	var first ask
	if _, err := receive(s.daemon, &first); err != nil {
		return fmt.Errorf("hear from the control daemon: %w", err)
	}
	if first.Settings == nil {
		return errors.New("hear from the control daemon: no settings")
	}
	if err := s.start(node, &first); err != nil {
		s.log.printf("Failed to start: %v", err)
		return errors.Join(fmt.Errorf("start MPS server: %w", err), send(s.daemon, outcome{Error: err.Error()}, nil))
	}
	s.log.printf("Server has started")
	s.waiting.Go(func() { s.guard(ctx) })
	if err := send(s.daemon, outcome{}, nil); err != nil {
		return fmt.Errorf("report to the control daemon: %w", err)
	}
	for {
		var a ask
		conn, err := receive(s.daemon, &a)
		if err != nil {
			s.log.printf("Control daemon is gone")
			return nil //nolint:nilerr // that is how servers end
		}
		if err := send(s.daemon, s.answer(&a), nil); err != nil {
			return fmt.Errorf("answer the control daemon: %w", err)
		}
		if a.Op == opProgram { // only now: a program that the daemon knows not to be taken can go elsewhere
			s.take(&a, conn)
		}
		s.endIfIdle()
	}
}

// start takes the GPUs.
func (s *server) start(open func() (*sim.Node, error), first *ask) error {
	s.log.printf("Startup, user %d, multi-user %v", first.UID, first.MultiUser)
	s.settings = *first.Settings
	node, err := open()
	if err != nil {
		return err
	}
	if err := node.Init(); err != nil {
		return err
	}
	if s.devices, err = visibleDevices(node, visibleEnv()); err != nil {
		return err
	}
	if err := troubleOf(node, sim.CallMPSServerStart, s.devices); err != nil {
		return err
	}
	for _, l := range s.settings.Limits { // the last that is about a device counts
		if d := lookup(s.devices, l.Device); d != nil {
			d.limit = l.Bytes
		}
	}
	s.clients = node.Clients()
	if s.hold, err = s.clients.Hold(ServerName); err != nil {
		return err
	}
	for i, d := range s.devices {
		s.log.printf("Creating server context on device %d (%s)", i, d.name)
		if err := s.use(d); err != nil {
			return err
		}
	}
	s.log.printf("Active Threads Percentage set to %s", formatPercentage(s.settings.Threads))
	return nil
}

// guardTime is the interval at which a server checks its GPUs.
const guardTime = 250 * time.Millisecond

// guard ends the server when its GPUs are gone.
func (s *server) guard(ctx context.Context) {
	tick := time.NewTicker(guardTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.check(); err != nil {
			s.log.printf("GPU is gone: %v", err)
			s.done()
			return
		}
	}
}

// check is Check of the hold.
func (s *server) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.Check()
}

// use reports the server's memory use of a device to the node.
func (s *server) use(d *device) error {
	return s.hold.Use(d.index, d.gi, d.ci, contextMemory+d.used)
}

// answer executes a request of the daemon.
func (s *server) answer(a *ask) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := s.do(a)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Text: text}
}

// do is answer with mu held.
func (s *server) do(a *ask) (string, error) {
	switch a.Op {
	case opProgram:
		return "", nil
	case opFinish:
		s.finishing = true
		return "", nil
	case opStatus:
		return s.state, nil
	case opClients:
		return s.clientList(), nil
	case opPS:
		return s.processes(), nil
	case opDevices:
		return s.deviceList(a.CSV), nil
	case opThreads:
		if a.Percentage > 0 {
			s.settings.Threads = a.Percentage
		}
		return formatPercentage(s.settings.Threads), nil
	case opLimit:
		return s.deviceLimit(a)
	case opTerminate:
		return "", s.terminate(a.ProgramPID)
	case opFault:
		s.fault("simulated")
		return "", nil
	default:
		return "", fmt.Errorf("unknown request %q", a.Op)
	}
}

// deviceLimit sets or returns the limit of a device for future programs.
func (s *server) deviceLimit(a *ask) (string, error) {
	d := lookup(s.devices, a.Device)
	if d == nil {
		return "", fmt.Errorf("no device %q", a.Device)
	}
	if a.Bytes == 0 {
		return formatSize(d.limit), nil
	}
	d.limit = a.Bytes
	return "", nil
}

// endIfIdle ends a finishing server without programs.
func (s *server) endIfIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finishing && len(s.programs) == 0 {
		s.done()
	}
}

// ApplyFaults applies injected faults to a program of MPS: those of any GPU, and those of the GPUs that
// CUDA_VISIBLE_DEVICES names. The node needs a session.
func ApplyFaults(node *sim.Node, call string) error {
	devices, err := visibleDevices(node, visibleEnv())
	if err != nil {
		devices = nil // then only those of any GPU
	}
	return troubleOf(node, call, devices)
}

func troubleOf(node *sim.Node, call string, devices []*device) error {
	var gpus []int
	for _, d := range devices {
		gpus = append(gpus, d.index)
	}
	return node.Faults().Apply(call, gpus...)
}

// visibleEnv is CUDA_VISIBLE_DEVICES, nil if it is not set.
func visibleEnv() *string {
	v, ok := os.LookupEnv(EnvVisible)
	if !ok {
		return nil
	}
	return &v
}
