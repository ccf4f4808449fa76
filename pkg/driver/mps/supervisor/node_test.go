// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func mustEnsure(t testing.TB, c *mps.Client, r mps.Request) mps.Endpoint {
	t.Helper()
	e, err := c.Ensure(t.Context(), r)
	must(t, err)
	return e
}

func mustRelease(t testing.TB, c *mps.Client, r mps.Request) {
	t.Helper()
	must(t, c.Release(t.Context(), r.Device, r.Claim))
}

func statusOf(t testing.TB, c *mps.Client) []mps.GPUStatus {
	t.Helper()
	s, err := c.Status(t.Context())
	must(t, err)
	return s.GPUs
}

// watchEvents watches until the test ends.
func watchEvents(t testing.TB, c *mps.Client) <-chan mps.Event {
	t.Helper()
	events := make(chan mps.Event, 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Watch(ctx, func(e mps.Event) { events <- e })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return events
}

// wantSizes checks of what size in bytes the file systems are on which directories of a root lie.
func wantSizes(t *testing.T, root string, sizes map[string]int64) {
	t.Helper()
	for dir, want := range sizes {
		var got syscall.Statfs_t
		if err := syscall.Statfs(root+dir, &got); err != nil || int64(got.Blocks)*got.Bsize != want {
			t.Errorf("%s has %d bytes, %v, want %d", dir, int64(got.Blocks)*got.Bsize, err, want)
		}
	}
}

func TestDaemon_Sandbox(t *testing.T) {
	b := newBed(t)
	c, _ := b.serve(t)
	other := b.request(t, "other", 1)
	mustEnsure(t, c, other)
	a := b.request(t, "a", 0)
	e := mustEnsure(t, c, a)
	g := statusOf(t, c)[0]
	if g.State != mps.Running || g.Device != a.Device || g.UUID != a.UUID || len(g.Claims) != 1 {
		t.Errorf("status %+v", g)
	}
	inside := fmt.Sprintf("/proc/%d/root", g.PID)
	var outer, inner syscall.Stat_t
	for at, want := range map[string]string{e.PipeDir: e.PipeDir, e.LogDir: e.LogDir, "/dev/shm": e.ShmDir} {
		if err := errors.Join(syscall.Stat(want, &outer), syscall.Stat(inside+at, &inner)); err != nil || outer.Ino != inner.Ino || outer.Dev != inner.Dev {
			t.Errorf("%s in the daemon's root is not %s (%v)", at, want, err)
		}
	}
	if entries, err := os.ReadDir(inside); err != nil || len(entries) > 12 {
		t.Errorf("the daemon sees more than its root: %v, %v", entries, err)
	}
	wantSizes(t, inside, map[string]int64{"/dev/shm": a.Settings.SharedMemory, b.paths(0).pipe: pipeSize, e.LogDir: logSize})
	if info, err := os.Stat(e.ShmDir); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("shared memory: %v, %v", info.Mode(), err)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", g.PID))
	want := []string{"PATH=" + searchPath, "CUDA_VISIBLE_DEVICES=" + a.UUID, "CUDA_MPS_PIPE_DIRECTORY=" + b.paths(0).pipe, "CUDA_MPS_LOG_DIRECTORY=" + e.LogDir, ""}
	if diff := cmp.Diff(want, strings.Split(string(environ), "\x00")); diff != "" || err != nil {
		t.Errorf("environment, %v (-want +got):\n%s", err, diff)
	}
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", g.PID))
	if !strings.HasSuffix(string(cmdline), "nvidia-cuda-mps-control\x00-f\x00-multiuser-server\x00") {
		t.Errorf("command line %q", cmdline)
	}
	b.startServer(t, a)
	// It does not hold the memory of others, also not of those that were there before.
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", g.PID))
	if err != nil || len(sharedMounts(string(mounts))) != 3 {
		t.Errorf("the daemon holds %v, %v", sharedMounts(string(mounts)), err)
	}
	if found, err := findProcesses(b.paths(0).pipe); err != nil || len(found) != 2 {
		t.Errorf("processes %v, %v, want a daemon and a server", found, err)
	}
	for path, mode := range map[string]os.FileMode{
		filepath.Join(b.Config.Dir, mps.SocketName): os.ModeSocket | 0o600, b.Config.Dir: os.ModeDir | 0o711,
		filepath.Join(b.Config.Dir, stateDir): os.ModeDir | 0o700, recordOf(b.Config.Dir, a.Device): 0o600, e.PipeDir: os.ModeDir | 0o755,
		e.LogDir: os.ModeDir | 0o700, b.paths(0).pipe: os.ModeDir | 0o755, b.paths(0).dir: os.ModeDir | 0o711,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, mode)
		}
	}
	mustRelease(t, c, a)
	mustRelease(t, c, other)
	b.wantNothingLeft(t)
}

// A root that is searched first has what a driver that is not running has left, such as a link of a package that was removed.
func TestDaemon_RootOfRunningDriver(t *testing.T) {
	b := newBed(t)
	b.Stale = t.TempDir()
	program := filepath.Join(b.Stale, "usr/bin", controlProgram)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(program), 0o700), os.Symlink("/etc/alternatives/nowhere", program)))
	c, stop := b.serve(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	stop()
	c, _ = b.serve(t) // which adopts the daemon
	mustEnsure(t, c, a)
	if g := statusOf(t, c)[0]; g.State != mps.Running || g.Generation != 1 {
		t.Errorf("status %+v, want the daemon that was started", g)
	}
	mustRelease(t, c, a)
	b.wantNothingLeft(t)
}

func TestDaemon_HostsOwnRoot(t *testing.T) {
	b := newBed(t)
	// As if the driver were installed on the host: the daemon's directories are below its root already.
	b.Config.Dir = filepath.Join(b.Root, "run")
	if err := os.Symlink(".", filepath.Join(b.Root, strings.Split(b.Root, "/")[1])); err != nil { // /tmp -> /
		t.Fatal(err)
	}
	must(t, os.Symlink(".", filepath.Join(b.Root, filepath.Base(filepath.Dir(b.Root)))))
	must(t, os.Symlink(".", filepath.Join(b.Root, "root")))
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", statusOf(t, c)[0].PID))
	if err != nil || len(sharedMounts(string(mounts))) != 3 {
		t.Errorf("mounts, %v:\n%s\nwant pipes, logs and shared memory of its own GPU", err, mounts)
	}
	mustRelease(t, c, a)
}

// A daemon outlives its supervisor, whichever way that ends, and serves the next one's claims.
func TestDaemon_OutlivesSupervisor(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			b := newBed(t)
			first := b.spawn(t, 0)
			c := b.dial(t)
			a, other := b.request(t, "a", 0), b.request(t, "other", 3)
			e := mustEnsure(t, c, a)
			mustEnsure(t, c, other)
			before := statusOf(t, c)
			must(t, first.Process.Signal(signal))
			_ = first.Wait()
			c, _ = b.serve(t)
			if again := mustEnsure(t, c, a); again != e {
				t.Errorf("endpoint %+v, want %+v", again, e)
			}
			equal(t, "status", before[:1], statusOf(t, c)[:1])
			events := watchEvents(t, c)
			began := time.Now()
			if err := syscall.Kill(before[0].PID, syscall.SIGKILL); err != nil { // no child of this one
				t.Fatal(err)
			}
			lost := <-events
			t.Logf("reported after %s", time.Since(began))
			if lost.Kind != mps.DaemonLost || lost.Device != a.Device || !cmp.Equal(lost.Claims, []types.UID{"a"}) || !strings.Contains(lost.Message, "control.log ends") {
				t.Errorf("event %+v", lost)
			}
			if e := <-events; e.Kind != mps.DaemonRestarted {
				t.Errorf("event %+v", e)
			}
			mustRelease(t, c, a)
			mustRelease(t, c, other)
		})
	}
}

func TestDaemon_DiedWithSupervisor(t *testing.T) {
	b := newBed(t)
	first := b.spawn(t, 0)
	c := b.dial(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	pid := statusOf(t, c)[0].PID
	must(t, errors.Join(first.Process.Kill(), syscall.Kill(pid, syscall.SIGKILL)))
	_ = first.Wait()
	c, stop := b.serve(t)
	mustEnsure(t, c, a)
	if g := statusOf(t, c)[0]; g.Generation != 2 {
		t.Errorf("generation %d, want 2", g.Generation)
	}
	stop() // no watcher took the events: the next life reports them
	c, _ = b.serve(t)
	events := watchEvents(t, c)
	for _, want := range []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted} {
		if e := <-events; e.Kind != want || !cmp.Equal(e.Claims, []types.UID{"a"}) {
			t.Errorf("event %+v, want %s", e, want)
		}
	}
	mustRelease(t, c, a)
}

func TestEnsure_DaemonErrorsQuoteLogs(t *testing.T) {
	tests := map[string]struct {
		fault *sim.Fault // of the daemon; nil to remove its program
		want  []string
	}{
		"ends":    {&sim.Fault{GPU: -1, Call: "mpsControlStart", Code: 999}, []string{"ended before it answered: exit status 1", "control.log ends", "Failed to start", "daemon.log ends"}},
		"silent":  {&sim.Fault{GPU: -1, Call: "mpsControlStart", Hang: true}, []string{"did not answer within", "--start-timeout", "control.log ends", "Starting control daemon"}},
		"missing": {nil, []string{"no nvidia-cuda-mps-control in /usr/local/nvidia/bin:", "does the driver's installation there have MPS?"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			if tt.fault == nil {
				must(t, os.Remove(filepath.Join(b.Root, "usr/bin", controlProgram)))
			} else {
				b.inject(t, *tt.fault)
				if tt.fault.Hang { // it runs into the timeout, the others must not
					b.Config.StartTimeout = 10 * time.Second
				}
			}
			c, _ := b.serve(t)
			_, err := c.Ensure(t.Context(), b.request(t, "a", 0))
			t.Log(err)
			wantError(t, err, append(tt.want, "share gpu-")...)
			b.wantNothingLeft(t)
		})
	}
}

func TestRelease_StubbornDaemonIsKilled(t *testing.T) {
	b := newBed(t)
	b.Config.StopTimeout = 2 * time.Second // also for the end after SIGKILL, on a busy machine
	c, _ := b.serve(t)
	a := b.request(t, "a", 0)
	mustEnsure(t, c, a)
	b.startServer(t, a)
	// One that is stopped neither answers nor takes SIGTERM.
	must(t, syscall.Kill(statusOf(t, c)[0].PID, syscall.SIGSTOP))
	mustRelease(t, c, a)
	b.wantNothingLeft(t)
}

// A supervisor that is killed at any step and started again ends where each claim has its daemon or is gone.
func TestProcess_KilledAtEachStep(t *testing.T) {
	stride := int64(1)
	if testing.Short() {
		stride = 9
	}
	b := newBed(t)
	kills := int64(0)
	for n := int64(1); ; n += stride {
		first := b.spawn(t, n)
		c := b.dial(t)
		survived := shortLife(t, b, c)
		if survived {
			if err := first.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		_ = first.Wait()
		c, stop := b.serve(t)
		claims := []mps.Request{b.request(t, "a", 0), b.request(t, "b", 0)}
		for _, r := range claims {
			mustEnsure(t, c, r) // waits for what the start took up
		}
		if g := statusOf(t, c); len(g) != 1 || g[0].State != mps.Running || len(g[0].Claims) != 2 {
			t.Errorf("killed at %d: status %+v", n, g)
		}
		b.startServer(t, claims[0])
		if found, err := findProcesses(b.paths(0).pipe); err != nil || len(found) != 2 {
			t.Errorf("killed at %d: processes %v, %v, want a daemon and a server", n, found, err)
		}
		if err := c.Retain(t.Context(), claims[0].Device, testOwner, nil); err != nil {
			t.Errorf("killed at %d: %v", n, err)
		}
		if left := b.left(t); left != "" {
			t.Fatalf("killed at %d: left behind: %s", n, left)
		}
		stop()
		if survived {
			break
		}
		kills++
	}
	t.Logf("killed at %d steps", kills)
	if kills < 30/stride {
		t.Errorf("killed at %d steps only: do the hooks work?", kills)
	}
}

// shortLife is what the plugin asks until the supervisor is gone; it reports whether it is not.
func shortLife(t *testing.T, b *bed, c *mps.Client) bool {
	t.Helper()
	a, other := b.request(t, "a", 0), b.request(t, "b", 0)
	for _, do := range []func() error{
		func() error { _, err := c.Ensure(t.Context(), a); return err },
		func() error { b.startServer(t, a); return nil },
		func() error { _, err := c.Ensure(t.Context(), other); return err },
		func() error {
			st, err := c.Status(t.Context())
			if err != nil || len(st.GPUs) == 0 {
				return errors.Join(err, mps.ErrUnavailable)
			}
			if err := syscall.Kill(st.GPUs[0].PID, syscall.SIGKILL); err != nil {
				return err
			}
			for { // until it is started again
				if _, err := c.Ensure(t.Context(), a); err != nil {
					return err
				}
				if st, err = c.Status(t.Context()); err != nil || len(st.GPUs) > 0 && st.GPUs[0].Generation > 1 {
					return err
				}
			}
		},
		func() error { return c.Release(t.Context(), a.Device, a.Claim) },
		func() error { return c.Release(t.Context(), a.Device, other.Claim) },
	} {
		err := do()
		if errors.Is(err, mps.ErrUnavailable) {
			return false
		}
		must(t, err)
	}
	return true
}
