// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// listing maps the names in a directory to their modes.
func listing(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	modes := map[string]fs.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		modes[e.Name()] = info.Mode()
	}
	return modes
}

// pipesOf makes what a daemon makes in its pipe directory, with no umask, and returns what listens there.
func pipesOf(t *testing.T, p paths) net.Listener {
	t.Helper()
	defer syscall.Umask(syscall.Umask(0))
	listener, err := net.Listen("unix", filepath.Join(p.pipe, controlSocket))
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	privileged, err := net.Listen("unix", filepath.Join(p.pipe, privilegedSocket))
	must(t, err)
	t.Cleanup(func() { _ = privileged.Close() })
	must(t, errors.Join(syscall.Mkfifo(filepath.Join(p.pipe, logPipe), 0o777),
		os.WriteFile(filepath.Join(p.pipe, "control_lock"), nil, 0o666),
		os.WriteFile(filepath.Join(p.pipe, "nvidia-cuda-mps-control.pid"), []byte("1"), 0o666)))
	return listener
}

// shortPaths are paths that leave room for the name of a socket.
func shortPaths(t *testing.T) paths {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mps")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := pathsOf(dir, "gpu-0000-1b-00-0")
	must(t, (Disk{}).MakeDirs(p))
	return p
}

// What containers mount holds what a client needs, stays the same directory from one daemon to the next, and leads to
// the daemon that runs.
func TestShowClients(t *testing.T) {
	p := shortPaths(t)
	var mounted fs.FileInfo
	for range 2 {
		must(t, (Disk{}).Clear(p))
		equal(t, "before a daemon starts", map[string]fs.FileMode{"clients": fs.ModeDir | 0o755}, listing(t, p.pipe))
		listener := pipesOf(t, p)
		for range 2 { // it can be repeated
			must(t, (Disk{}).ShowClients(p))
		}
		want := map[string]fs.FileMode{controlSocket: fs.ModeSocket | 0o666, logPipe: fs.ModeNamedPipe | 0o666}
		equal(t, "what clients see", want, listing(t, p.clients))
		if mode := listing(t, p.pipe)[privilegedSocket]; mode != fs.ModeSocket|0o600 {
			t.Errorf("%s has mode %v, want it to be root's", privilegedSocket, mode)
		}
		info, err := os.Stat(p.clients)
		if err != nil || mounted != nil && !os.SameFile(mounted, info) {
			t.Errorf("the directory that containers have mounted is another one (%v)", err)
		}
		mounted = info
		connection, err := net.Dial("unix", filepath.Join(p.clients, controlSocket))
		if err != nil {
			t.Fatalf("connect as a client does: %v", err)
		}
		accepted, err := listener.Accept()
		must(t, errors.Join(err, connection.Close()))
		_ = accepted.Close()
		_ = listener.Close()
	}
}

func TestShowClients_NoSocket(t *testing.T) {
	p := shortPaths(t)
	must(t, (Disk{}).Clear(p))
	if err := (Disk{}).ShowClients(p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ShowClients() = %v, want an error: no client could connect", err)
	}
}

func TestClear_LargeLogs(t *testing.T) {
	p := shortPaths(t)
	for name, size := range map[string]int64{"control.log": maxLog, "server.log": maxLog + 1} {
		must(t, errors.Join(os.WriteFile(filepath.Join(p.log, name), nil, 0o600), os.Truncate(filepath.Join(p.log, name), size)))
	}
	must(t, (Disk{}).Clear(p))
	equal(t, "logs", map[string]fs.FileMode{"control.log": 0o600}, listing(t, p.log))
}
