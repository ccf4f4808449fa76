// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// builtLibrary is where `make build` puts the simulated driver's library.
const builtLibrary = "../../../../bin/" + driverroot.LibraryName

// client runs a CUDA program as a container would, and returns what it was given once it has it.
func (b *bed) client(t *testing.T, e mps.Endpoint, args ...string) (map[string]any, *exec.Cmd) {
	t.Helper()
	command := exec.Command(filepath.Join(b.Root, "usr/bin", controlProgram), append([]string{"cuda-client"}, args...)...)
	command.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + e.PipeDir}
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	given := map[string]any{}
	if line != "" {
		if err := json.Unmarshal([]byte(line), &given); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return given, command
}

func TestRun_SimulatedLibrary(t *testing.T) {
	if _, err := os.Stat(builtLibrary); err != nil {
		t.Skipf("the simulated library is not built (make build): %v", err)
	}
	b := newBed(t, sim.WithLibrary(builtLibrary))
	b.Library = true
	supervisor := b.spawn(t, 0)
	c := b.dial(t)
	a, other := b.request(t, "a", 0), b.request(t, "b", 0)
	e := mustEnsure(t, c, a)
	mustEnsure(t, c, other)

	given, held := b.client(t, e, "--memory", "2G", "--hold")
	t.Logf("given: %v", given)
	_, greedy := b.client(t, e, "--memory", "5G") // over the default limit of 4 GiB
	if exit := (*exec.ExitError)(nil); !errors.As(greedy.Wait(), &exit) || exit.ExitCode() != 2 {
		t.Errorf("a client over the default limit ended with %v, want out of memory (2)", exit)
	}
	b.wantComputeMode(t, a.PCI, nvml.ComputeModeExclusive)

	// The daemon dies, and its server's client with it; the next one serves the same directories.
	events := watchEvents(t, c)
	must(t, syscall.Kill(statusOf(t, c)[0].PID, syscall.SIGKILL))
	if lost := <-events; lost.Kind != mps.DaemonLost || len(lost.Claims) != 2 || !strings.Contains(lost.Message, "signal: killed") {
		t.Errorf("event %+v", lost)
	}
	if restarted := <-events; restarted.Kind != mps.DaemonRestarted {
		t.Errorf("event %+v", restarted)
	}
	if err := held.Wait(); err == nil {
		t.Error("a client of the lost server ended well")
	}
	_, again := b.client(t, e, "--memory", "1G")
	if err := again.Wait(); err != nil {
		t.Errorf("a client of the new daemon: %v", err)
	}
	_, held = b.client(t, e, "--memory", "1G", "--hold")
	mustRelease(t, c, a)
	mustRelease(t, c, other) // though a program still uses it
	b.wantNothingLeft(t)
	_ = held.Wait()
	if err := errors.Join(supervisor.Process.Signal(syscall.SIGTERM), supervisor.Wait()); err != nil {
		t.Errorf("the supervisor ended: %v", err)
	}
}

// The driver is reloaded under a claim that has no program running: the mode is back, and the daemon is today's.
func TestDriverReload_LiveClaim(t *testing.T) {
	b := newBed(t)
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	e := mustEnsure(t, c, a)
	before := statusOf(t, c)[0].PID
	node := b.node(t)
	must(t, errors.Join(node.Driver().Unload(), node.Driver().Load()))
	b.wantComputeMode(t, a.PCI, nvml.ComputeModeDefault) // or the simulated GPU is too kind
	must(t, c.Retain(t.Context(), a.Device, testOwner, []types.UID{a.Claim}))
	b.wantComputeMode(t, a.PCI, nvml.ComputeModeExclusive)
	if after := statusOf(t, c)[0]; after.State != mps.Running || after.PID == before {
		t.Errorf("%+v, want a daemon that was started after the reload, not process %d", after, before)
	}
	// Containers have the clients' directory mounted since before.
	_, program := b.client(t, e, "--memory", "1G")
	if err := program.Wait(); err != nil {
		t.Errorf("a client after the reload: %v", err)
	}
	mustRelease(t, c, a)
	b.wantNothingLeft(t)
}

// CUDA uses a GPU without MPS where it finds no daemon. While none starts, the GPU takes no program, and then its server has it.
func TestRestart_ProgramWithoutMPS(t *testing.T) {
	b := newBed(t)
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	e := mustEnsure(t, c, a)
	node := b.node(t)
	events := watchEvents(t, c)
	program := filepath.Join(b.Root, "usr/bin", controlProgram)
	must(t, os.Rename(program, program+".away"))
	must(t, syscall.Kill(statusOf(t, c)[0].PID, syscall.SIGKILL))
	if lost := <-events; lost.Kind != mps.DaemonLost {
		t.Errorf("event %+v", lost)
	}
	without := sim.Client{PID: os.Getpid(), Name: "python", GPUInstance: -1, ComputeInstance: -1}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); ; <-tick.C {
		err := node.Clients().Add(0, without)
		if err != nil && strings.Contains(err.Error(), "PROHIBITED") {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("a program without MPS gets the GPU: %v", err)
		}
		if err == nil { // it came before the first restart had failed
			err = node.Clients().Remove(0, without.PID)
		}
		must(t, err)
	}
	must(t, os.Rename(program+".away", program))
	for event := range events {
		if event.Kind == mps.DaemonRestarted {
			break
		}
	}
	_, client := b.client(t, e, "--memory", "1G")
	if err := client.Wait(); err != nil {
		t.Errorf("a client of the new daemon: %v", err)
	}
	mustRelease(t, c, a)
	if err := errors.Join(node.Clients().Add(0, without), node.Clients().Remove(0, without.PID)); err != nil {
		t.Errorf("after the last share: %v", err)
	}
}

// A program stays though a fatal error of another has hit it: its server takes no others until it is replaced.
func TestCleanUp_ServerInFault(t *testing.T) {
	b := newBed(t)
	must(t, os.MkdirAll(filepath.Join(b.Config.Dir, stateDir), 0o700))
	life, cancel := context.WithCancel(context.Background())
	s := New(life, b.Config, b.host(), "boot-1")
	defer s.Wait()
	defer cancel()
	a := b.request(t, "a", 0)
	e := ensure(t, s, a)
	_, stays := b.client(t, e, "--stay")
	_, faulty := b.client(t, e, "--fault")
	_ = faulty.Wait()
	_, refused := b.client(t, e)
	if err := refused.Wait(); err == nil {
		t.Error("the server takes clients: the simulated one is too kind")
	}
	g := s.gpu(a.Device)
	s.cleanUp(g)
	must(t, g.lock(t.Context()))
	if g.daemon.server.fault.IsZero() {
		t.Error("the state of the server was not noticed")
	}
	g.daemon.server.fault = time.Now().Add(-inFaultAtMost)
	g.unlock()
	s.cleanUp(g)
	ensure(t, s, a) // waits for the restart
	_, taken := b.client(t, e)
	if err := taken.Wait(); err != nil {
		t.Errorf("a client of the new server: %v", err)
	}
	var kinds []mps.EventKind
	for _, r := range s.reports.pending {
		kinds = append(kinds, r.Kind)
	}
	equal(t, "events", []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted}, kinds)
	release(t, s, a)
	_ = stays.Wait()
	b.wantNothingLeft(t)
}
