// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

func TestConfigValidate(t *testing.T) {
	good := Config{Dir: mps.DefaultDir, DriverRoot: "/", ComputeMode: KeepMode, StartTimeout: 1, StopTimeout: 1}
	must(t, good.Validate())
	for flag, change := range map[string]func(*Config){
		"--dir":                   func(c *Config) { c.Dir = "run" },
		"--dir /":                 func(c *Config) { c.Dir = "/x/.." },
		"--dir \"/xx":             func(c *Config) { c.Dir = "/" + strings.Repeat("x", maxDir) },
		"--driver-root":           func(c *Config) { c.DriverRoot = "" },
		"--container-driver-root": func(c *Config) { c.ContainerDriverRoot = "x" },
		"--nvml-library":          func(c *Config) { c.NVMLLibrary = "x" },
		"--daemon-cgroup":         func(c *Config) { c.DaemonCgroup = "x" },
		"--compute-mode":          func(c *Config) { c.ComputeMode = "" },
		"--start-timeout":         func(c *Config) { c.StartTimeout = 0 },
		"--stop-timeout":          func(c *Config) { c.StopTimeout = -1 },
	} {
		c := good
		change(&c)
		wantError(t, c.Validate(), flag)
	}
}

func TestRootsOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	dir, err := os.MkdirTemp("/tmp", "mps")
	must(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	defer func() { _ = listener.Close() }()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o666)); err != nil { // as if by mistake
		t.Fatal(err)
	}
	served := make(chan uint32, 2)
	go func() {
		only := &rootsOnly{Listener: listener, logger: klog.Logger{}}
		for {
			c, err := only.Accept()
			if err != nil {
				close(served)
				return
			}
			uid, _ := peer(c)
			served <- uid
			_ = c.Close()
		}
	}()
	other := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is another user's, and ends with this goroutine
		other <- connectAs(socket, 65534)
	}()
	must(t, <-other)
	c, err := net.Dial("unix", socket)
	must(t, err)
	defer func() { _ = c.Close() }()
	if uid := <-served; uid != 0 {
		t.Errorf("served user %d", uid)
	}
	_ = listener.Close()
	if uid, open := <-served; open {
		t.Errorf("served user %d too", uid)
	}
}

// connectAs connects as another user and waits to be hung up on.
func connectAs(socket string, uid uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)); errno != 0 {
		return errno
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n != 0 || err != nil {
		return fmt.Errorf("read %d bytes, %w, want the end", n, err)
	}
	return nil
}

func TestLockDir(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockDir(t.Context(), dir)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lockDir(ctx, dir); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), lockName) {
		t.Errorf("got %v, want a time-out that names the lock", err)
	}
	unlock()
	if unlock, err = lockDir(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestLockDir_FileDeletedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	unlock, err := lockDir(t.Context(), dir)
	must(t, err)
	locked, second := make(chan error, 1), func() {}
	go func() {
		var err error
		second, err = lockDir(t.Context(), dir)
		locked <- err
	}()
	select {
	case err := <-locked:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	must(t, os.Remove(path))
	unlock()
	must(t, <-locked)
	defer second() // which also keeps the garbage collector from closing what is locked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lockDir(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a time-out: another has the lock", err)
	}
}

func TestServe_LeavesNothing(t *testing.T) {
	b := newBed(t)
	names := func() (found []string) {
		entries, err := os.ReadDir(b.Config.Dir)
		must(t, err)
		for _, e := range entries {
			found = append(found, e.Name())
		}
		return found
	}
	c, stop := b.serve(t)
	r := b.request(t, "a", 0)
	mustEnsure(t, c, r)
	stop()
	if found := names(); !slices.Contains(found, stateDir) || !slices.Contains(found, r.Device) {
		t.Errorf("with a daemon that runs, the directory has only %v", found)
	}
	c, stop = b.serve(t)
	mustRelease(t, c, r)
	stop()
	if found := names(); len(found) > 0 {
		t.Errorf("left behind: %v", found)
	}
}

func TestClient_NoSupervisor(t *testing.T) {
	c, err := mps.Dial("/nonexistent/supervisor.sock")
	must(t, err)
	defer func() { _ = c.Close() }()
	for name, err := range map[string]error{
		"Available": c.Available(t.Context()),
		"Release":   c.Release(t.Context(), "gpu-0000-01-00-0", "a"),
	} {
		if !errors.Is(err, mps.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer on /nonexistent/supervisor.sock: is its DaemonSet running on this node?") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestClient_InvalidRequests(t *testing.T) {
	b := newBed(t)
	c, _ := b.serve(t)
	r := b.request(t, "a", 0)
	r.Settings.SharedMemory = -1
	if _, err := c.Ensure(t.Context(), r); err == nil || errors.Is(err, mps.ErrUnavailable) || !strings.Contains(err.Error(), "shared memory of -1 bytes") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Ensure(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// cgroup2 is where the cgroup v2 file system is mounted here.
func cgroup2(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	t.Skip("no cgroup v2 file system")
	return ""
}

func TestDaemon_OwnCgroup(t *testing.T) {
	b := newBed(t)
	b.Config.DaemonCgroup = filepath.Join(cgroup2(t), filepath.Base(filepath.Dir(b.Config.Dir)))
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	b.startServer(t, a)
	procs, err := os.ReadFile(filepath.Join(b.Config.DaemonCgroup, a.Device, "cgroup.procs"))
	if got := strings.Fields(string(procs)); err != nil || len(got) != 2 || !slices.Contains(got, fmt.Sprint(statusOf(t, c)[0].PID)) {
		t.Errorf("in the cgroup: %q, %v, want the daemon and its server", procs, err)
	}
	mustRelease(t, c, a)
	if _, err := os.Stat(b.Config.DaemonCgroup); err == nil {
		t.Error("the cgroup is left")
		_ = os.Remove(b.Config.DaemonCgroup)
	}
}

// The daemon of one GPU gets its cgroup while that of another one ends, and the parent goes with the last of them.
func TestCgroup_OfTwoDaemons(t *testing.T) {
	p := Processes{Cgroup: filepath.Join(cgroup2(t), filepath.Base(t.TempDir())+"-two-daemons")}
	var both sync.WaitGroup
	for _, name := range []string{"gpu-a", "gpu-b"} {
		both.Go(func() {
			for range 2000 {
				if _, err := p.makeCgroup(Daemon{GPU: name}); err != nil {
					t.Error(err)
				}
				if err := p.removeCgroup(t.Context(), Daemon{GPU: name}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
}

func TestDaemon_CgroupUnavailable(t *testing.T) {
	b := newBed(t)
	b.Config.DaemonCgroup = "/tmp/no-cgroup"
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	mustRelease(t, c, a)
}
