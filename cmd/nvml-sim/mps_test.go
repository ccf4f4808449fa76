// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

func TestMPS_Daemon(t *testing.T) {
	b := newBed(t, "hgx-h100")
	if out, code := b.control("get_server_list"); code != 1 || out != "Cannot find MPS control daemon process\n" {
		t.Errorf("without a daemon: exit code %d: %s", code, out)
	}
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_MPS_CONNECTION_FAILED: Cannot find MPS control daemon process") {
		t.Errorf("a client without a daemon: exit code %d: %s", code, out)
	}
	b.start("-multiuser-server")
	if out, code := b.launch(); code != 1 || out != "An instance of this daemon is already running\n" {
		t.Errorf("a second daemon: exit code %d: %s", code, out)
	}
	tests := []struct{ command, want string }{
		{"get_server_list", ""},
		{"ps", ""},
		{"get_default_active_thread_percentage", "100.0\n"},
		{"set_default_active_thread_percentage 25", "25.0\n"},
		{"get_default_active_thread_percentage", "25.0\n"},
		{"get_default_client_priority", "0\n"}, // driver 580.159.04 on an H200
		{"get_default_device_pinned_mem_limit 0", "0M\n"},
		{"set_default_device_pinned_mem_limit 0 1536M", ""},
		{"set_default_device_pinned_mem_limit GPU-nope 2048M", ""},
		{"get_default_device_pinned_mem_limit 0", "1536M\n"},
		{"get_default_device_pinned_mem_limit GPU-nope", "2G\n"},
		{"set_default_active_thread_percentage 0", "set_default_active_thread_percentage: invalid percentage \"0\": want a number above 0, at most 100\n"},
		{"get_server_status 1", "no MPS server with PID 1\n"},
		{"shutdown_server 1", "no MPS server with PID 1\n"},
		{"terminate_client 1 2", "no MPS server with PID 1\n"},
		{"ps -p 1", "no MPS server with PID 1, or it is not ready\n"},
		{"make_tea", "unknown command: \"make_tea\"\n"},
	}
	var commands, replies []string
	for _, tt := range tests {
		if got := b.say(tt.command); got != tt.want {
			t.Errorf("%s = %q, want %q", tt.command, got, tt.want)
		}
		commands, replies = append(commands, tt.command), append(replies, tt.want)
	}
	if got, want := b.say(commands[10:]...), strings.Join(replies[10:], ""); got != want {
		t.Errorf("commands of one session = %q, want %q", got, want)
	}
	daemon := b.daemonPID()
	if out := b.say("quit"); out != "" {
		t.Errorf("quit says %q", out)
	}
	b.ended("daemon", daemon)
	if left, err := os.ReadDir(b.pipe); len(left) > 0 || err != nil {
		t.Errorf("left in the pipe directory: %v, %v", left, err)
	}
	if log := b.logs("control.log"); !strings.Contains(log, "] Starting control daemon using socket "+b.pipe+"/control\n") ||
		!strings.Contains(log, "] Cmd:set_default_active_thread_percentage 25\n") {
		t.Errorf("control.log:\n%s", log)
	}
	b.start()
	if got := b.say("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"); got != "100.0\n0M\n" {
		t.Errorf("defaults of a new daemon = %q", got)
	}
}

func TestMPS_ControlUsage(t *testing.T) {
	b := newBed(t, "t4")
	for _, args := range [][]string{{"-x"}, {"-d", "-f"}, {"-multiuser-server"}, {"-d", "now"}} {
		if out, code := b.result(b.command(nil, mpsControlName, args...)); code != exitUsage || !strings.Contains(out, "nvidia-cuda-mps-control") {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
	}
	if out, code := b.result(b.command(nil, mpsControlName, "--help")); code != 0 || !strings.Contains(out, "-multiuser-server") {
		t.Errorf("help: exit code %d: %s", code, out)
	}
	if out, code := b.result(b.command(nil, mps.ServerName)); code != exitUsage {
		t.Errorf("a server by hand: exit code %d: %s", code, out)
	}
	if _, out, code := b.client(nil, "--memory", "1KB"); code != exitUsage {
		t.Errorf("a client with odd memory: exit code %d: %s", code, out)
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{
		"CUDA_MPS_PIPE_DIRECTORY=" + blocked:                                   "make pipe directory",
		"CUDA_MPS_LOG_DIRECTORY=" + blocked:                                    "make log directory",
		"CUDA_MPS_PIPE_DIRECTORY=" + b.pipe + "/" + strings.Repeat("long", 25): "bind control socket",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0":                                  "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1":                                   "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
	} {
		if out, code := b.result(b.command([]string{env}, mpsControlName, "-d")); code != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, want %q in: %s", env, code, want, out)
		}
	}
}

func TestMPS_Server(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start("-M")
	gpu := status(t, b.root).GPUs[3]
	b.say("set_default_active_thread_percentage 40", "set_default_device_pinned_mem_limit 0 9G", "set_default_device_pinned_mem_limit GPU-nope 1M",
		"set_default_device_pinned_mem_limit 5 1M", "set_default_device_pinned_mem_limit "+gpu.UUID+" 4G")
	h := b.hold("--memory", "3G")
	want := mps.Admission{PID: h.cmd.Process.Pid, ServerPID: h.ServerPID, Device: gpu.UUID, Threads: 40, MemoryLimit: 4 << 30, Memory: 3 << 30}
	if diff := cmp.Diff(want, h.Admission); diff != "" {
		t.Errorf("what the client got (-want +got):\n%s", diff)
	}
	server := strconv.Itoa(h.ServerPID)
	client := strconv.Itoa(h.PID)
	for command, want := range map[string]string{
		"get_server_list":                                     server + "\n",
		"get_server_status " + server:                         "ACTIVE\n",
		"get_client_list " + server:                           client + "\n",
		"get_active_thread_percentage " + server:              "40.0\n",
		"get_device_pinned_mem_limit " + server + " 0":        "4G\n",
		"get_device_pinned_mem_limit " + server + " 1":        "no device \"1\"\n",
		"set_default_device_pinned_mem_limit 0 1G":            "",
		"set_default_active_thread_percentage 5":              "5.0\n",
		"start_server -uid 0":                                 "",
		"device_query " + server + " --csv":                   "Server " + server + "\nDevice Ordinal,PCI IDs,UUID,Name\n0,00000000:61:00.0," + gpu.UUID + ",NVIDIA H100 80GB HBM3\n",
		"terminate_client " + server + " 1":                   "no client with PID 1\n",
		"set_device_pinned_mem_limit " + server + " GPU-x 1G": "no device \"GPU-x\"\n",
	} {
		if got := b.say(command); got != want {
			t.Errorf("%s = %q, want %q", command, got, want)
		}
	}
	ps := strings.Split(b.say("ps"), "\n")
	if len(ps) != 3 || strings.Join(strings.Fields(ps[0]), " ") != "PID ID SERVER DEVICE NAMESPACE COMMAND" ||
		!strings.HasPrefix(strings.Join(strings.Fields(ps[1]), " "), client+" 0 "+server+" "+gpu.UUID[:17]+" "+client+" ") {
		t.Errorf("ps = %q", ps)
	}
	b.checkHeld(h)
	// Defaults are for the next server; what is set on this one is for the next client.
	if a, out, _ := b.client(nil); a.Threads != 40 || a.MemoryLimit != 4<<30 || a.ID != 1 {
		t.Errorf("a second client: %s", out)
	}
	b.say("set_active_thread_percentage "+server+" 20", "set_device_pinned_mem_limit "+server+" "+gpu.UUID+" 2G")
	if a, out, _ := b.client([]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8G"}); a.Threads != 10 || a.MemoryLimit != 2<<30 {
		t.Errorf("a third client: %s", out)
	}
	if _, out, code := b.client(nil, "--memory", "3G"); code != 2 || !strings.Contains(out, "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("too much memory: exit code %d: %s", code, out)
	}
	if code := h.stop(); code != 0 {
		t.Errorf("the client, stopped, ended with %d", code)
	}
	b.say("shutdown_server " + server)
	until(t, "the server has ended", func() bool { return b.say("get_server_list") == "" })
	if a, out, _ := b.client(nil); a.Threads != 5 || a.MemoryLimit != 1<<30 {
		t.Errorf("a client of the next server: %s", out)
	}
}

// checkHeld checks what the node sees of a server with one client.
func (b *bed) checkHeld(h *holder) {
	b.t.Helper()
	want := []sim.Client{{PID: h.ServerPID, Name: "nvidia-cuda-mps-server", Memory: h.Memory + 30<<20, GPUInstance: -1, ComputeInstance: -1, Held: true}}
	if diff := cmp.Diff(want, status(b.t, b.root).GPUs[3].Clients); diff != "" {
		b.t.Errorf("clients of the GPU (-want +got):\n%s", diff)
	}
	if out, code := run(b.t, "mig", "mode", "--root", b.root, "--gpu", "3", "on"); code != 1 || !strings.Contains(out, "IN_USE") {
		b.t.Errorf("MIG mode under a server: exit code %d: %s", code, out)
	}
	out, err := smiOutput(b.t, b.root)
	if err != nil || !strings.Contains(out, "process "+strconv.Itoa(h.ServerPID)+"  ") {
		b.t.Errorf("nvidia-smi does not show the server, %v:\n%s", err, out)
	}
	b.t.Setenv("NVML_SIM_ROOT", "")
}

func TestMPS_ComputeMode(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start()
	mode := func(mode string) {
		t.Helper()
		if out, code := b.result(b.command(nil, "nvidia-smi", "-i", "3", "-c", mode)); code != 0 {
			t.Fatal(out)
		}
	}
	mode("EXCLUSIVE_PROCESS")
	if show := ok(t, "show", "--root", b.root); !strings.Contains(show, "compute mode EXCLUSIVE_PROCESS on GPU 3\n") {
		t.Errorf("show:\n%s", show)
	}
	ok(t, "client", "add", "--root", b.root, "--gpu", "3", "--pid", "1")
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_MPS_CONNECTION_FAILED") || !strings.Contains(out, "EXCLUSIVE_PROCESS") {
		t.Errorf("a server on a GPU that another uses: exit code %d: %s", code, out)
	}
	ok(t, "client", "remove", "--root", b.root, "--gpu", "3", "--pid", "1")
	one, two := b.hold(), b.hold()
	if one.ServerPID != two.ServerPID {
		t.Errorf("servers %d and %d", one.ServerPID, two.ServerPID)
	}
	if out, code := run(t, "client", "add", "--root", b.root, "--gpu", "3", "--pid", "1"); code != 1 || !strings.Contains(out, "EXCLUSIVE_PROCESS") {
		t.Errorf("another process alongside the server: exit code %d: %s", code, out)
	}
	b.say("shutdown_server -f")
	one.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	two.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	mode("PROHIBITED")
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "PROHIBITED") {
		t.Errorf("a server where nobody may: exit code %d: %s", code, out)
	}
	if log := b.logs("server.log"); !strings.Contains(log, "Failed to start: add client to GPU 3") {
		t.Errorf("server.log:\n%s", log)
	}
}

func TestMPS_Killed(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start()
	h := b.hold()
	daemon := b.daemonPID()
	b.kill(daemon)
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	b.ended("server", h.ServerPID)
	for _, name := range []string{"control", "nvidia-cuda-mps-control.pid"} {
		if _, err := os.Stat(filepath.Join(b.pipe, name)); err != nil {
			t.Errorf("a killed daemon has taken its files away: %v", err)
		}
	}
	if clients := status(t, b.root).GPUs[3].Clients; len(clients) > 0 {
		t.Errorf("clients of the GPU: %v", clients)
	}
	if out, code := b.control("ps"); code != 1 || out != "Cannot find MPS control daemon process\n" {
		t.Errorf("control of a dead daemon: exit code %d: %s", code, out)
	}
	b.start()
	if now := b.daemonPID(); now == daemon {
		t.Errorf("the PID file is that of the dead daemon, %d", now)
	}
	h = b.hold()
	b.kill(h.ServerPID)
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	until(t, "the daemon notices", func() bool { return b.say("get_server_list") == "" })
	if clients := status(t, b.root).GPUs[3].Clients; len(clients) > 0 {
		t.Errorf("clients of the GPU: %v", clients)
	}
	if again := b.hold(); again.ServerPID == h.ServerPID {
		t.Errorf("server %d lives", h.ServerPID)
	}
}

func TestMPS_GPULost(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start()
	h := b.hold()
	ok(t, "fault", "--root", b.root, "--gpu", "3", "--lost")
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_MPS_CONNECTION_FAILED") {
		t.Errorf("a client of a lost GPU: exit code %d: %s", code, out)
	}
	ok(t, "fault", "--root", b.root, "--clear")
	h = b.hold()
	ok(t, "reboot", "--root", b.root)
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
}

// A daemon of several GPUs has one server for all of them.
func TestMPS_SeveralGPUs(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.gpus = "5,4"
	b.start()
	gpus := status(t, b.root).GPUs
	b.say("set_default_device_pinned_mem_limit 1 1G")
	tests := []struct {
		env    []string
		args   []string
		device string
		limit  uint64
	}{
		{nil, nil, gpus[5].UUID, 0},
		{nil, []string{"--device", "1"}, gpus[4].UUID, 1 << 30},
		{[]string{"CUDA_VISIBLE_DEVICES=" + gpus[4].UUID}, nil, gpus[4].UUID, 1 << 30},
		{[]string{"CUDA_VISIBLE_DEVICES=1,0"}, []string{"--device", "1"}, gpus[5].UUID, 0},
	}
	for _, tt := range tests {
		if a, out, _ := b.client(tt.env, tt.args...); a.Device != tt.device || a.MemoryLimit != tt.limit {
			t.Errorf("%v %v: want %s, %d: %s", tt.env, tt.args, tt.device, tt.limit, out)
		}
	}
	for _, g := range status(t, b.root).GPUs[3:7] {
		if want := g.Index == 4 || g.Index == 5; len(g.Clients) == 1 != want {
			t.Errorf("GPU %d: clients %v", g.Index, g.Clients)
		}
	}
}

// Whatever connects, the daemon goes on.
func TestMPS_MalformedConnections(t *testing.T) {
	b := newBed(t, "t4")
	b.gpus = "0"
	b.start()
	for _, text := range []string{"", "\n", "quit\n", "{}\n{\n", `{"program":{"visible":"x"}}` + "\n", strings.Repeat("x", 100<<10), "{}\n{\"command\":\"" + strings.Repeat("x", 100<<10)} {
		conn, err := net.Dial("unix", filepath.Join(b.pipe, "control"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, text) // the daemon may have hung up
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	idle, err := net.Dial("unix", filepath.Join(b.pipe, "control"))
	if err != nil {
		t.Fatal(err)
	}
	b.hold().stop()
	b.say("quit")
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives the daemon")
	}
}

func TestMPS_Foreground(t *testing.T) {
	b := newBed(t, "hgx-h100")
	c := b.command([]string{"CUDA_VISIBLE_DEVICES=3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"}, mpsControlName, "-f", "-multiuser-server")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the daemon answers", func() bool { _, code := b.control("get_server_list"); return code == 0 })
	h := b.hold()
	if h.Threads != 30 || h.MemoryLimit != 2<<30 {
		t.Errorf("limits of the daemon's environment: %+v", h.Admission)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	h.wantEnd(3, "CUDA_ERROR_MPS_RPC_FAILURE")
	if left, err := os.ReadDir(b.pipe); len(left) > 0 || err != nil {
		t.Errorf("left in the pipe directory: %v, %v", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(b.root, "var/lib/nvml-sim/process-*")); len(left) > 0 || err != nil {
		t.Errorf("left of the server: %v, %v", left, err)
	}
}

// In a container there are the programs and the pipe directory, and nothing else of the node.
func TestMPS_Container(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start("-multiuser-server")
	inside := &bed{t: t, root: t.TempDir(), pipe: b.pipe, log: filepath.Join(t.TempDir(), "nowhere")}
	bin := filepath.Join(inside.root, "usr/bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{mpsControlName, mps.ServerName} {
		if err := os.Link(filepath.Join(b.root, "usr/bin", name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	h := inside.hold("--memory", "1G")
	if got := inside.say("get_server_list"); got != strconv.Itoa(h.ServerPID)+"\n" {
		t.Errorf("get_server_list = %q", got)
	}
	if out, code := inside.result(inside.command(nil, mpsControlName, "cuda-client", "--device", "1")); code != 1 || !strings.Contains(out, "CUDA_ERROR_INVALID_DEVICE") {
		t.Errorf("another device: exit code %d: %s", code, out)
	}
	if _, err := os.Stat(inside.log); !os.IsNotExist(err) {
		t.Errorf("a client has made the log directory: %v", err)
	}
	info, err := os.Stat(filepath.Join(b.pipe, "control"))
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("the socket is for some only: %v, %v", info.Mode(), err)
	}
}
