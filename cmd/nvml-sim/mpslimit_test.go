// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

// A partition of a seventh takes a seventh of the clients.
func TestMPS_ClientLimit(t *testing.T) {
	b := newBed(t, "hgx-h100")
	ok(t, "mig", "mode", "--root", b.root, "--gpu", "2", "on")
	ok(t, "mig", "create", "--root", b.root, "--gpu", "2", "--profile", "1g.10gb")
	b.gpus = status(t, b.root).GPUs[2].Instances[0].Compute[0].UUID
	b.start()
	holders := make([]*holder, 6)
	for i := range holders {
		holders[i] = b.hold()
	}
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED") {
		t.Errorf("one too many: exit code %d: %s", code, out)
	}
	if clients := status(t, b.root).GPUs[2].Clients; len(clients) != 1 || clients[0].GPUInstance < 0 || clients[0].ComputeInstance != 0 {
		t.Errorf("clients of the GPU: %+v", clients)
	}
	if out, code := run(t, "mig", "destroy", "--root", b.root, "--gpu", "2", "--all"); code != 1 || !strings.Contains(out, "nvidia-cuda-mps-server") {
		t.Errorf("destroy of a partition under a server: exit code %d: %s", code, out)
	}
	server := strconv.Itoa(holders[0].ServerPID)
	b.say("terminate_client " + server + " " + strconv.Itoa(holders[0].PID))
	holders[0].wantEnd(3, "CUDA_ERROR_MPS_CLIENT_TERMINATED")
	until(t, "there is room", func() bool { return strings.Count(b.say("get_client_list "+server), "\n") == 5 })
	b.hold()
}

func TestMPS_Fault(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start()
	one, stays := b.hold(), b.hold("--stay")
	ok(t, "mps", "fault", "--pipe-directory", b.pipe, "--server", strconv.Itoa(one.ServerPID))
	one.wantEnd(3, "CUDA_ERROR_LAUNCH_FAILED")
	b.wantStatus(one.ServerPID, "FAULT")
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_MPS_SERVER_NOT_READY") {
		t.Errorf("a client after the fault: exit code %d: %s", code, out)
	}
	until(t, "the other client says that its launch failed", func() bool {
		return strings.Contains(stays.stderr.String(), "CUDA_ERROR_LAUNCH_FAILED")
	})
	stays.stop()
	b.wantStatus(one.ServerPID, "ACTIVE")
	// A client brings it about.
	victim := b.hold()
	if victim.ServerPID != one.ServerPID {
		t.Errorf("the server was replaced: %d, %d", victim.ServerPID, one.ServerPID)
	}
	if _, out, code := b.client(nil, "--fault"); code != 3 || !strings.Contains(out, "CUDA_ERROR_LAUNCH_FAILED") {
		t.Errorf("the client with the fault: exit code %d: %s", code, out)
	}
	victim.wantEnd(3, "CUDA_ERROR_LAUNCH_FAILED")
	b.wantStatus(one.ServerPID, "ACTIVE")
	if out, code := run(t, "mps", "fault", "--pipe-directory", b.pipe, "--server", "1"); code != 1 || !strings.Contains(out, "no MPS server with PID 1") {
		t.Errorf("a fault of no server: exit code %d: %s", code, out)
	}
	if out, code := run(t, "mps", "fault", "--pipe-directory", t.TempDir()); code != 1 || !strings.Contains(out, "Cannot find MPS control daemon") {
		t.Errorf("a fault without a daemon: exit code %d: %s", code, out)
	}
}

func TestMPS_Users(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be several users needs root")
	}
	for _, multiUser := range []bool{false, true} {
		b := newBed(t, "hgx-h100")
		for _, path := range []string{filepath.Dir(filepath.Dir(b.root)), filepath.Dir(b.root), filepath.Dir(filepath.Dir(b.pipe)), filepath.Dir(b.pipe)} {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if multiUser {
			b.start("-multiuser-server")
		} else {
			b.start()
		}
		root := b.hold()
		other := b.begin(nil, 1000)
		if multiUser {
			if other.taken(); other.ServerPID != root.ServerPID {
				t.Errorf("servers %d and %d of two users", root.ServerPID, other.ServerPID)
			}
			continue
		}
		until(t, "the other user waits", func() bool {
			return strings.Contains(b.logs("control.log"), "from user 1000: Server of user 0 has to end first, push client to pending list")
		})
		if list := b.say("get_client_list " + strconv.Itoa(root.ServerPID)); list != strconv.Itoa(root.PID)+"\n" {
			t.Errorf("clients %q, want %d alone", list, root.PID)
		}
		if _, code := b.control("start_server -uid 5"); code != 0 {
			t.Error("start_server alongside another user's server was no reply")
		}
		root.stop()
		if other.taken(); other.ServerPID == root.ServerPID {
			t.Errorf("server %d of two users", root.ServerPID)
		}
		other.stop()
	}
}

func TestMPS_Quit(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start()
	h := b.hold()
	daemon := b.daemonPID()
	quit := b.command(nil, mpsControlName)
	quit.Stdin = strings.NewReader("quit")
	if err := quit.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the daemon got the command to quit", func() bool { return strings.Contains(b.logs("control.log"), "Cmd:quit") })
	until(t, "no more clients are taken", func() bool { _, _, code := b.client(nil); return code == 1 })
	if got := b.say("get_server_list"); got != strconv.Itoa(h.ServerPID)+"\n" {
		t.Errorf("servers of a daemon that waits for its clients = %q", got)
	}
	h.stop()
	if err := quit.Wait(); err != nil {
		t.Error(err)
	}
	b.ended("daemon", daemon)

	b.start()
	h = b.hold()
	b.say("quit -t 0")
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	if _, err := os.Stat(filepath.Join(b.pipe, "control")); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestMPS_ServerFailures(t *testing.T) {
	b := newBed(t, "hgx-h100")
	fault := func(args ...string) {
		t.Helper()
		ok(t, "fault", "--root", b.root, "--clear")
		ok(t, append([]string{"fault", "--root", b.root}, args...)...)
	}
	fault("--gpu", "3", "--fail", "mpsControlStart", "UNKNOWN")
	if out, code := b.launch(); code != 1 || !strings.Contains(out, "start MPS control daemon: mpsControlStart: Unknown Error") {
		t.Errorf("a daemon that cannot start: exit code %d: %s", code, out)
	}
	if log := b.logs("control.log"); !strings.Contains(log, "Failed to start: mpsControlStart") {
		t.Errorf("control.log:\n%s", log)
	}
	if left, err := os.ReadDir(b.pipe); len(left) > 0 || err != nil {
		t.Errorf("left in the pipe directory: %v, %v", left, err)
	}

	fault("--slow", "1h", "mpsControlStart")
	b.start()
	waits := b.command(nil, mpsControlName)
	waits.Stdin = strings.NewReader("get_server_list")
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.daemonPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := waits.Wait(); err == nil {
		t.Error("a daemon that is slow to answer has answered")
	}

	fault("--gpu", "3", "--fail", "mpsServerStart", "MEMORY")
	until(t, "the slow daemon has ended", func() bool { _, code := b.launch(); return code == 0 })
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "the MPS server could not start: mpsServerStart: Insufficient Memory") {
		t.Errorf("a client of a server that cannot start: exit code %d: %s", code, out)
	}
	fault("--gpu", "4", "--fail", "mpsServerStart", "MEMORY")
	b.hold().stop()
	b.say("shutdown_server")
	until(t, "the server has ended", func() bool { return b.say("get_server_list") == "" })

	fault("--slow", "1h", "mpsServerStart")
	b.say("start_server -uid 0")
	server := strings.TrimSpace(b.say("get_server_list"))
	if got := b.say("get_server_status "+server, "get_client_list "+server); got != "INITIALIZING\nserver "+server+" is not ready\n" {
		t.Errorf("a server that is slow to start says %q", got)
	}
	waiting := b.begin(nil, os.Geteuid())
	until(t, "the client waits", func() bool {
		return strings.Contains(b.logs("control.log"), "NEW CLIENT "+strconv.Itoa(waiting.cmd.Process.Pid))
	})
	b.say("quit")
	waiting.wantEnd(1, mps.ErrorConnectionFailed)

	fault("--fail", "mpsControlCommand", "TIMEOUT", "--once")
	b.start()
	if got := b.say("get_server_list", "get_default_active_thread_percentage"); !strings.Contains(got, "mpsControlCommand: Timeout") || !strings.HasSuffix(got, "\n100.0\n") {
		t.Errorf("a command that fails = %q", got)
	}
}
