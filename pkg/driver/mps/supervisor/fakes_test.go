// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

const (
	testUUID  = "GPU-01234567-89ab-cdef-0123-456789abcdef"
	testOwner = "gpu.cleave.dev"
)

// requestFor asks for a GPU by the bus it is on.
func requestFor(claim string, bus uint8) mps.Request {
	pci := gpu.PCIAddress{Bus: bus}
	return mps.Request{
		Claim: types.UID(claim), Device: pci.DeviceName(), UUID: testUUID, PCI: pci, Owner: testOwner,
		Settings: mps.Settings{SharedMemory: 64 << 20, ActiveThreadPercentage: 50, PinnedMemory: 4 << 30},
	}
}

// fakeHost is a machine in memory, but for its files. It outlives supervisors.
type fakeHost struct {
	stop      func() // ends the last supervisor
	mu        sync.Mutex
	hook      func(what string) error
	modes     map[gpu.PCIAddress]int
	noDriver  error
	opened    int
	processes map[int]*fakeProcess
	nextPID   int
	mounts    map[string]int64
	defaults  map[string][]string // commands by GPU
	silent    bool                // daemons do not answer
	stubborn  int                 // how many ways to end them daemons withstand
	starts    int
	asked     int                 // how often daemons were asked about their servers
	serving   map[string]bool     // GPUs whose daemons have a server
	statuses  map[string][]string // answers of the servers of GPUs, the last for good; to an empty one there is no answer
	inMIG     bool                // GPUs are in MIG mode, in which compute modes are neither read nor set
	deaf      int                 // how many changes of the compute mode are answered with success and not made
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		stop: func() {}, modes: map[gpu.PCIAddress]int{}, processes: map[int]*fakeProcess{},
		serving: map[string]bool{}, statuses: map[string][]string{}, nextPID: 100, mounts: map[string]int64{}, defaults: map[string][]string{},
	}
}

func (h *fakeHost) host() Host {
	return stepped(Host{Hardware: h, Daemons: h, Mounts: h, Files: fakeFiles{}, Disk: store.Disk{}}, h.step)
}

// onStep says what is called at steps. nil calls nothing.
func (h *fakeHost) onStep(hook func(what string) error) {
	h.locked(func() { h.hook = hook })
}

func (h *fakeHost) step(what string) error {
	var hook func(string) error
	h.locked(func() { hook = h.hook })
	if hook == nil {
		return nil
	}
	return hook(what)
}

func (h *fakeHost) locked(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

// Hardware.

func (h *fakeHost) Open(context.Context) (GPUs, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noDriver != nil {
		return nil, h.noDriver
	}
	h.opened++
	return fakeGPUs{h}, nil
}

type fakeGPUs struct{ h *fakeHost }

func (g fakeGPUs) Close() error {
	g.h.locked(func() { g.h.opened-- })
	return nil
}

func (g fakeGPUs) ComputeMode(_ context.Context, pci gpu.PCIAddress, _ string) (int, error) {
	if g.h.inMIG {
		return 0, gpu.ErrInMIGMode
	}
	return g.h.modeOf(pci), nil
}

func (g fakeGPUs) SetComputeMode(_ context.Context, pci gpu.PCIAddress, _ string, mode int) error {
	g.h.locked(func() {
		if g.h.deaf > 0 {
			g.h.deaf--
			return
		}
		if g.h.modes[pci] = mode; mode == 0 {
			delete(g.h.modes, pci)
		}
	})
	return nil
}

// Daemons.

func (h *fakeHost) Root(context.Context) string { return "/" }

func (h *fakeHost) Start(_ context.Context, d Daemon, record func(ProcessID) error) (Process, error) {
	p := &fakeProcess{h: h, gpu: d.GPU, done: make(chan struct{})}
	h.locked(func() {
		h.starts++
		h.nextPID++
		p.id, p.withhold = ProcessID{PID: h.nextPID, Start: uint64(h.nextPID) * 10}, h.stubborn
	})
	if err := record(p.id); err != nil { // a crash in it ends the process too
		return nil, err
	}
	h.locked(func() {
		h.processes[p.id.PID] = p
		p.ready = !h.silent
	})
	return p, nil
}

func (h *fakeHost) Adopt(id ProcessID) (Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.processes[id.PID]; p != nil && p.id == id {
		p.forgotten = false
		return p, nil
	}
	return nil, fmt.Errorf("%w: there is no process %d", errGone, id.PID)
}

func (h *fakeHost) Ask(ctx context.Context, d Daemon, commands ...string) (string, error) {
	if strings.HasPrefix(commands[0], "get_server_") {
		return h.askServer(ctx, d, commands[0])
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes {
		if p.gpu != d.GPU || !p.ready {
			continue
		}
		switch {
		case commands[0] == "quit":
			if p.withhold--; p.withhold < 0 {
				h.die(p)
			}
			return "", nil
		case strings.HasPrefix(commands[0], "set_"):
			h.defaults[d.GPU] = commands
			return "", nil
		case strings.HasPrefix(commands[0], "get_default_device"):
			return "4G", nil
		default:
			if len(h.defaults[d.GPU]) == 0 {
				return "100.0", nil
			}
			return "50.0", nil
		}
	}
	return "", errors.New("Cannot find MPS control daemon process")
}

// askServer answers about the server of a daemon, which has one if it has statuses.
func (h *fakeHost) askServer(ctx context.Context, d Daemon, command string) (answer string, err error) {
	h.locked(func() {
		h.asked++
		left := h.statuses[d.GPU]
		switch {
		case len(left) == 0:
			answer = "there is none"
		case command == "get_server_list":
			answer = "77"
		default:
			answer = left[0]
			h.statuses[d.GPU] = left[min(1, len(left)-1):]
		}
	})
	if answer == "" {
		<-ctx.Done()
		err = ctx.Err()
	}
	return answer, err
}

// Serves goes by serving: the daemons in memory have no servers of their own.
func (h *fakeHost) Serves(_ context.Context, d Daemon, _ ProcessID) (serves bool, err error) {
	h.locked(func() { serves = h.serving[d.GPU] })
	return serves, nil
}

func (h *fakeHost) Sweep(_ context.Context, d Daemon) error {
	h.kill(d.GPU)
	h.locked(func() {
		delete(h.defaults, d.GPU)
		delete(h.statuses, d.GPU)
	})
	return nil
}

// Mounts.

func (h *fakeHost) Mount(_ context.Context, t tmpfs) error {
	h.locked(func() {
		if _, mounted := h.mounts[t.dir]; !mounted {
			h.mounts[t.dir] = t.size
		}
	})
	return nil
}

func (h *fakeHost) Unmount(dir string) error {
	h.locked(func() { delete(h.mounts, dir) })
	return nil
}

// fakeFiles are directories on the real disk, in which no daemon listens.
type fakeFiles struct{ Disk }

func (fakeFiles) ShowClients(paths) error { return nil }

// kill ends the daemon of a GPU as the OOM killer would.
func (h *fakeHost) kill(device string) {
	h.locked(func() {
		for _, p := range h.processes {
			if p.gpu == device {
				h.die(p)
			}
		}
	})
}

// modeOf is the compute mode of a GPU.
func (h *fakeHost) modeOf(pci gpu.PCIAddress) (mode int) {
	h.locked(func() { mode = h.modes[pci] })
	return mode
}

// recordOf is the path of the record of a GPU.
func recordOf(dir, device string) string { return filepath.Join(dir, stateDir, device+".json") }

// testConfig is one with a directory of its own.
func testConfig(t *testing.T) Config {
	t.Helper()
	c := Config{
		Version: "test", Dir: t.TempDir(), DriverRoot: "/", ComputeMode: ExclusiveMode,
		StartTimeout: 20 * time.Second, StopTimeout: 5 * time.Second,
	}
	must(t, makeDir(filepath.Join(c.Dir, stateDir), 0o700))
	return c
}

// start starts a supervisor and recovers; one before that ends.
func (h *fakeHost) start(t *testing.T, config Config) *Supervisor {
	t.Helper()
	h.stop()
	life, cancel := context.WithCancel(t.Context())
	s := New(life, config, h.host(), "boot-1")
	h.stop = func() {
		cancel()
		s.Wait()
	}
	must(t, s.Recover(life))
	return s
}

// left lists what there is of MPS on a machine; empty if nothing.
func (h *fakeHost) left(t *testing.T, config Config) string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []string
	if len(h.modes) > 0 {
		left = append(left, fmt.Sprintf("compute modes %v", h.modes))
	}
	if len(h.processes) > 0 {
		left = append(left, fmt.Sprintf("%d processes", len(h.processes)))
	}
	if len(h.mounts) > 0 {
		left = append(left, fmt.Sprintf("mounts %v", h.mounts))
	}
	if h.opened != 0 {
		left = append(left, fmt.Sprintf("%d open drivers", h.opened))
	}
	return strings.Join(append(left, dirsLeft(t, config)...), ", ")
}

// wantNothingLeft fails the test if anything of MPS is left on a machine.
func (h *fakeHost) wantNothingLeft(t *testing.T, config Config) {
	t.Helper()
	if left := h.left(t, config); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// onFakeHost runs a test in a bubble, with a supervisor on a machine in memory.
func onFakeHost(t *testing.T, test func(t *testing.T, s *Supervisor, h *fakeHost, config Config)) {
	synctest.Test(t, func(t *testing.T) {
		h, config := newFakeHost(), testConfig(t)
		defer func() { h.stop() }()
		test(t, h.start(t, config), h, config)
	})
}
