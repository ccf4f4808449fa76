// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pipes maps the names in the pipe directory to their modes.
func (b *bed) pipes() map[string]fs.FileMode {
	b.t.Helper()
	entries, err := os.ReadDir(b.pipe)
	if err != nil {
		b.t.Fatal(err)
	}
	modes := map[string]fs.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			b.t.Fatal(err)
		}
		modes[e.Name()] = info.Mode()
	}
	return modes
}

// The pipe directory looks as NVIDIA's daemon leaves it, and who starts it without a umask shares its control.
func TestMPS_Pipes(t *testing.T) {
	for umask, privileged := range map[int]fs.FileMode{0o022: 0o755, 0: 0o777} {
		b := newBed(t, "t4")
		b.gpus = "0"
		before := syscall.Umask(umask)
		b.start("-multiuser-server")
		syscall.Umask(before)
		want := map[string]fs.FileMode{
			"control": fs.ModeSocket | 0o666, "control_lock": 0o666, "control_privileged": fs.ModeSocket | privileged,
			"log": fs.ModeNamedPipe | 0o777, "nvidia-cuda-mps-control.pid": 0o666,
		}
		if diff := cmp.Diff(want, b.pipes()); diff != "" {
			t.Errorf("umask %o (-want +got):\n%s", umask, diff)
		}
	}
}

// Who has the socket of all users can use the GPU and ask; who has the other one can end everybody's server.
func TestMPS_PrivilegedSocket(t *testing.T) {
	b := newBed(t, "t4")
	b.gpus = "0"
	b.start("-multiuser-server")
	holder := b.hold()
	all := b.pipe
	b.pipe = t.TempDir()
	for _, name := range []string{"control", "log"} {
		if err := os.Link(filepath.Join(all, name), filepath.Join(b.pipe, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{"quit", "shutdown_server -f", "set_default_active_thread_percentage 1", "simulate_fault"} {
		if out := b.say(command); !strings.HasSuffix(out, "permission denied\n") {
			t.Errorf("%s over the socket of all users: %q", command, out)
		}
	}
	if out := b.say("get_default_active_thread_percentage"); out != "100.0\n" {
		t.Errorf("asked over the socket of all users: %q", out)
	}
	if _, out, code := b.client(nil); code != 0 {
		t.Errorf("a client over the socket of all users: %d, %s", code, out)
	}
	until(t, "the client's line is in the log", func() bool { return strings.Contains(b.logs("control.log"), "[client ") })
	b.pipe = all
	b.say("quit -t 0")
	holder.wantEnd(exitServerGone, "CUDA_ERROR_MPS_RPC_FAILURE")
}
