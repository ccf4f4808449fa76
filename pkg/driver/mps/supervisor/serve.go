// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// lockName is the file that keeps two supervisors from using one directory.
const lockName = "supervisor.lock"

// maxRequest bounds a request, in bytes.
const maxRequest = 1 << 20

// Run serves until ctx ends or the socket breaks. Daemons keep running: the next supervisor adopts them. self is the command that
// calls Enter.
func Run(ctx context.Context, config Config, self []string) error {
	if err := config.Validate(); err != nil {
		return err
	}
	roots := config.driverRoots()
	library := nvml.Options{
		DriverRoot: roots[0], OtherRoots: roots[1:], Probe: nvml.ProbeLibrary, LibraryPath: config.NVMLLibrary,
		Sysfs: os.DirFS("/sys").(fs.ReadLinkFS),
	}
	running := func(ctx context.Context) (string, error) { return nvml.FindRoot(ctx, library) }
	return serve(ctx, config, Host{
		Hardware: NVML{library},
		Daemons:  Processes{DriverRoots: roots, Running: running, Self: self, Cgroup: config.DaemonCgroup},
		Mounts:   Tmpfs{SELinux: HasSELinux(os.DirFS("/proc"))},
		Files:    Disk{DriverRoots: roots},
		Disk:     store.Disk{},
	})
}

func serve(ctx context.Context, config Config, on Host) error {
	config.Dir = filepath.Clean(config.Dir)
	logger := klog.FromContext(ctx)
	boot, err := store.BootID("/proc")
	if err != nil {
		return err
	}
	if err := makeDir(config.Dir, 0o711); err != nil { // containers' mounts reach through it
		return fmt.Errorf("create the supervisor's directory (--dir %s): %w", config.Dir, err)
	}
	unlock, err := lockDir(ctx, config.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := makeDir(filepath.Join(config.Dir, stateDir), 0o700); err != nil {
		return fmt.Errorf("create the supervisor's directory of records (--dir %s): %w", config.Dir, err)
	}
	for _, dir := range []string{config.Dir, filepath.Join(config.Dir, stateDir)} { // events and records
		if err := on.Disk.Sweep(dir); err != nil {
			return fmt.Errorf("sweep the supervisor's directory %s: %w", dir, err)
		}
	}
	life, stop := context.WithCancel(ctx)
	s := New(life, config, on, boot)
	defer s.tidy(ctx)
	defer s.Wait()
	defer stop()
	if err := s.Recover(life); err != nil {
		return err
	}
	s.wg.Go(s.CleanUp)
	err = s.listen(life)
	for _, g := range s.Status().GPUs {
		logger.Info("Leaving GPU to the next supervisor", "gpu", g.Device, "state", g.State, "pid", g.PID, "claims", g.Claims)
	}
	return err
}

// listen serves the socket until s.life ends.
func (s *Supervisor) listen(life context.Context) error {
	socket := filepath.Join(s.config.Dir, mps.SocketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier supervisor
		return fmt.Errorf("remove the socket of an earlier supervisor: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("open the supervisor's socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("make the supervisor's socket root's own: %w", err), listener.Close())
	}
	logger := klog.FromContext(life)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(klog.NewContext(ctx, logger), req)
		}))
	v1alpha1.RegisterSupervisorServer(server, service{Supervisor: s})
	logger.Info("Serving MPS", "socket", socket, "driverRoots", s.config.driverRoots(), "computeMode", s.config.ComputeMode)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(&rootsOnly{Listener: listener, logger: logger}) }() // ends with the server
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", socket, err)
	case <-life.Done():
	}
	// Stops in progress are completed; starts in progress end with life and are undone.
	server.GracefulStop()
	return <-failed
}

// rootsOnly rejects callers that are not root, who could only have reached the socket by mistake.
type rootsOnly struct {
	net.Listener
	logger klog.Logger
}

func (l *rootsOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peer(c)
		if err == nil && uid == 0 {
			return c, nil
		}
		l.logger.Info("Rejected a caller that is not root", "uid", uid, "err", err)
		_ = c.Close()
	}
}

// peer is the user at the other end of a unix socket.
func peer(c net.Conn) (uint32, error) {
	conn, ok := c.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("%T is not a socket", c)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var ucred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		ucred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return 0, errors.Join(err, failed)
	}
	return ucred.Uid, nil
}

// makeDir creates a directory with this mode, whatever the umask.
func makeDir(dir string, mode fs.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// tidy empties the directory if no GPU is shared and no event is pending. The lock is still held.
func (s *Supervisor) tidy(ctx context.Context) {
	if len(s.Status().GPUs) > 0 || !s.reports.forget() {
		return
	}
	for _, name := range []string{stateDir, lockName} {
		if err := os.Remove(filepath.Join(s.config.Dir, name)); err != nil {
			klog.FromContext(ctx).Error(err, "Leaving files in the supervisor's directory")
			return
		}
	}
}

// lockDir waits until no other supervisor has the directory. The kernel releases the lock when its owner dies.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waiting := false; ; waiting = true {
		f, err := store.LockFile(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		if !waiting {
			klog.FromContext(ctx).Info("Waiting for another MPS supervisor to end", "lock", path)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another MPS supervisor, which has %s locked: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}
