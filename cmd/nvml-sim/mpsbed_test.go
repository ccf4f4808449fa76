// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

// The programs of the nodes that tests make are this test's program: called so, it acts as them.
func TestMain(m *testing.M) {
	if slices.Contains([]string{mpsControlName, mps.ServerName, "nvidia-smi"}, filepath.Base(os.Args[0])) {
		main()
	}
	os.Exit(m.Run())
}

// bed is a node and a pipe directory on it.
type bed struct {
	t               *testing.T
	root, pipe, log string
	gpus            string // CUDA_VISIBLE_DEVICES of the daemon
}

func newBed(t *testing.T, model string) *bed {
	t.Helper()
	t.Setenv("NVML_SIM_ROOT", "")
	dir := t.TempDir()
	return &bed{t: t, root: makeNode(t, model), pipe: filepath.Join(dir, "pipe"), log: filepath.Join(dir, "log"), gpus: "3"}
}

// command makes the command of one of the node's programs; env is added to its environment.
func (b *bed) command(env []string, name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(b.root, "usr/bin", name), args...)
	c.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+b.pipe, "CUDA_MPS_LOG_DIRECTORY="+b.log)
	// With the race detector a process would wait a second before it ends.
	c.Env = append(c.Env, "GORACE=atexit_sleep_ms=0")
	c.Env = append(c.Env, env...)
	return c
}

// result runs a command and returns what it writes and its exit code.
func (b *bed) result(c *exec.Cmd) (string, int) {
	b.t.Helper()
	out, err := c.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		b.t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// control gives the daemon commands and returns its replies and the exit code.
func (b *bed) control(lines ...string) (string, int) {
	b.t.Helper()
	c := b.command(nil, mpsControlName)
	c.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	return b.result(c)
}

// say is control that has to work.
func (b *bed) say(lines ...string) string {
	b.t.Helper()
	out, code := b.control(lines...)
	if code != 0 {
		b.t.Fatalf("%q: exit code %d: %s", lines, code, out)
	}
	return out
}

// launch starts the daemon in the background, and returns what that says.
func (b *bed) launch(args ...string) (string, int) {
	b.t.Helper()
	c := b.command([]string{"CUDA_VISIBLE_DEVICES=" + b.gpus}, mpsControlName, append([]string{"-d"}, args...)...)
	out, code := b.result(c)
	b.t.Cleanup(func() {
		b.control("quit -t 0") // it may have ended
		b.ended("daemon", b.daemonPID())
	})
	return out, code
}

// start is launch that has to work.
func (b *bed) start(args ...string) {
	b.t.Helper()
	if out, code := b.launch(args...); code != 0 || out != "" {
		b.t.Fatalf("start the daemon: exit code %d: %s", code, out)
	}
}

// daemonPID is that of the daemon that is or was; 0 if it has taken its file away.
func (b *bed) daemonPID() int {
	data, err := os.ReadFile(filepath.Join(b.pipe, "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// kill kills a process that this test's programs have started.
func (b *bed) kill(pid int) {
	b.t.Helper()
	if pid <= 0 {
		b.t.Fatal("no process to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so", what)
		}
	}
}

// ended waits until a process has ended; its parent may not have noticed.
func (b *bed) ended(what string, pid int) {
	b.t.Helper()
	until(b.t, what+" has ended", func() bool {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		_, after, _ := strings.Cut(string(data), ") ")
		return pid == 0 || err != nil || strings.HasPrefix(after, "Z")
	})
}

// wantStatus waits until a server says that its status is so.
func (b *bed) wantStatus(server int, want string) {
	b.t.Helper()
	until(b.t, "status "+want, func() bool { return b.say("get_server_status "+strconv.Itoa(server)) == want+"\n" })
}

// client runs a CUDA program that does not stay.
func (b *bed) client(env []string, args ...string) (mps.Admission, string, int) {
	b.t.Helper()
	out, code := b.result(b.command(env, mps.ServerName, append([]string{"cuda-client"}, args...)...))
	var a mps.Admission
	if code == 0 {
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			b.t.Fatalf("%v: %s", err, out)
		}
	}
	return a, out, code
}

// holder is a CUDA program that stays.
type holder struct {
	mps.Admission
	cmd    *exec.Cmd
	stderr said
	out    *bufio.Reader
	b      *bed
	over   bool
}

// begin starts one, without waiting until a server has taken it.
func (b *bed) begin(env []string, uid int, args ...string) *holder {
	b.t.Helper()
	h := &holder{cmd: b.command(env, mps.ServerName, append([]string{"cuda-client", "--hold"}, args...)...), b: b}
	h.cmd.Stderr = &h.stderr
	if uid != os.Geteuid() {
		h.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if !h.over {
			h.stop()
		}
	})
	return h
}

// taken waits until a server has taken the program.
func (h *holder) taken() *holder {
	h.b.t.Helper()
	line, err := h.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &h.Admission)
	}
	if err != nil {
		h.b.t.Fatalf("the client was not taken: %v, exit code %d", err, h.exit())
	}
	return h
}

// hold is begin and taken.
func (b *bed) hold(args ...string) *holder {
	b.t.Helper()
	return b.begin(nil, os.Geteuid(), args...).taken()
}

// exit waits until the program has ended and returns its exit code.
func (h *holder) exit() int {
	_ = h.cmd.Wait() // the exit code says how
	h.over = true
	return h.cmd.ProcessState.ExitCode()
}

// stop ends the program as an administrator would.
func (h *holder) stop() int {
	_ = h.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	return h.exit()
}

// wantEnd waits until the program has ended because of an error.
func (h *holder) wantEnd(code int, text string) {
	h.b.t.Helper()
	if got := h.exit(); got != code || !strings.Contains(h.stderr.String(), text) {
		h.b.t.Errorf("the client ended with %d, want %d, and %q in: %s", got, code, text, h.stderr.String())
	}
}

// logs returns a log of the daemon or the servers.
func (b *bed) logs(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.log, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// said is what a program says, which may be read while it runs.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
